"""flow_sessions.py: sessions that make workflows, work on their steps, have them grow and end them, in "flows"."""

import time
import uuid

from client import *
from sessions import Apart

FLOW_COLUMNS = CLAIMED + ", extra, args #>> '{0,in}'"


def new_id(rng):
    """A UUID of version 7."""
    value = int(Clock.now() * 1000) << 80 | rng.getrandbits(80)
    return str(uuid.UUID(int=value & ~(0xf000 << 64) & ~(0xc000 << 48) | 0x7000 << 64 | 0x8000 << 48))


class FlowCalls(Calls):
    """The calls of workflows. Each job bears a tag: that of its workflow, and its place in the definition."""

    columns = FLOW_COLUMNS

    def __init__(self, *args):
        super().__init__(*args)
        self.own = []               # workflows to be looked at or ended
        self.flow_of = {}           # held job -> (its workflow, the type of that)

    def hold(self, rows, fate=None):
        super().hold(rows, fate)
        for row in rows:
            if row[12]:         # the first job of the queue, which was there before, is in none
                self.flow_of[row[0]] = json.loads(row[11])["workflow_id"], row[12]
            self.note_seen(row[0])
        if len(self.flow_of) > 2000:
            self.flow_of = {id: flow for id, flow in self.flow_of.items() if id in self.held}

    def job(self, tag, within, retry="default"):
        job = {"type": "t." + retry, "queue": "flows", "args": [{"tag": tag, "in": within}]}
        return job | {"retry": RETRIES[retry][0]} if RETRIES[retry][0] else job

    def create_workflow(self, definition, tag):
        id = new_id(self.rng)
        rows = self.call("create_workflow", {"id": id, "tag": tag, "def": definition},
                         "select ojs.create_workflow($1::jsonb) ->> 'state'", json.dumps(dict(definition, id=id)))
        if rows is not None:
            self.ok(rows[0][0])
            self.own = self.own[-20:] + [id]
            return id

    def extend_workflow(self, id, members, kind, tags):
        more = {"steps" if kind == "chain" else "jobs": members}
        rows = self.call("extend_workflow", {"id": id, "tags": tags, "n": len(members)},
                         "select ojs.extend_workflow($1::uuid, $2::jsonb) ->> 'state'", id, json.dumps(more))
        if rows is not None:
            self.ok(rows[0][0])

    def cancel_workflow(self, id):
        rows = self.call("cancel_workflow", {"id": id}, "select ojs.cancel_workflow($1::uuid) ->> 'state'", id)
        if rows is not None:
            self.ok(rows[0][0])

    def workflow(self, id):
        rows = self.call("workflow", {"id": id}, "select ojs.workflow($1::uuid) ->> 'state'", id)
        if rows is not None:
            self.ok(rows[0][0])
            return rows[0][0]

    def steer(self, kind, id):
        """By hand: a job that waits is discarded, one that was discarded is tried again."""
        rows = self.call(kind, {"id": id}, f"select state from ojs.{kind}($1::uuid)", id)
        if rows is not None:
            self.ok([rows[0][0]])


