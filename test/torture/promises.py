"""promises.py: what is checked, one method per kind of promise. See docs/reliability.md."""

import bisect
from collections import defaultdict

import client

GRACE = 1.0         # a late commit may be passed by for so long
WAKE = 2.5          # a waiting claim learns of a job within so long, however busy the machine
PROMPT = 0.1        # and mostly within so long, where the extension is preloaded and little else goes on
SLOW = 9.0          # a call that need not wait for anyone takes no longer
EPSILON = 0.002

# What a call may be refused with, beside what the faults cause.
FAULTS = {"57P01", "57P02", "57P03", "57014", "40001", "40P01", "25P02", "08006", "08003"}
NOT_HELD = {"OJ105", "OJ302", "OJ303", "OJ311"}
REFUSALS = {
    "push": {"OJ301"}, "ack": NOT_HELD, "fail": NOT_HELD, "nack": NOT_HELD, "extend": NOT_HELD,
    "ack_and_claim": NOT_HELD, "cancel": {"OJ105", "OJ302", "OJ303", "OJ300"}, "activate": {"OJ105", "OJ302", "OJ303",
                                                                                           "OJ300"},
}
ENDS = {"ack", "fail", "nack", "ack_many", "nack_many", "ack_and_claim"}
CLAIMS = {"claim", "ack_and_claim", "work_next"}

# Every name under which something may be found.
PROMISES = (
    "no call fails but as documented",
    "no claim and no push waits for another's transaction",
    "a claim hands out active jobs of the queues that were asked for",
    "the jobs of one claim are in order of queue, priority and seq",
    "a claim hands out no more than it was asked for",
    "a transaction commits as a whole",
    "a push makes one job",
    "every job was pushed by someone",
    "a rolled back push leaves nothing",
    "a push answers the id of its job",
    "no committed push is lost",
    "a job is finished once",
    "a claim hands out what was pushed",
    "no two holders at once",
    "a job is delivered within its budget",
    "an at-most-once job is delivered once",
    "each delivery is counted",
    "a crash forgets no more than the leases of its moment",
    "each delivery is counted once",
    "each attempt is counted once",
    "each attempt is counted",
    "a pending job waits for its activation",
    "no job runs before its time",
    "no retry before its time",
    "no stale holder can act on a job",
    "a crash voids the leases of its moment",
    "who holds a lease can use it",
    "no job is completed twice",
    "an acknowledged job is completed",
    "a completed job was acknowledged",
    "a cancelled job stays so",
    "a cancelled job was cancelled by someone",
    "a job is discarded for a reason",
    "a discarded job stays so",
    "a finished job is never handed out",
    "effects happen once",
    "effects exist only where the job is completed",
    "effects exist where the job is completed",
    "priority, then first in first out, for one claimer",
    "a claim that comes back short leaves nothing behind",
    "who waits in a claim learns of a commit soon",
    "no two open jobs of one uniqueness key",
    "no two jobs of one deduplication key within its time",
    "nothing is handed out of a paused queue",
    "every job is in exactly one place",
    "nothing is stuck",
    "nothing is left of finished jobs",
    "statistics agree with the rows",
    "the server itself is sound",
    "a lease id is never given twice",
)


def id_may_be(op, queue):
    asked = op.args.get("q")
    return queue in asked if isinstance(asked, list) else queue == asked


