"""sessions.py: what the sessions of client.py are made to do, one class per kind of load."""

import time

from client import *


class Mixed(Calls):
    """Everything at random: the crowd."""

    def __init__(self, *args):
        super().__init__(*args)
        self.hunger = 0.5           # how much it wants to claim rather than push
        self.pendings = []
        self.queues = QUEUES
        self.beats = self.rng.random() < 0.3

    def step(self):
        if self.rng.random() < 0.3:
            n = self.rng.choice((2, 2, 3, 4, 6))
            isolation = self.rng.choices(("read committed", "repeatable read", "serializable"), (6, 2, 2))[0]
            savepoint = (self.rng.randrange(n), self.rng.random() < 0.6) if self.rng.random() < 0.4 else None
            commit = self.rng.random() < 0.75
            dawdle = self.rng.random() < 0.006

            def body(i):
                self.action()
                if dawdle and i == 0:
                    self.push("fifo")
                if dawdle:
                    time.sleep(self.rng.random() * 1.5)
                return i + 1 < n and not self.world.stopping()
            self.transaction(body, isolation, commit, savepoint)
        else:
            self.action()
        if self.rng.random() < 0.0003:
            time.sleep(self.rng.random() * 2)

    def action(self):
        r = self.rng
        if len(self.held) > 30 or (self.held and r.random() < 0.45):
            self.work()
        elif r.random() < self.hunger:
            self.take()
        else:
            self.produce()
        if r.random() < 0.03:
            self.disturb()

    def take(self):
        r = self.rng
        queues = r.choice(QUEUES) if r.random() < 0.7 else r.sample(QUEUES + self.world.extra, r.choice((2, 2, 3)))
        n = r.choice((1, 1, 2, 5, 20))
        rows = self.claim(queues, n, r.choice((None, 0.4, 1, 2, 5)))
        if rows is not None:
            self.hunger = min(0.8, self.hunger + 0.02) if len(rows) == n else max(0.2, self.hunger - 0.02)

    def produce(self):
        r, w = self.rng, self.world
        kind = r.random()
        if kind < 0.14:
            self.push("fifo", pr=r.choice((0, 0, 0, 1, 2, -1)))
        elif kind < 0.22 and w.has("unique"):
            self.push_unique()
        elif kind < 0.26 and w.has("dedup"):
            self.push("uniq", key=f"d{r.randrange(10)}", ttl=r.choice((1, 2, 4)))
        elif kind < 0.38:
            self.push_many(r.choice(QUEUES), r.choice((2, 5, 20, 50)), pr=r.choice((0, 0, 5)))
        else:
            o = {}
            if r.random() < 0.3:
                o["pr"] = r.choice((-5, 1, 5, 50))
            if r.random() < 0.5:
                o["retry"] = r.choice(("fast", "exp", "once", "picky"))
            when = r.random()
            if when < 0.10:
                o["delay"] = round(r.uniform(0.1, 3), 2)
            elif when < 0.15:
                o["sched"] = int(Clock.now() + w.offset() + r.randrange(1, 5))
            elif when < 0.17:
                o["pending"] = True
            if r.random() < 0.04:
                o["exp"] = int(Clock.now() + w.offset() + r.randrange(2, 8))
            if r.random() < 0.05:
                ms = int(Clock.now() * 1000)
                o["id"] = "%08x-%04x-7%03x-a%03x-%012x" % (ms >> 16, ms & 65535,
                    *(r.getrandbits(b) for b in (12, 12, 48)))
            if r.random() < 0.02:
                o["timeout"] = 2
            if r.random() < 0.04:
                o["amo"] = True
            rows = self.push(r.choice(QUEUES + w.extra), **o)
            if rows and o.get("pending"):
                self.pendings.append(rows[0][0])
            if self.pendings and r.random() < 0.1:
                self.activate(self.pendings.pop(0))

    def push_unique(self):
        r = self.rng
        policy = {"keys": ["type", "args"], "args_keys": ["k"],
                  "on_conflict": r.choice(("reject", "reject", "ignore", "replace", "replace_except_schedule"))}
        o = {"delay": round(r.uniform(0.2, 3), 2)} if r.random() < 0.2 else {}
        self.push("uniq", uniq=policy, keyval=r.randrange(12), **o)

    def work(self):
        r = self.rng
        helds = list(self.held.values())
        held = r.choice(helds)
        if r.random() < 0.08:       # forget about it: it will lapse, and perhaps be acknowledged late
            self.drop(held.id)
            return
        how = r.choices("blwn", (80, 10, 9, 1))[0]
        kind = r.random()
        if kind < 0.34:
            if r.random() < 0.4 and not self.in_tx:
                self.transaction(lambda i: self.ack(held, how, True), "read committed", r.random() < 0.85)
            else:
                self.ack(held, how, bool(self.in_tx))
        elif kind < 0.52:
            self.many("ack_many", r.sample(helds, min(len(helds), r.choice((1, 3, 10, 30)))),
                      with_leases=r.random() < 0.8)
        elif kind < 0.64:
            batch = r.sample(helds, min(len(helds), r.choice((1, 1, 3, 10))))
            self.ack_and_claim(r.choice(self.queues), batch, r.choice((1, 1, 3, 10)), r.choice((None, 1, 3)))
        elif kind < 0.76:
            if r.random() < 0.15:
                self.fail(held, how, requeue=True)
            else:
                self.fail(held, how, fatal=r.random() < 0.1)
        elif kind < 0.83:
            self.nack(held, how, r.choice((0, 0, round(r.uniform(0.1, 1.5), 2))))
        elif kind < 0.85:
            self.many("nack_many", r.sample(helds, min(len(helds), 5)), ", delay => $4::interval", 0.2)
        elif kind < 0.91:
            self.extend(held, r.choice((0.3, 1, 4)), how)
        elif kind < 0.94:
            self.many("extend_many", r.sample(helds, min(len(helds), 10)), ", lease => $4::interval",
                      r.choice((0.3, 1, 3)))
        elif self.beats:
            self.beat(r.sample(helds, min(len(helds), 10)), r.choice((None, 2)))

    def disturb(self):
        r = self.rng
        kind = r.random()
        if kind < 0.65 and self.stale:      # a stale holder tries its luck
            held = self.stale.pop(r.randrange(len(self.stale)))
            if held.id in self.held:
                return
            self.rng.choice((lambda: self.ack(held, "b"), lambda: self.ack(held, "l"), lambda: self.fail(held, "b"),
                             lambda: self.nack(held, "l"), lambda: self.extend(held, 3, "b"),
                             lambda: self.many("ack_many", [held])))()
        elif kind < 0.85 and self.seen:
            self.cancel(r.choice(self.seen))
        elif kind < 0.95:
            self.tick()
        elif self.world.has("pause_queue"):
            queue = self.world.extra[0]
            self.simple("pause_queue", queue)
            time.sleep(r.random() * 0.3)
            self.simple("resume_queue", queue)


