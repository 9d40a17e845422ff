"""client.py: the sessions. Each writes down what it asks before it asks, and what it was told.

A log is a file of JSON arrays, one per line, times in seconds of one clock:
  ["conn", t, era]                      connected; era counts the crashes of the server so far
  ["op", t0, op, tx, kind, args]        asked; tx is 0 where the call is its own transaction
  ["ok", t1, op, result] | ["err", t1, op, sqlstate, message] | ["dead", t1, op]
  ["begin", t, tx, isolation]           a transaction of several calls
  ["void", tx, op]                      rolled back to a savepoint: its calls from op on never happened
  ["commit", t0, tx] then ["end", t1, tx, "ok" | "rb" | "dead"]
"""

import json
import os
import random
import signal
import time

import pq

RETRIES = {
    # name: (policy, least delay in seconds)
    "default": (None, 0.5),
    "fast": ({"max_attempts": 5, "initial_interval": "PT0.3S", "backoff_coefficient": 1.0, "jitter": False}, 0.3),
    "exp": ({"max_attempts": 4, "initial_interval": "PT0.2S", "backoff_coefficient": 2.0, "jitter": False}, 0.2),
    "once": ({"max_attempts": 1}, 0.5),
    "picky": ({"max_attempts": 6, "initial_interval": "PT0.4S", "jitter": True,
               "non_retryable_errors": ["fatal.*"]}, 0.2),
}
MAX_ATTEMPTS = {name: (policy or {}).get("max_attempts", 3) for name, (policy, _) in RETRIES.items()}
QUEUES = ["crowd0", "crowd1", "crowd2"]
# Queues with settings of their own, each with sessions of its own.
APART = {
    "kept": {"leases_durable": True, "lease_log": True, "concurrency": 6},
    "hasty": {"durable": False},
    "few": {"concurrency": 3},
    "paced": {"rate_limit": {"rate": {"limit": 5, "period": "PT1S"}}},
    "shared": {"claim_jitter_ms": 20},
    "hooked": {},
    "ordered": {},
    "long": {},
    "tuned": {},
    "flows": {},
    "filtered": {},
}
# The queue "hooked" has its jobs marked when they are pushed, and their ends written down; other jobs stay as they are.
HOOKS = """
create table torture.ended (job_id uuid, state text);
create function torture.mark(job jsonb) returns jsonb language sql as $$
    select case when $1 ->> 'queue' = 'hooked'
        then $1 || jsonb_build_object('meta', coalesce($1 -> 'meta', '{}') || '{"hooked": 1}') else $1 end
$$;
create function torture.note(job jsonb) returns void language sql as $$
    insert into torture.ended select ($1 ->> 'id')::uuid, $1 ->> 'state' where $1 ->> 'queue' = 'hooked'
$$;
select ojs.register_hook('mark', 'enqueue', 'torture.mark(jsonb)'),
    ojs.register_hook('note', 'after_execute', 'torture.note(jsonb)');
"""

SPECIAL = {"unique": "uniq", "dedup": "uniq"}
CLAIMED = ("id, lease_id, attempt, deliveries, extract(epoch from started_at), extract(epoch from lease_expires_at),"
           " priority, seq, queue, state, type")


class Clock:
    """Wall-clock seconds that never step back, the same in all processes of a run."""

    base = time.time() - time.monotonic()

    @classmethod
    def now(cls):
        return round(cls.base + time.monotonic(), 6)


class Log:
    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *line):
        os.write(self.fd, (json.dumps(line, separators=(",", ":")) + "\n").encode())


class Stopped(Exception):
    pass


class Rollback(Exception):
    """The open transaction was rolled back by the server."""


class Held:
    """A lease as its holder sees it."""

    __slots__ = ("id", "lease", "attempt", "queue", "deadline", "fate")

    def __init__(self, row, fate):
        self.id, self.lease, self.attempt, self.queue = row[0], row[1], int(row[2]), row[8]
        self.deadline, self.fate = float(row[5]), fate


def uuid_list(ids):
    return "{" + ",".join(ids) + "}"


def parse_list(text):
    return [] if text is None or text == "{}" else text[1:-1].split(",")


def finite(value):
    """An epoch in text, or null for none and for infinity."""
    if value is None or "nfinity" in value:
        return None
    return float(value)