class Promises:
    """The checks; checker.py has what they stand on."""

    def check_answers(self):
        """No call fails in a way that nobody promised, none hangs, and what one call hands out is in order."""
        for op in self.h.ops:
            if op.status == "err":
                sqlstate = op.result[0]
                allowed = REFUSALS.get(op.kind, ())
                if sqlstate == "OJ300" and "id" in op.args:     # of a job whose push was rolled back
                    push = self.pushes.get(op.args["id"])
                    allowed = allowed if push is not None and push.certain else {"OJ300"}
                if sqlstate == "OJ300" and op.kind == "ack_and_claim":
                    allowed = {"OJ300"}
                # the server's own complaint about the machine's kernel: a file's end that moved back for a moment
                machine = sqlstate == "XX000" and "unexpected data beyond EOF" in op.result[1]
                if sqlstate not in FAULTS and sqlstate not in allowed and sqlstate not in ("OJ700", "55P03") \
                        and not machine:
                    self.bad("no call fails but as documented", f"{op.kind} by {op.client}: {op.result}",
                             op.args.get("id"))
            if op.status == "ok" and op.t1 - op.t0 > SLOW + op.args.get("wait", 0) and not self.disturbed(op.t0, op.t1):
                if op.kind in ("claim", "ack_and_claim", "push", "push_many") and "uniq" not in op.args \
                        and "key" not in op.args and "id" not in op.args:
                    self.bad("no claim and no push waits for another's transaction",
                             f"{op.kind} by {op.client} took {op.t1 - op.t0:.1f} s")
            if op.kind in CLAIMS and op.status == "ok":
                asked = op.args["q"] if isinstance(op.args["q"], list) else [op.args["q"]]
                last = None
                for row in op.result:
                    if row[9] != "active" or row[8] not in asked:
                        self.bad("a claim hands out active jobs of the queues that were asked for",
                                 f"{op.client} got {row}", row[0])
                        continue
                    key = (asked.index(row[8]), -row[6], row[7])
                    if last is not None and key < last:
                        self.bad("the jobs of one claim are in order of queue, priority and seq", f"{op.client}: {key}"
                                 f" after {last}", row[0])
                    last = key
                if len(op.result) > op.args["n"]:
                    self.bad("a claim hands out no more than it was asked for", f"{op.client} got {len(op.result)}")

    def disturbed(self, t0, t1):
        """Whether the server or its worker went away between."""
        return any(a < t1 and b > t0 for a, b, kind in self.h.faults
                   if kind not in ("clock", "snapshot", "hold", "kill client", "terminate", "cancel"))

    def settle_unknown(self):
        """A transaction without an answer has committed where any of its pushes is there: then all of it is."""
        stored = {job["tag"]: job for job in self.h.final["jobs"]}
        self.stored_tags = stored
        for tx in self.h.txs:
            if tx.status != "unknown":
                continue
            tags = []
            for op in tx.ops:
                if op.status == "ok" and not op.void:
                    if op.kind == "push" and not op.result[4]:
                        tags.append(op.args["tag"])
                    elif op.kind == "push_many":
                        tags.extend(op.args["tags"])
            there = [t in stored for t in tags]
            if any(there):
                if not all(there):
                    lost = tags[there.index(False)]
                    self.bad("a transaction commits as a whole", f"{tx.client}, transaction {tx.number}: {lost} is"
                             " missing")
                tx.status = "ok"
                if tx.t1 is None:
                    tx.t1 = self.horizon

    def check_stored(self):
        """No committed push is lost, and nothing is there that nobody pushed."""
        seen = set()
        for job in self.h.final["jobs"]:
            tag = job["tag"]
            if tag in seen:
                self.bad("a push makes one job", f"{tag} is there twice", job["id"])
            seen.add(tag)
            if tag not in self.tags:
                self.bad("every job was pushed by someone", f"nobody pushed {tag}", job["id"])
                continue
            op, i = self.tags[tag]
            if not op.possible:
                self.bad("a rolled back push leaves nothing", f"{tag} of {op.client} was rolled back", job["id"])
                continue
            if op.status == "ok":
                id = op.result[i] if op.kind == "push_many" else op.result[0]
                if id != job["id"]:
                    self.bad("a push answers the id of its job", f"{tag}: {id} is {job['id']}", id, job["id"])
            self.pushes.setdefault(job["id"], op)
        self.stored = {job["id"]: job for job in self.h.final["jobs"]}
        for tag, (op, i) in self.tags.items():
            if op.certain and tag not in seen and not (op.kind == "push" and op.result[4]):
                id = op.result[i] if op.kind == "push_many" else op.result[0]
                self.bad("no committed push is lost", f"{tag} of {op.client} is gone", id)
        self.done = {}
        for done in self.h.final["done"]:
            if done["job_id"] in self.done:
                self.bad("a job is finished once", "it has two rows", done["job_id"])
            self.done[done["job_id"]] = done
        self.events = defaultdict(list)
        for event in self.h.final["events"]:
            self.events[event["job_id"]].append(event)

    def earliest_end(self, claim, until):
        """The earliest time of the database's clock at which the lease of `claim` may have run out before `until`."""
        candidates = [claim.deadline]
        for op, kind in self.acts[claim.id]:
            if op.t0 > until:
                break
            if kind not in ("extend", "extend_many", "beat") or op.void or not (op.possible or op.status == "ok"):
                continue
            if not self.affected(op, claim.id) or self.lease_of(op, claim.id) != claim.lease:
                continue
            if kind == "beat" and op.args["for"] is None:
                length = claim.deadline - claim.started
            else:
                length = op.args["for"]
            low = self.clock_min(op.t0) + max(length, 0.1)
            # without its id the call may have reached the lease of somebody who got the job since
            if op.certain and op.after <= until and self.token_given(op):
                candidates = [low]
            else:
                candidates.append(low)
        # death of a worker that used to beat, and the time limit of an attempt
        for beats in (self.last_beat.get(claim.op.args["w"]),):
            if beats:
                i = bisect.bisect_right(beats, until)
                if i:
                    candidates.append(self.clock_min(beats[i - 1]) + 30)
        push = self.pushes.get(claim.id)
        if push is not None and push.args.get("timeout"):
            candidates.append(claim.started + push.args["timeout"])
        return min(candidates)

    def excuses(self, claim, until):
        """Whether somebody may have ended this lease before `until`, other than by waiting for its end."""
        for op, kind in self.acts[claim.id]:
            if op.t0 >= until:
                break
            if kind in ("extend", "extend_many", "beat", "effect", "activate"):
                continue
            if op.void and (op.tx is None or op.tx.client != claim.op.client):
                pass    # rolled back later, but perhaps after `until`: it counts
            if op.status == "err" or not self.affected(op, claim.id):
                continue
            if kind == "cancel":
                if op.possible or op.t1 is None or op.tx is not None:
                    return True
                continue
            # an end of this lease, or one that named no lease
            if self.token_given(op) and self.lease_of(op, claim.id) != claim.lease:
                continue
            if op.possible or (op.tx is not None and (op.tx.t1 is None or op.tx.t1 >= until)):
                return True
        queue_ops = claim.op.kind == "work_next"
        push = self.pushes.get(claim.id)
        return queue_ops or (push is not None and "uniq" in push.args)

    def check_job(self, id):
        claims, acts = self.claims.get(id, ()), self.acts.get(id, ())
        push = self.pushes.get(id)
        stored = self.stored.get(id)
        done = self.done.get(id)
        known = [c for c in claims if c.op.certain]
        if push is None and known:
            self.bad("a claim hands out what was pushed", "nobody pushed it", id)
            return
        if stored is None:
            ended = [op for op, kind in acts if kind in ENDS and op.certain and self.affected(op, id)]
            if ended and push is not None and not push.certain and not self.h.crashes:
                self.bad("no committed push is lost", "it was worked on and is gone", id)
            return
        self.check_holders(id, known)
        self.check_counts(id, claims, known, push)
        self.check_times(id, known, push)
        self.check_calls(id, claims, acts)
        self.check_finish(id, claims, acts, done)

    def check_holders(self, id, known):
        """No two holders at once: a job is handed out again only when the lease before it has ended."""
        for a, b in zip(known, known[1:]):
            if a.op.era != b.op.era or (a.op is not b.op and a.op.tx is not None and a.op.tx is b.op.tx):
                continue
            if self.excuses(a, b.op.t1):
                continue
            end = self.earliest_end(a, b.op.t1)
            if self.clock_max(b.op.t1) < end:
                self.bad("no two holders at once",
                         f"{a.op.client} held {a.lease} until {end:.3f} at least, and {b.op.client} got {b.lease} at"
                         f" {self.clock_max(b.op.t1):.3f} at most", id)

    def check_counts(self, id, claims, known, push):
        """Attempts and deliveries go up by one with each claim, within the budget; a crash forgets those in flight."""
        limit = None
        if push is not None:
            limit = max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")])
        for claim in claims:
            if limit is not None and claim.attempt > limit:
                self.bad("a job is delivered within its budget", f"attempt {claim.attempt} of {limit}", id)
        if push is not None and push.args.get("amo") and len(known) > 1:
            self.bad("an at-most-once job is delivered once", " and ".join(f"to {c.op.client}" for c in known), id)
        for a, b in zip(known, known[1:]):
            same = a.op.era == b.op.era
            if same and b.deliveries <= a.deliveries and a.op is not b.op:
                self.bad("each delivery is counted", f"{a.lease} and {b.lease} are both number {b.deliveries}", id)
            if not same and b.deliveries < a.deliveries + (0 if self.open_at_crash(a) else 1):
                self.bad("a crash forgets no more than the leases of its moment",
                         f"delivery {b.deliveries} after delivery {a.deliveries}", id)
            if not same and b.attempt < a.attempt and b.attempt < a.attempt - self.refunds(id, a, b):
                self.bad("a crash forgets no more than the leases of its moment",
                         f"attempt {b.attempt} after attempt {a.attempt}", id)
            if b.deliveries > a.deliveries + 1 and b.deliveries > a.deliveries + 1 + self.unknown(a.queue, b.op.t1):
                self.bad("each delivery is counted once", f"{a.deliveries}, then {b.deliveries}", id)
            if b.attempt > a.attempt + 1 and b.attempt > a.attempt + 1 + self.unknown(a.queue, b.op.t1):
                self.bad("each attempt is counted once", f"{a.attempt}, then {b.attempt}", id)
            if same and b.attempt <= a.attempt and b.attempt <= a.attempt - self.refunds(id, a, b):
                self.bad("each attempt is counted", f"{a.attempt}, then {b.attempt}", id)
        if known and known[0].deliveries > 1 and known[0].deliveries > 1 + self.unknown(known[0].queue, known[0].op.t1):
            self.bad("each delivery is counted once", f"the first known one is number {known[0].deliveries}", id)

    def unknown(self, queue, until):
        """How many claims of this queue may have happened before `until` without anybody's knowing what they got."""
        return sum(1 for op in self.unknown_claims if id_may_be(op, queue) and op.t0 <= until)

    def open_at_crash(self, claim):
        """Whether this lease may have been in force when the server crashed."""
        for op, kind in self.acts[claim.id]:
            if kind in ENDS and op.era == claim.op.era and op.certain and self.affected(op, claim.id) \
                    and self.lease_of(op, claim.id) == claim.lease:
                return False
        return True

    def refunds(self, id, a, b):
        """How many attempts may have been given back between two claims: releases refund one each."""
        n = 0
        for op, kind in self.acts[id]:
            if kind in ("nack", "nack_many") or (kind == "fail" and op.args.get("requeue")):
                if op.possible and self.affected(op, id) and a.op.t0 <= (op.t1 or self.horizon) and op.t0 <= b.op.t1:
                    n += 1
        return n + sum(1 for op in self.unknown_claims if op.kind == "work_next") + (b.op.kind == "work_next") \
            + (a.op.era != b.op.era)

    def check_times(self, id, known, push):
        """Nothing runs before its time: the schedule, the delay of a retry, the delay of a release."""
        if not known:
            return
        if push is not None and push.kind == "push":
            due = push.args.get("sched", 0)
            if "delay" in push.args:
                due = self.clock_min(push.t0) + push.args["delay"]
            if push.args.get("pending") and not any(k == "activate" and op.status != "err" for op, k in self.acts[id]):
                self.bad("a pending job waits for its activation", f"{known[0].op.client} got it", id)
            if self.clock_max(known[0].op.t1) < due and not str(push.args.get("uniq", "")).count("schedule"):
                self.bad("no job runs before its time", f"scheduled for {due:.3f}, handed to {known[0].op.client} at"
                         f" {self.clock_max(known[0].op.t1):.3f} at most", id)
        for op, kind in self.acts[id]:
            if not op.certain or kind not in ("fail", "nack", "nack_many") or not self.affected(op, id):
                continue
            if kind == "fail" and not op.args["requeue"]:
                if op.result[0] != "retryable":
                    continue
                retry = known[0].retry
                wait = op.args["delay"] if op.args["delay"] is not None else client.RETRIES[retry][1]
            else:
                wait = op.args.get("delay") or op.args.get("for") or 0
            # the first handing out that surely came after it
            due = self.clock_min(op.t0) + wait
            if kind == "fail" and not op.args["requeue"] and op.result[2] is not None and op.result[2] < due - 0.01:
                self.bad("no retry before its time", f"due at {op.result[2]:.3f}, but the policy says {due:.3f}", id)
            mine = self.leases.get(self.lease_of(op, id))
            if mine is None:
                continue
            for claim in known:
                if claim.deliveries > mine.deliveries and claim.op.era >= op.era and claim.op.t1 > op.t0:
                    if self.clock_max(claim.op.t1) < due:
                        self.bad("no retry before its time", f"given back until {due:.3f}, handed to"
                                 f" {claim.op.client} at {self.clock_max(claim.op.t1):.3f} at most", id)
                    break

    def check_calls(self, id, claims, acts):
        """Who holds a job may finish it, and nobody else."""
        known = [c for c in claims if c.op.certain]
        for op, kind in acts:
            if kind in ("cancel", "activate", "effect") or op.status in (None, "dead"):
                continue
            mine = self.leases.get(self.lease_of(op, id))
            if mine is None:
                continue
            done = op.status == "ok" and self.affected(op, id)
            own_tx = op.tx is not None and mine.op.tx is op.tx
            if done:
                token = self.token_given(op)
                if not token and not op.args.get("w") and kind != "beat":
                    continue        # named nobody: then being active is enough
                for other in known:
                    if other is mine or (not token and other.op.args["w"] == op.args.get("w")):
                        continue
                    later = (other.op.era, other.deliveries) > (mine.op.era, mine.deliveries)
                    if later and other.op.after < op.t0 and (token or not self.newer(known, other, op)):
                        self.bad("no stale holder can act on a job", f"{op.kind} by {op.client} with {mine.lease}, after"
                                 f" {other.op.client} had got {other.lease}", id)
                        break
                if token and mine.op.era != op.era:
                    self.bad("a crash voids the leases of its moment", f"{op.kind} by {op.client} with {mine.lease}", id)
            elif (op.status == "ok" or op.result[0] in NOT_HELD) and kind != "ack_and_claim":
                # refused: was the lease really over?
                if mine.op.era != op.era or not (mine.op.certain or own_tx) or mine.op.void:
                    continue
                if (mine.op.tx is None or own_tx or mine.op.after <= op.t0) and op.t0 >= mine.op.t1 \
                        and not self.excuses(mine, op.t1 - 1e-9 if False else op.t0) \
                        and not self.concurrent_end(mine, op):
                    if self.clock_max(op.t1) < self.earliest_end(mine, op.t1):
                        self.bad("who holds a lease can use it", f"{op.kind} by {op.client} with {mine.lease} was"
                                 f" refused", id)

    def newer(self, known, other, op):
        """Whether the worker itself got the job again after `other` did."""
        return any(c.op.args["w"] == op.args.get("w") and (c.op.era, c.deliveries) > (other.op.era, other.deliveries)
                   for c in known)

    def concurrent_end(self, claim, op):
        """Whether another call that may have ended the lease was under way with `op`."""
        for other, kind in self.acts[claim.id]:
            if other is not op and kind not in ("extend", "extend_many", "beat", "effect") and other.status != "err" \
                    and other.t0 < op.t1 and (other.after or self.horizon) >= op.t0:
                return True
            if other is not op and kind == "cancel" and other.possible and other.t0 < op.t1:
                return True
        return False

    def check_finish(self, id, claims, acts, done):
        state = done["state"] if done else None
        acks = [op for op, kind in acts if kind in ("ack", "ack_many", "ack_and_claim") and op.possible
                and self.affected(op, id)]
        sure = [op for op in acks if op.certain]
        cancels = [op for op, kind in acts if kind == "cancel" and op.possible and op.status != "err"]
        if len(sure) > 1:
            self.bad("no job is completed twice", " and ".join(f"by {op.client} at {op.t1:.3f}" for op in sure), id)
        if sure and state != "completed":
            self.bad("an acknowledged job is completed", f"it is {state or 'open'}", id)
        if state == "completed" and not acks:
            self.bad("a completed job was acknowledged", "nobody did", id)
        if any(op.certain for op in cancels) and state != "cancelled":
            self.bad("a cancelled job stays so", f"it is {state or 'open'}", id)
        push = self.pushes.get(id)
        if state == "cancelled" and not cancels and not (push is not None and "uniq" in push.args):
            self.bad("a cancelled job was cancelled by someone", "nobody did", id)
        if state == "discarded" and push is not None:
            limit = max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")])
            fatal = any(kind == "fail" and op.possible and op.args["fatal"] for op, kind in acts)
            if done["attempt"] < limit and not fatal and "exp" not in push.args and "amo" not in push.args:
                self.bad("a job is discarded for a reason", f"after attempt {done['attempt']} of {limit}", id)
        fails = [op for op, kind in acts if kind == "fail" and op.certain]
        for op in fails:
            if op.result[0] == "discarded" and state != "discarded":
                self.bad("a discarded job stays so", f"it is {state or 'open'}", id)
            if op.result[0] == "retryable" and push is not None \
                    and op.result[1] >= max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")]):
                self.bad("a job is delivered within its budget", f"retryable after attempt {op.result[1]}", id)
        ends = [op.after for op in sure] + [op.after for op in cancels if op.certain] \
            + [op.after for op in fails if op.result[0] == "discarded"]
        if ends:
            end = min(ends)
            for claim in claims:
                if claim.op.t0 > end:
                    self.bad("a finished job is never handed out", f"{claim.op.client} got it {claim.op.t0 - end:.3f} s"
                             " after its end", id)

    def check_effects(self):
        """What was written in the transaction of an ack is there if and only if the job was completed by it."""
        effects = defaultdict(int)
        for effect in self.h.final["effects"]:
            effects[(effect["job_id"], effect["worker"])] += 1
        for (id, worker), n in effects.items():
            done = self.done.get(id)
            if n > 1:
                self.bad("effects happen once", f"{n} of {worker}", id)
            if done is None or done["state"] != "completed":
                self.bad("effects exist only where the job is completed", f"{worker} wrote one", id)
            if not any(kind == "effect" and op.possible and op.client == worker for op, kind in self.acts[id]):
                self.bad("effects exist only where the job is completed", f"{worker} did not commit one", id)
        for id, acts in self.acts.items():
            for op, kind in acts:
                if kind == "effect" and op.certain and (id, op.client) not in effects:
                    self.bad("effects exist where the job is completed", f"{op.client} wrote one that is gone", id)

    def check_order(self):
        """The queue with one claimer: by priority, then by seq, among what had been there for a while."""
        waiting = []        # (there since, -priority, seq, id)
        for id, op in self.pushes.items():
            if op.kind == "push" and op.args["q"] == "fifo" and op.certain and op.status == "ok":
                waiting.append((op.after, -(op.args.get("pr") or 0), op.result[1], id))
        waiting.sort()
        claims = sorted((c for cs in self.claims.values() for c in cs
                         if c.queue == "fifo" and c.op.client.startswith("fifo")), key=lambda c: c.op.t0)
        taken = {}
        for c in claims:
            taken.setdefault(c.id, c.op.t0)
        cancelled = {id for id in (w[3] for w in waiting)
                     for op, kind in self.acts[id] if kind in ("cancel",) and op.status != "err"}
        there, i, last_op = [], 0, None
        for c in claims:
            if c.op.tx is not None or c.deliveries != 1:
                continue
            if c.op is not last_op:
                while i < len(waiting) and waiting[i][0] < c.op.t0 - GRACE:
                    bisect.insort(there, waiting[i][1:])
                    i += 1
                last_op = c.op
            key = (-c.priority, c.seq, c.id)
            while there and there[0] < key:
                first = there[0]
                if taken.get(first[2], 1e18) <= c.op.t0 or first[2] in cancelled:
                    there.pop(0)
                    continue
                if not self.crash_between(c.op.t0 - GRACE, c.op.t1):
                    self.bad("priority, then first in first out, for one claimer",
                             f"seq {c.seq} of priority {c.priority} was handed out while seq {first[1]} of priority"
                             f" {-first[0]} was waiting", c.id, first[2])
                there.pop(0)
        self.counts["order checked"] = len(claims)

    def check_short_claims(self):
        """A claim that comes back short has left nothing that could be claimed: no job is passed over for good."""
        short = defaultdict(list)       # queue -> [(t0, t1)]
        for op in self.h.ops:
            if op.kind == "claim" and op.status == "ok" and op.tx is None and isinstance(op.args["q"], str) \
                    and len(op.result) < op.args["n"]:
                short[op.args["q"]].append((op.t0, op.t1))
        for found in short.values():
            found.sort()
        touches = defaultdict(list)     # job -> when somebody had it, for good or not
        for claim in self.leases.values():
            op = claim.op
            touches[claim.id].append((op.t0, op.t1 if op.tx is None else op.tx.t1 or self.horizon, op.certain))
        ends = [c[0] for c in self.h.crashes] + [self.horizon]
        for id, push in self.pushes.items():
            args = push.args
            if not push.certain or args["q"] not in client.QUEUES or {"delay", "sched", "pending", "exp"} & set(args):
                continue
            since = push.after
            for t0, t1, certain in sorted(touches[id]) + [(self.horizon, self.horizon, True)]:
                self.passed_over(id, since, t0, ends, short[args["q"]])
                since = max(since, t1)
                if certain:
                    break

    def passed_over(self, id, since, until, ends, short):
        until = min(until, ends[bisect.bisect_left(ends, since)]) if since < ends[-1] else since
        for op, kind in self.acts[id]:
            if op.status != "err":
                until = min(until, op.t0)
        i = bisect.bisect_left(short, (since + GRACE, 0))
        n = 0
        while i < len(short) and short[i][1] < until and n < 4:
            i, n = i + 1, n + 1
        if n >= 4:
            self.bad("a claim that comes back short leaves nothing behind", f"claimable since {since:.3f}, and claims"
                     f" came back short from {short[i - n][0]:.3f} on", id)

    def crash_between(self, a, b):
        return any(c[0] < b and c[1] + 2 > a for c in self.h.crashes)

    def check_waits(self):
        """Who waits in a claim learns of a commit soon."""
        commits = sorted(((op.after, op) for op in self.h.ops
                          if op.kind == "push" and op.args["q"] == "wake" and op.certain), key=lambda c: c[0])
        times = [c[0] for c in commits]
        n = 0
        delays = defaultdict(list)      # whether a savepoint was rolled back in the pusher's transaction -> delays
        for op in self.h.ops:
            if op.kind != "claim" or op.args["q"] != "wake" or "wait" not in op.args or op.status != "ok":
                continue
            i = bisect.bisect_left(times, op.t0 + 0.05)
            if i == len(times) or times[i] >= op.t1 or self.disturbed(times[i] - 2, op.t1):
                continue
            n += 1
            push = commits[i][1]
            late = op.t1 - times[i]
            if late > WAKE:
                self.bad("who waits in a claim learns of a commit soon", f"{op.client} waited {late:.2f} s longer",
                         push.result[0])
            if op.t1 >= self.h.crowd_at:
                continue
            delays[push.tx is not None and any(o.void for o in push.tx.ops)].append((late, push))
        for void, found in delays.items():
            late = [d for d in found if d[0] > PROMPT]
            if self.h.preload and len(late) > 2 and len(late) > 0.25 * len(found):
                self.bad("who waits in a claim learns of a commit soon", f"{len(late)} of {len(found)} wake-ups"
                         f" {'after a rollback to a savepoint ' if void else ''}took longer than {PROMPT} s",
                         late[0][1].result[0])
        self.counts["wake-ups checked"] = n

    def lifetime(self, id, push):
        """When the job was surely open: from its commit to the first call that may have ended it."""
        end = self.horizon
        done = self.done.get(id)
        for op, kind in self.acts[id]:
            if (kind in ENDS or kind == "cancel") and op.possible and op.status != "err" and self.affected(op, id):
                if kind in ("nack", "nack_many") or (kind == "fail" and op.status == "ok"
                                                     and op.result[0] != "discarded"):
                    continue
                end = min(end, op.t0)
        if done is not None and done["state"] != "completed":
            # replaced, expired or given up by the server: by its clock, which is never ahead of clock_max
            end = min(end, self.real_time(done["finished_at"]))
        return push.after, end

    def real_time(self, at):
        """The earliest real time at which the database's clock can have said `at`."""
        best = at
        for start, _, offset in self.h.clock:
            best = min(best, max(start, at - offset - EPSILON))
        return best

    def check_unique(self):
        """No two open jobs of one uniqueness key, at any commit."""
        groups = defaultdict(list)
        for id, op in self.pushes.items():
            if op.kind == "push" and "uniq" in op.args and op.certain and id in self.stored:
                start, end = self.lifetime(id, op)
                if start < end:
                    groups[op.args["keyval"]].append((start, end, id))
        n = 0
        for key, spans in groups.items():
            spans.sort()
            last = None
            for span in spans:
                n += 1
                if last is not None and span[0] < last[1] - EPSILON:
                    self.bad("no two open jobs of one uniqueness key", f"key {key}: the second was committed"
                             f" {last[1] - span[0]:.3f} s before the end of the first", last[2], span[2])
                if last is None or span[1] > last[1]:
                    last = span
        self.counts["unique spans checked"] = n

    def check_dedup(self):
        """No two jobs of one deduplication key within its time."""
        groups = defaultdict(list)
        for id, op in self.pushes.items():
            if op.kind == "push" and "key" in op.args and op.certain and op.status == "ok" and not op.result[4]:
                groups[op.args["key"]].append((op.t0, op))
        for key, pushes in groups.items():
            pushes.sort(key=lambda p: p[0])
            for (_, a), (_, b) in zip(pushes, pushes[1:]):
                if self.clock_max(b.t1) < self.clock_min(a.t0) + a.args["ttl"]:
                    self.bad("no two jobs of one deduplication key within its time", f"key {key}", a.result[0],
                             b.result[0])

    def check_pauses(self):
        """Nothing is handed out of a paused queue."""
        pauses = defaultdict(list)
        for op in self.h.ops:
            if op.kind in ("pause_queue", "resume_queue"):
                pauses[op.args["q"]].append(op)
        for queue, ops in pauses.items():
            ops.sort(key=lambda op: op.t0)
            spans = []
            for i, op in enumerate(ops):
                if op.kind == "pause_queue" and op.certain:
                    resumes = [o.t0 for o in ops if o.kind == "resume_queue" and (o.after or self.horizon) > op.t0]
                    spans.append((op.after, min(resumes, default=self.horizon)))
            for claims in self.claims.values():
                for c in claims:
                    if c.queue == queue and any(a < c.op.t0 and c.op.t1 < b for a, b in spans):
                        self.bad("nothing is handed out of a paused queue", f"{c.op.client} got it", c.id)

    def check_audits(self):
        """In every snapshot each job was in exactly one place."""
        for t0, t1, stands, wrong, twins in self.h.audits:
            self.counts["audits"] += 1
            if not stands:
                continue
            for id, places, ends in wrong:
                self.bad("every job is in exactly one place", f"at {t0:.3f} in {places} places, with {ends} ends", id)
            for key, n in twins:
                self.bad("no two open jobs of one uniqueness key", f"at {t0:.3f}, {n} of key {key}")

    def check_end(self):
        """With the faults over and the clock moved on, everything gets finished, and the statistics agree."""
        final = self.h.final
        for id in self.stored:
            if id not in self.done:
                self.bad("nothing is stuck", "it is open at the end", id)
        for name in ("ready", "lease", "later"):
            if final["left"].get(name):
                self.bad("nothing is left of finished jobs", f"{final['left'][name]} rows in {name}")
        for line in final["differences"]:
            self.bad("statistics agree with the rows", line)
        for line in final["server"]:
            self.bad("the server itself is sound", line)
        for name, *note in self.h.notes:
            if note[1] not in FAULTS and not note[1].startswith("40"):
                self.bad("no call fails but as documented", f"{name}: {note}")