class Rival(Mixed):
    """Where it is asked for: pushes jobs of a few uniqueness keys, and works them off."""

    def action(self):
        if self.held:
            self.work()
        elif self.rng.random() < 0.3:
            self.claim("uniq", 5, 2)
        else:
            self.push_unique()


class Apart(Mixed):
    """The same calls in a queue of its own, client.APART: what its settings promise is judged apart."""

    def __init__(self, *args):
        super().__init__(*args)
        self.queues = [type(self).__name__.lower()]

    def take(self):
        r = self.rng
        rows = self.claim(self.queues[0], r.choice((1, 1, 2, 5)), r.choice((None, 0.4, 1, 2, 5)))
        if rows is not None:
            self.hunger = min(0.9, self.hunger + 0.02) if rows else max(0.2, self.hunger - 0.02)

    def produce(self):
        r = self.rng
        if r.random() < 0.1:
            self.push_many(self.queues[0], r.choice((2, 5, 20)))
        else:
            o = {"delay": round(r.uniform(0.1, 2), 2)} if r.random() < 0.1 else {}
            self.push(self.queues[0], retry=r.choice(("default", "fast", "exp")), pr=r.choice((0, 0, 1)), **o)


class Kept(Apart):
    """Its leases survive crashes, so it goes on with them."""

    def lost(self):
        held = {id: h for id, h in self.held.items() if h.queue == "kept"}
        super().lost()
        self.stale = [h for h in self.stale if h.id not in held]
        self.held = held


class Hasty(Apart):
    """Its commits are not waited for."""


class Few(Apart):
    """No more than three of its jobs are held at once."""

    def take(self):
        if not self.claim("few", self.rng.choice((1, 2, 5)), self.rng.choice((0.4, 1, 2)),
            wait=None if self.in_tx else 0.2) \
                and self.rng.random() < 0.4:
            self.produce()

    def produce(self):
        self.push("few", retry="fast")

    def action(self):
        self.hunger = 0.95
        super().action()