class Session:
    """One connection after another, and the log of what was said on them."""

    def __init__(self, name, world, seed):
        self.name, self.world = name, world
        self.rng = random.Random(seed)
        self.log = Log(os.path.join(world.directory, f"{name}.jsonl"))
        self.connection, self.era = None, None
        self.op, self.tx, self.in_tx = 0, 0, 0
        self.undo = []              # what a rollback of the open transaction restores
        self.worker = name

    def connect(self):
        while True:
            if self.world.stopping():
                raise Stopped
            try:
                c = self.world.connect(self.name)
                c.execute("set statement_timeout = '25s'")
                rows = c.execute("select n from torture.era")
                if rows:
                    self.connection, self.era = c, int(rows[0][0])
                    self.log.write("conn", Clock.now(), self.era)
                    self.connected()
                    return
                c.close()
            except (pq.Dead, pq.SqlError):
                pass
            time.sleep(0.03)

    def connected(self):
        pass

    def lost(self):
        """The connection died."""
        if self.connection:
            self.connection.close()
            self.connection = None
        self.in_tx = 0
        self.undo = []

    def call(self, kind, args, sql, *parameters):
        """One logged call; rows, or None where the server refused."""
        self.op += 1
        op = self.op
        self.world.count()
        self.log.write("op", Clock.now(), op, self.in_tx, kind, args)
        try:
            return self.connection.query(sql, *parameters)
        except pq.SqlError as e:
            self.log.write("err", Clock.now(), op, e.sqlstate, f"{e.message} {e.detail}"[:300])
            self.error = e.sqlstate
            if self.in_tx:
                raise Rollback
            return None
        except pq.Dead:
            self.log.write("dead", Clock.now(), op)
            raise

    def ok(self, result):
        self.log.write("ok", Clock.now(), self.op, result)

    # --- transactions ---

    def remember(self, restore):
        if self.in_tx:
            self.undo.append((self.op, restore))

    def restore_from(self, op):
        while self.undo and self.undo[-1][0] >= op:
            self.undo.pop()[1]()

    def begin(self, isolation):
        self.tx += 1
        self.connection.execute(f"begin isolation level {isolation}")
        self.in_tx = self.tx
        self.undo = []
        self.log.write("begin", Clock.now(), self.tx, isolation)

    def commit(self):
        tx = self.in_tx
        self.log.write("commit", Clock.now(), tx)
        try:
            self.connection.execute("commit")
        except pq.SqlError as e:
            self.log.write("end", Clock.now(), tx, "rb")
            self.in_tx = 0
            self.restore_from(0)
            return
        except pq.Dead:
            self.log.write("end", Clock.now(), tx, "dead")
            raise
        self.log.write("end", Clock.now(), tx, "ok")
        self.in_tx = 0
        self.undo = []

    def rollback(self):
        tx, self.in_tx = self.in_tx, 0
        self.restore_from(0)
        self.log.write("end", Clock.now(), tx, "rb")
        self.connection.execute("rollback")

    def transaction(self, body, isolation="read committed", commit=True, savepoint=None):
        """Runs body(i) for i in 0, 1, … while it returns true; savepoint: (i, roll back)."""
        self.begin(isolation)
        try:
            i, from_op, undone = 0, None, False
            while True:
                if savepoint and i == savepoint[0]:
                    self.connection.execute("savepoint s")
                    from_op = self.op + 1
                try:
                    more = body(i)
                except Rollback:
                    if from_op is None or undone:
                        raise # a transaction that cannot be serialized any more refuses whatever comes
                    undone = True
                    self.connection.execute("rollback to s")
                    self.restore_from(from_op)
                    self.log.write("void", self.in_tx, from_op)
                    more = True
                if savepoint and i == savepoint[0] + 1 and savepoint[1] and from_op is not None:
                    self.connection.execute("rollback to s")
                    self.restore_from(from_op)
                    self.log.write("void", self.in_tx, from_op)
                i += 1
                if not more:
                    break
        except Rollback:
            self.rollback()
            return False
        except pq.SqlError:
            self.rollback()
            return False
        if commit:
            self.commit()
        else:
            self.rollback()
        return commit

    def run(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not self.world.stopping():
                try:
                    if self.connection is None:
                        self.connect()
                    self.step()
                except pq.Dead:
                    self.lost()
                except pq.SqlError as e:
                    # a transaction command or the like, between calls
                    self.log.write("note", Clock.now(), e.sqlstate, e.message)
                    self.lost()
        except Stopped:
            pass
        finally:
            if self.connection:
                self.connection.close()


class Calls(Session):
    """The calls of ojs, one method each: asks, logs, and keeps the list of held leases."""

    columns = CLAIMED

    def __init__(self, *args):
        super().__init__(*args)
        self.held = {}              # job -> Held
        self.stale = []             # leases that may be over
        self.seen = []              # ids of jobs to disturb
        self.serial = 0

    def tag(self):
        self.serial += 1
        return f"{self.name}.{self.serial}"

    def note_seen(self, id):
        self.seen.append(id)
        if len(self.seen) > 200:
            del self.seen[:100]

    def hold(self, rows, fate=None):
        for row in rows:
            held = Held(row, fate)
            before = self.held.get(held.id)
            self.held[held.id] = held
            self.remember(lambda id=held.id, before=before:
                          self.held.pop(id, None) if before is None else self.held.__setitem__(id, before))

    def drop(self, id):
        held = self.held.pop(id, None)
        if held:
            self.remember(lambda: self.held.__setitem__(id, held))
            self.stale.append(held)
            if len(self.stale) > 60:
                del self.stale[:30]

    def lost(self):
        super().lost()
        self.stale.extend(self.held.values())
        del self.stale[:-60]
        self.held = {}

    # --- producing ---

    def push(self, queue, **o):
        """Options: pr, delay, sched, exp, retry, uniq, key, ttl, id, timeout, pending, keyval, okey, ordering."""
        tag = o["tag"] = self.tag()
        args = json.dumps([{"tag": tag, "k": o["keyval"]}] if "keyval" in o else [{"tag": tag}])
        names, values = ["type", "args", "queue"], ["t." + o.get("retry", "default"), args, queue]

        def give(name, cast, value):
            names.append(f"{name} => ${len(values) + 1}::{cast}")
            values.append(value)
        if o.get("pr"):
            give("priority", "int", str(o["pr"]))
        if "delay" in o:
            give("delay", "interval", f"{o['delay']} seconds")
        if "sched" in o:
            give("scheduled_at", "timestamptz", time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(o["sched"])))
        if "exp" in o:
            give("expires_at", "timestamptz", time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(o["exp"])))
        if "id" in o:
            give("id", "uuid", o["id"])
        if "timeout" in o:
            give("timeout", "interval", f"{o['timeout']} seconds")
        if o.get("pending"):
            give("pending", "boolean", "true")
        options = {"delivery": "at_most_once"} if o.get("amo") else {}
        if "okey" in o:
            options |= {"ordering_key": o["okey"], "ordering": o["ordering"]}
        if options:
            give("options", "jsonb", json.dumps(options))
        if RETRIES[o.get("retry", "default")][0]:
            give("retry", "jsonb", json.dumps(RETRIES[o["retry"]][0]))
        if "uniq" in o:
            give('"unique"', "jsonb", json.dumps(o["uniq"]))
        if "key" in o:
            give("deduplication_key", "text", o["key"])
            give("deduplication_ttl", "interval", f"{o['ttl']} seconds")
        sql = ("select id, seq, state, extract(epoch from created_at), deduplicated, extract(epoch from scheduled_at)"
               " from ojs.push(type => $1, args => $2::jsonb, queue => $3" + "".join(", " + n for n in names[3:]) + ")")
        o["q"] = queue
        rows = self.call("push", o, sql, *values)
        if rows is not None:
            r = rows[0]
            self.ok([r[0], int(r[1]), r[2], float(r[3]), r[4] == "t", finite(r[5])])
            self.note_seen(r[0])
        return rows

    def push_many(self, queue, n, batch=None, **o):
        tags = [self.tag() for _ in range(n)]
        pr = o.get("pr", 0)
        jobs = [dict(type="t.default", queue=queue, priority=pr, args=[{"tag": t}]) for t in tags]
        if "okey" in o:
            jobs = [dict(job, ordering_key=o["okey"], ordering=o["ordering"]) for job in jobs]
        if batch:
            jobs = [dict(job, meta={"batch": batch}) for job in jobs]
        rows = self.call("push_many", dict(o, q=queue, tags=tags),
                         "select index, id, status from ojs.push_many($1::jsonb) order by index", json.dumps(jobs))
        if rows is not None:
            self.ok([r[1] for r in rows])
            self.note_seen(rows[-1][1])
        return rows

    # --- working ---

    def logged_claim(self, kind, args, sql, *parameters):
        rows = self.call(kind, args, sql, *parameters)
        if rows is not None:
            self.ok([[r[0], r[1], int(r[2]), int(r[3]), float(r[4]), float(r[5]), int(r[6]), int(r[7]), r[8], r[9],
                      r[10][2:]] for r in rows])
            if rows and len(rows[0]) > 11:
                self.log.write("told", self.op, {r[1]: json.loads(r[11]) for r in rows if r[11]})
        return rows

    def claim(self, queues, n, lease=None, wait=None):
        args = {"q": queues, "n": n, "w": self.worker}
        target = "queue => $1" if isinstance(queues, str) else "queues => $1::text[]"
        sql = f"select {self.columns} from ojs.claim({target}, worker => $2, max => $3::int, lease => $4::interval"
        if wait:
            args["wait"] = wait
            sql += f", wait => '{wait} s'"
        rows = self.logged_claim("claim", args, sql + ")",
                                 queues if isinstance(queues, str) else "{" + ",".join(queues) + "}", self.worker,
                                 str(n), f"{lease} seconds" if lease else None)
        if rows:
            self.hold(rows)
        return rows

    def holder(self, held, how):
        """What an operation tells of its holder: b(oth), l(ease), w(orker), n(othing)."""
        return (held.lease if how in "bl" else None, self.worker if how in "bw" else None)

    def ack(self, held, how="b", effect=False):
        lease, worker = self.holder(held, how)
        rows = self.call("ack", {"id": held.id, "l": lease, "w": worker, "my": held.lease},
                         "select state, attempt, deliveries from ojs.ack($1::uuid, $2::jsonb, lease_id => $3,"
                         " worker => $4)", held.id, json.dumps(held.lease), lease, worker)
        if rows is not None:
            self.ok([rows[0][0], int(rows[0][1]), int(rows[0][2])])
            self.drop(held.id)
            if effect:
                self.effect(held)
        elif self.error.startswith("OJ"):
            self.drop(held.id)

    def effect(self, held):
        rows = self.call("effect", {"id": held.id, "attempt": held.attempt},
                         "insert into torture.effects values ($1::uuid, $2::int, $3) returning 1", held.id,
                         str(held.attempt), self.worker)
        if rows is not None:
            self.ok(1)

    def fail(self, held, how="b", fatal=False, requeue=False, delay=None):
        lease, worker = self.holder(held, how)
        error = {"type": "fatal.error" if fatal else "net.error", "message": "torture"}
        rows = self.call("fail", {"id": held.id, "l": lease, "w": worker, "my": held.lease, "fatal": fatal,
                                  "requeue": requeue, "delay": delay},
                         "select state, attempt, extract(epoch from next_attempt_at) from ojs.fail($1::uuid, $2::jsonb,"
                         " lease_id => $3, worker => $4, requeue => $5::boolean, delay => $6::interval)", held.id,
                         json.dumps(error), lease, worker, "true" if requeue else "false",
                         None if delay is None else f"{delay} seconds")
        if rows is not None:
            self.ok([rows[0][0], int(rows[0][1]), finite(rows[0][2])])
            self.drop(held.id)
        elif self.error.startswith("OJ"):
            self.drop(held.id)

    def nack(self, held, how="b", delay=0.0):
        lease, worker = self.holder(held, how)
        rows = self.call("nack", {"id": held.id, "l": lease, "w": worker, "my": held.lease, "delay": delay},
                         "select state, attempt from ojs.nack($1::uuid, $2::interval, lease_id => $3, worker => $4)",
                         held.id, f"{delay} seconds", lease, worker)
        if rows is not None:
            self.ok([rows[0][0], int(rows[0][1])])
            self.drop(held.id)
        elif self.error.startswith("OJ"):
            self.drop(held.id)

    def extend(self, held, lease, how="b"):
        lease_id, worker = self.holder(held, how)
        rows = self.call("extend", {"id": held.id, "l": lease_id, "w": worker, "my": held.lease, "for": lease},
                         "select state from ojs.extend($1::uuid, $2::interval, lease_id => $3, worker => $4)", held.id,
                         f"{lease} seconds", lease_id, worker)
        if rows is not None:
            self.ok([rows[0][0]])
        elif self.error.startswith("OJ"):
            self.drop(held.id)

    def many(self, kind, helds, extra="", extra_value=None, with_leases=True):
        args = {"ids": [h.id for h in helds], "l": [h.lease for h in helds] if with_leases else None,
                "w": self.worker, "my": [h.lease for h in helds]}
        if extra_value is not None:
            args["for"] = extra_value
        third = ", extract(epoch from deadline)" if kind == "extend_many" else ""
        parameters = [self.worker, uuid_list(args["ids"]), uuid_list(args["l"]) if with_leases else None]
        if extra:
            parameters.append(f"{extra_value} seconds")
        rows = self.call(kind, args, f"select done, skipped{third} from ojs.{kind}(worker => $1, job_ids => $2::uuid[],"
                         f" lease_ids => $3::text[]{extra})", *parameters)
        if rows is not None:
            skipped = parse_list(rows[0][1])
            self.ok([int(rows[0][0]), skipped] + ([finite(rows[0][2])] if third else []))
            for h in helds:
                if kind != "extend_many" or h.id in skipped:
                    self.drop(h.id)

    def ack_and_claim(self, queue, helds, n, lease=None):
        args = {"q": queue, "n": n, "w": self.worker, "ids": [h.id for h in helds], "l": [h.lease for h in helds],
                "my": [h.lease for h in helds]}
        rows = self.logged_claim("ack_and_claim", args,
                                 f"select {self.columns} from ojs.ack_and_claim($1, $2, $3::uuid[],"
                                 " lease_ids => $4::text[], max => $5::int, lease => $6::interval)", self.worker,
                                 queue, uuid_list(args["ids"]), uuid_list(args["l"]), str(n),
                                 f"{lease} seconds" if lease else None)
        if rows is not None:
            for h in helds:
                self.drop(h.id)
            self.hold(rows)
        elif self.error.startswith("OJ"):
            for h in helds:
                self.drop(h.id)

    def beat(self, helds, lease=None):
        rows = self.call("beat", {"ids": [h.id for h in helds], "my": [h.lease for h in helds], "w": self.worker,
                                  "for": lease},
                         "select directive, extended, cancelled, lost from ojs.beat($1, $2::uuid[],"
                         " lease => $3::interval)", self.worker, uuid_list([h.id for h in helds]),
                         f"{lease} seconds" if lease else None)
        if rows is not None:
            extended, cancelled, lost = (parse_list(v) for v in rows[0][1:])
            self.ok([rows[0][0], extended, cancelled, lost])
            for id in cancelled + lost:
                self.drop(id)

    def cancel(self, id):
        rows = self.call("cancel", {"id": id}, "select state from ojs.cancel($1::uuid)", id)
        if rows is not None:
            self.ok([rows[0][0]])
            self.drop(id)

    def cancel_batch(self, queue, batch, ids):
        """Cancels the open jobs of a batch by filter, and looks for what is left of them, past all indexes."""
        rows = self.call("cancel_many", {"ids": ids, "batch": batch},
                         "select r ->> 'succeeded', r ->> 'failed' from ojs.cancel_many($1::jsonb, confirm => true) r",
                         json.dumps({"queue": queue, "meta": {"batch": batch}}))
        if rows is not None:
            left = self.connection.query("select id from unnest($1::uuid[]) id where not exists"
                                         " (select from ojs_store.finished f where f.job_id = id)", uuid_list(ids))
            self.ok([int(rows[0][0]), int(rows[0][1]), [r[0] for r in left]])

    def activate(self, id):
        rows = self.call("activate", {"id": id}, "select state from ojs.activate($1::uuid)", id)
        if rows is not None:
            self.ok([rows[0][0]])

    def tick(self):
        rows = self.call("tick", {}, "select ojs.tick()")
        if rows is not None:
            self.ok(1)

    def configure(self, queue, key, value):
        """Sets one setting that no other session sets, and reads what has become of it."""
        rows = self.call("configure_queue", {"q": queue, "key": key, "value": value},
                         "select ojs.configure_queue($1, $2::jsonb)", queue, json.dumps({key: value}))
        if rows is not None:
            self.ok(1)
            rows = self.call("read_setting", {"q": queue, "key": key, "value": value},
                             "select config ->> $2 from ojs.queues where name = $1", queue, key)
            if rows is not None:
                self.ok(rows[0][0])

    def simple(self, kind, queue):
        rows = self.call(kind, {"q": queue}, f"select ojs.{kind}($1)", queue)
        if rows is not None:
            self.ok(1)