class Flows(FlowCalls, Apart):
    """Everything that can be done with workflows, at random."""

    AHEAD = 60      # jobs of one session that nobody has begun, at most

    def __init__(self, *args):
        super().__init__(*args)
        self.ahead = 0
        self.hunger = 0.7

    def take(self):
        rows = self.claim("flows", self.rng.choice((1, 1, 2, 5, 20)), self.rng.choice((0.4, 1, 2, 5)))
        self.ahead = max(0, self.ahead - len(rows or ()))

    def members(self, path, within, n, depth):
        return [self.definition(f"{path}.{i}", depth + 1) if depth < 3 and self.rng.random() < 0.15
                else self.job(f"{path}.{i}", within, self.rng.choice(("default", "fast", "exp", "once")))
                for i in range(n)]

    def definition(self, path, depth=1):
        r = self.rng
        kind = r.choice(("chain", "group", "batch", "batch"))
        list_ = self.members(path, kind, r.choice((1, 2, 3, 4, 6)), depth)
        self.ahead += len(list_)
        if kind == "chain":
            return {"type": kind, "steps": list_}
        out = {"type": kind, "jobs": list_}
        if kind == "batch":
            names = r.sample(("on_complete", "on_success", "on_failure"), r.choice((1, 2, 3)))
            out["callbacks"] = {name: self.job(f"{path}.{name}", kind, "once") for name in names}
        return out

    def produce(self):
        if self.ahead < self.AHEAD:
            tag = self.tag()
            self.create_workflow(self.definition(tag), tag)

    def grow(self, held):
        """Adds to the workflow of a held job, then acknowledges that: in one transaction, as it should be done."""
        id, kind = self.flow_of[held.id]
        n, tag = self.rng.choice((1, 1, 2, 3)), self.tag()

        def body(i):
            if i == 0:
                tags = [f"{tag}.{j}" for j in range(n)]
                self.extend_workflow(id, [self.job(t, kind, "fast") for t in tags], kind, tags)
            else:
                self.ack(held)
            return i == 0
        if self.in_tx:
            body(0) and body(1)
        else:
            self.transaction(body, "read committed", self.rng.random() < 0.85)

    def work(self):
        held = self.rng.choice(list(self.held.values()))
        if self.rng.random() < 0.06 and self.ahead < self.AHEAD and held.id in self.flow_of:
            self.grow(held)
        else:
            super().work()

    def disturb(self):
        r = self.rng
        kind = r.random()
        if kind < 0.2 and self.own:
            self.cancel_workflow(r.choice(self.own))
        elif kind < 0.4 and self.own:
            self.workflow(r.choice(self.own))
        elif kind < 0.7 and self.seen:
            self.steer(r.choice(("discard", "retry", "retry")), r.choice(self.seen))
        else:
            super().disturb()


class Finisher(FlowCalls):
    """Ends the jobs of a Grouper's group, with as many others as there are."""

    def step(self):
        r = self.rng
        rows = self.claim("flows", r.choice((1, 2, 5, 20)), r.choice((1, 2, 5)))
        if not rows and not self.held:
            time.sleep(r.uniform(0.005, 0.03))
        while self.held and not self.world.stopping():
            helds = list(self.held.values())
            kind = r.random()
            if kind < 0.35:
                self.many("ack_many", helds)
            elif kind < 0.5:
                self.ack_and_claim("flows", helds, r.choice((1, 5, 20)), r.choice((1, 2)))
            elif kind < 0.65:
                self.ack(helds[0])
            elif kind < 0.72:
                self.fail(helds[0], fatal=True)
            elif kind < 0.76:
                self.fail(helds[0])
            elif kind < 0.79:
                self.drop(helds[0].id)
            else:
                isolation = r.choices(("read committed", "repeatable read"), (5, 1))[0]
                self.transaction(lambda i: (self.many("ack_many", helds), time.sleep(r.uniform(0, 0.02)))[0],
                                 isolation, r.random() < 0.6)


class Grouper(FlowCalls):
    """Makes a batch of many jobs after the other, each when the one before has ended."""

    running = None

    def step(self):
        if self.running is None:
            tag = self.tag()
            jobs = [self.job(f"{tag}.{i}", "batch", "fast") for i in range(self.world.size)]
            callbacks = {name: self.job(f"{tag}.{name}", "batch", "fast")
                         for name in ("on_complete", "on_success", "on_failure")}
            self.running = self.create_workflow({"type": "batch", "jobs": jobs, "callbacks": callbacks}, tag)
            return
        state = self.workflow(self.running)
        if state is None:           # it has never been made
            self.running = None
        elif state != "running":
            self.running = None
            self.world.groups.value += 1
        time.sleep(0.05)