class Paced(Apart):
    """No more than five of its jobs start within a second. There are always some that wait for that."""

    def __init__(self, *args):
        super().__init__(*args)
        self.ahead = 0

    def take(self):
        rows = self.claim("paced", self.rng.choice((1, 2, 5)), self.rng.choice((0.4, 1, 2)))
        self.ahead -= len(rows or ())

    def action(self):
        if self.ahead < 10:
            self.push("paced", retry="fast")
            self.ahead += 1
        self.hunger = 1
        super().action()


class Shared(Apart):
    """Its jobs are shared out among the claims that come within 20 ms."""


class Hooked(Apart):
    """Its jobs pass through hooks."""


class Ordered(Apart):
    """One of its jobs of a key is handed out at a time: three quarters of the keys are strict, the others relaxed."""

    AHEAD = 60      # jobs of one session that nobody has begun, at most

    def __init__(self, *args):
        super().__init__(*args)
        self.ahead = 0

    def take(self):
        n = self.rng.choice((1, 1, 2, 5))
        rows = self.claim("ordered", n, self.rng.choice((0.4, 0.4, 1, 2)))
        self.ahead = max(0, self.ahead - len(rows or ()))

    def produce(self):
        r = self.rng
        if self.ahead >= self.AHEAD:
            return
        n = r.randrange(self.world.keys)
        o = {"okey": f"https://example.org/{n}", "ordering": "relaxed" if n % 4 == 3 else "strict"}
        if r.random() < 0.15:
            self.ahead += len(self.push_many("ordered", r.choice((2, 5)), **o) or ())
            return
        if r.random() < 0.06:
            o["delay"] = round(r.uniform(0.1, 1), 2)
        elif r.random() < 0.03:
            o["exp"] = int(Clock.now() + self.world.offset() + r.randrange(2, 5))
        elif r.random() < 0.03:
            o["amo"] = True
        o["retry"] = r.choice(("fast", "exp", "once"))
        self.ahead += len(self.push("ordered", pr=r.choice((0, 0, 1)), **o) or ())


class Filtered(Calls):
    """Claims jobs and gives them back, while now and then one of these sessions pushes a batch and, when all have had a
    while for it, cancels it by filter."""

    def step(self):
        r = self.rng
        if r.random() < 0.06:
            batch = self.tag()
            rows = self.push_many("filtered", r.choice((20, 60, 200)), batch=batch)
            if rows:
                time.sleep(r.uniform(0, 0.3))
                self.cancel_batch("filtered", batch, [row[1] for row in rows])
            return
        for _ in range(r.choice((1, 5, 20))):
            if not self.claim("filtered", r.choice((1, 5, 20)), 5):
                time.sleep(0.01)
                break
            self.many("nack_many", list(self.held.values()), ", delay => $4::interval", 0)


class Keeper(Calls):
    """Holds a job of "long" for longer than its lease lasts, and extends that in time."""

    LEASE = 4.0

    def step(self):
        self.push_many("long", 3)
        for held in [h for h in self.held.values()]:
            self.drop(held.id)
        if not self.claim("long", 1, self.LEASE):
            return
        held = next(iter(self.held.values()))
        until = Clock.now() + self.rng.uniform(3, 9)
        while held.id in self.held and Clock.now() < until and not self.world.stopping():
            self.extend(held, self.LEASE, "b")
            time.sleep(0.4)
        if held.id in self.held:
            self.ack(held)


class Patient(Calls):
    """Waits in "long" for longer than leases last there."""

    def step(self):
        if self.claim("long", 1, 20, wait=12):
            self.many("ack_many", list(self.held.values()))


class Tuner(Calls):
    """Sets one setting of the queue "tuned" that is its own, while others set theirs."""

    def step(self):
        key = "lease_ms" if self.world.slot % 2 else "max_deliveries"
        self.configure("tuned", key, self.rng.randrange(1000, 100000))
        time.sleep(self.rng.uniform(0.02, 0.3))


class Fifo(Calls):
    """The one claimer of the queue "fifo": its order is promised."""

    size = 3

    def step(self):
        rows = self.claim("fifo", self.size, 20)
        if rows is None:
            return
        if rows:
            self.many("ack_many", list(self.held.values()))
        if len(rows) < self.size:
            self.size = max(1, self.size - 1)
            time.sleep(self.rng.uniform(0.5, 2.5))
        else:
            self.size = min(100, self.size + (self.rng.random() < 0.04))
            time.sleep(0.02)


class Waiter(Calls):
    """The one claimer of the queue "wake", always waiting."""

    def step(self):
        rows = self.claim("wake", 20, 20, wait=4)
        if rows:
            self.many("ack_many", list(self.held.values()))


class Waker(Calls):
    """Pushes to "wake" now and then, mostly after something was rolled back. Alone: others would hide its lateness."""

    def step(self):
        r = self.rng
        time.sleep(r.uniform(0.2, 1) if self.world.crowded.value else r.uniform(0.05, 0.3))
        kind = r.choice((0, 1, 2, 2, 2, 3))
        if kind == 0:
            self.push("wake")
        elif kind == 1:             # a rolled back transaction, then one that commits
            self.transaction(lambda i: self.push("wake") and None, commit=False)
            self.push("wake")
        elif kind == 2:             # push, then a savepoint with another push, rolled back
            self.transaction(lambda i: (self.push("wake") and None, i < 2)[1], savepoint=(1, True))
        else:                       # a savepoint rolled back before the push
            self.transaction(lambda i: (self.push("wake") and None, i < 2)[1], savepoint=(0, True))


class Working(Calls):
    """Push mode: work_open, work_next, work_close."""

    def connected(self):
        self.open = False

    def step(self):
        r = self.rng
        if not self.open:
            self.size = r.choice((1, 4, 8))
            rows = self.call("work_open", {"q": "working", "n": self.size, "w": self.worker},
                             "select ojs.work_open($1, $2, $3::int, '2 s')", "working", self.worker, str(self.size))
            if rows is None:
                time.sleep(0.2)
                return
            self.ok(1)
            self.open = True
        rows = self.logged_claim("work_next", {"q": "working", "n": self.size, "w": self.worker},
                                 f"select {CLAIMED} from ojs.work_next('0.2 s')")
        if rows:
            self.hold(rows)
        for held in list(self.held.values()):
            if r.random() < 0.8:
                self.ack(held)
        if r.random() < 0.3:
            self.push("working")
        if r.random() < 0.01:
            if self.call("work_close", {"w": self.worker}, "select ojs.work_close()") is not None:
                self.ok(1)
                for id in list(self.held):
                    self.drop(id)
            self.open = False


class Auditor(Session):
    """Looks at the whole store in one snapshot, again and again: each open job in one place, no finished one."""

    def step(self):
        c = self.connection
        t0 = Clock.now()
        c.execute("begin isolation level repeatable read read only")
        try:
            c.execute("set local enable_indexscan = off; set local enable_bitmapscan = off;"
                      " set local enable_indexonlyscan = off; set local statement_timeout = '60s';"
                      " set local max_parallel_workers_per_gather = 0")
            rows = c.execute(AUDIT)
            twins = c.execute(TWINS) if self.world.has("unique") else []
        finally:
            c.execute("rollback")
        t1 = Clock.now()
        self.log.write("audit", t0, t1, rows[0][0] == "t", [[r[1], int(r[2]), int(r[3])] for r in rows if r[1]],
                       [[r[0], int(r[1])] for r in twins])
        until = t1 + max(0.5, 8 * (t1 - t0))
        while Clock.now() < until and not self.world.stopping():
            time.sleep(0.1)


# Jobs that are not in exactly one place, in one snapshot: (id, places, done rows), after whether the hot set stands.
AUDIT = """
with place as (
    select job_id, count(*) as n from (
        select job_id from ojs_store.ready union all select job_id from ojs_store.lease
        union all select job_id from ojs_store.delayed where kind <> 5) p group by job_id),
done as (select job_id, count(*) as n from ojs_store.finished group by job_id),
wrong as (
    select j.id, coalesce(p.n, 0) as places, coalesce(d.n, 0) as ends
    from ojs_store.job j left join place p on p.job_id = j.id left join done d on d.job_id = j.id
    where coalesce(p.n, 0) + coalesce(d.n, 0) <> 1
    union all
    select p.job_id, p.n, -1 from place p where not exists (select from ojs_store.job j where j.id = p.job_id)
    limit 20)
select exists (select from ojs_store.hot_set_state), w.id, w.places, w.ends from (values (1)) v(x)
left join wrong w on true
"""

TWINS = """
select j.args #>> '{0,k}', count(*) from ojs_store.job j
where j.unique_policy is not null and j.args #>> '{0,k}' is not null
  and not exists (select from ojs_store.finished d where d.job_id = j.id)
group by 1 having count(*) > 1
"""


def audit_once(connection, log):
    """As an Auditor does, for what a reconcile pass would hide."""
    t0 = Clock.now()
    connection.execute("set enable_indexscan = off; set enable_bitmapscan = off; set enable_indexonlyscan = off")
    rows = connection.execute(AUDIT)
    connection.execute("reset enable_indexscan; reset enable_bitmapscan; reset enable_indexonlyscan")
    log.write("audit", t0, Clock.now(), rows[0][0] == "t", [[r[1], int(r[2]), int(r[3])] for r in rows if r[1]], [])
