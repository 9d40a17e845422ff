"""promises.py: what is checked of each job, one method per kind of promise. See docs/explanation/reliability.md."""

import bisect
from collections import defaultdict

import client
from limits import *
from wholes import Wholes


class Promises(Wholes):
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
                if sqlstate not in FAULTS and sqlstate not in allowed and sqlstate not in ("OJ700", "55P03"):
                    self.bad("no call fails but as documented", f"{op.kind} by {op.client}: {op.result}",
                             op.args.get("id"))
            if op.status == "ok" and op.t1 - op.t0 > SLOW + op.args.get("wait", 0) and not self.disturbed(op.t0,
                op.t1) \
                    and op.t1 - op.t0 > SLOW + op.args.get("wait", 0) + HOPS * self.lag(op.t0, op.t1):
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
        stored = {job["tag"]: job for job in self.h.final["jobs"] if not job.get("workflow")}
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
            there = [t in stored for t in tags] + [m for op in tx.ops if op.status == "ok" and not op.void
                                                   for m in self.marks(op)]
            if any(there):
                if not all(there):
                    lost = (tags + ["a workflow"])[min(len(tags), there.index(False))]
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
            if job.get("workflow"):
                continue
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
            named = self.token_given(op) or op.args.get("w") not in (None, claim.op.args["w"])
            if not self.affected(op, claim.id) or (named and self.lease_of(op, claim.id) != claim.lease):
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
            if kind in CANCELS:
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
        known = [c for c in claims if c.op.answered]
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
        kept = self.queue_of(id) == "kept"
        for a, b in zip(known, known[1:]):
            if (a.op.era != b.op.era and not kept) or (a.op is not b.op and a.op.tx is not None and a.op.tx is b.op.tx):
                continue
            if self.excuses(a, b.op.t1):
                continue
            end = self.earliest_end(a, b.op.t1)
            if self.clock_max(b.op.t1) < end:
                self.bad("no two holders at once" if a.op.era == b.op.era else "a durable lease survives a crash",
                         f"{a.op.client} held {a.lease} until {end:.3f} at least, and {b.op.client} got {b.lease} at"
                         f" {self.clock_max(b.op.t1):.3f} at most", id)

    def check_counts(self, id, claims, known, push):
        """Attempts and deliveries go up by one with each claim, within the budget; a crash forgets those in flight."""
        limit = None
        if self.by_hand(id, "retry"):
            return
        if push is not None:
            limit = max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")])
        for claim in claims:
            if limit is not None and claim.attempt > limit:
                self.bad("a job is delivered within its budget", f"attempt {claim.attempt} of {limit}", id)
        if push is not None and push.args.get("amo") and len(known) > 1:
            self.bad("an at-most-once job is delivered once", " and ".join(f"to {c.op.client}" for c in known), id)
        queue = self.queue_of(id)
        for a, b in zip(known, known[1:]):
            same = a.op.era == b.op.era or queue == "kept"
            if not same and queue == "hasty":
                continue
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
        # A work session that ends gives back what it holds.
        return n + sum(1 for op in self.unknown_claims if op.kind == "work_next") + (a.op.kind == "work_next") \
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
            if self.by_hand(id, "retry"):   # which does not wait
                continue
            # the first handing out that surely came after it
            due = self.clock_min(op.t0) + wait
            if kind == "fail" and not op.args["requeue"] and op.result[2] is not None and op.result[2] < due - 0.01:
                self.bad("no retry before its time", f"due at {op.result[2]:.3f}, but the policy says {due:.3f}", id)
            mine = self.leases.get(self.lease_of(op, id))
            if mine is None:
                continue
            for claim in known:
                # without a lease id, the call may have ended the lease of a claim that ran at the same time
                after = claim.op.t1 > op.t0 if self.token_given(op) else claim.op.t0 > op.t1
                if claim.deliveries > mine.deliveries and claim.op.era >= op.era and after:
                    if self.clock_max(claim.op.t1) < due:
                        self.bad("no retry before its time", f"given back until {due:.3f}, handed to"
                                 f" {claim.op.client} at {self.clock_max(claim.op.t1):.3f} at most", id)
                    break

    def check_calls(self, id, claims, acts):
        """Who holds a job may finish it, and nobody else."""
        known = [c for c in claims if c.op.answered]
        kept = self.queue_of(id) == "kept"
        for op, kind in acts:
            if kind in CANCELS | {"activate", "effect", "discard", "retry"} or op.status in (None, "dead"):
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
                        self.bad("no stale holder can act on a job",
                            f"{op.kind} by {op.client} with {mine.lease}, after"
                                 f" {other.op.client} had got {other.lease}", id)
                        break
                self.counts["leases used after a crash"] += kept and mine.op.era != op.era
                if token and mine.op.era != op.era and not kept:
                    self.bad("a crash voids the leases of its moment", f"{op.kind} by {op.client} with {mine.lease}",
                        id)
            elif (op.status == "ok" or op.result[0] in NOT_HELD) and kind != "ack_and_claim":
                # refused: was the lease really over?
                if (mine.op.era != op.era and not kept) or not (mine.op.answered or own_tx) or mine.op.void:
                    continue
                if (mine.op.tx is None or own_tx or mine.op.after <= op.t0) and op.t0 >= mine.op.t1 \
                        and not self.excuses(mine, op.t1 - 1e-9 if False else op.t0) \
                        and not self.concurrent_end(mine, op):
                    if self.clock_max(op.t1) < self.earliest_end(mine, op.t1):
                        self.bad("who holds a lease can use it" if mine.op.era == op.era else
                                 "a durable lease survives a crash", f"{op.kind} by {op.client} with {mine.lease} was"
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
            if other is not op and kind in CANCELS and other.possible and other.t0 < op.t1:
                return True
        return False

    def check_finish(self, id, claims, acts, done):
        state = done["state"] if done else None
        if self.by_hand(id, "retry"):
            return
        acks = [op for op, kind in acts if kind in ("ack", "ack_many", "ack_and_claim") and op.possible
                and self.affected(op, id)]
        sure = [op for op in acks if op.certain]
        cancels = [op for op, kind in acts if kind in CANCELS and op.possible and op.status != "err"]
        # By filter, another may have had the job.
        surely = [op for op in cancels if op.certain and op.kind == "cancel"]
        if len(sure) > 1:
            self.bad("no job is completed twice", " and ".join(f"by {op.client} at {op.t1:.3f}" for op in sure), id)
        if sure and state != "completed":
            self.bad("an acknowledged job is completed", f"it is {state or 'open'}", id)
        if state == "completed" and not acks:
            self.bad("a completed job was acknowledged", "nobody did", id)
        if surely and state != "cancelled":
            self.bad("a cancelled job stays so", f"it is {state or 'open'}", id)
        push = self.pushes.get(id)
        if state == "cancelled" and not cancels and not (push is not None and "uniq" in push.args) \
                and not self.cancelled_with_workflow(id):
            self.bad("a cancelled job was cancelled by someone", "nobody did", id)
        if state == "discarded" and push is not None:
            limit = max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")])
            fatal = any(kind == "fail" and op.possible and op.args["fatal"] for op, kind in acts)
            if done["attempt"] < limit and not fatal and "exp" not in push.args and "amo" not in push.args \
                    and not self.by_hand(id, "discard"):
                self.bad("a job is discarded for a reason", f"after attempt {done['attempt']} of {limit}", id)
        fails = [op for op, kind in acts if kind == "fail" and op.certain]
        for op in fails:
            if op.result[0] == "discarded" and state != "discarded":
                self.bad("a discarded job stays so", f"it is {state or 'open'}", id)
            if op.result[0] == "retryable" and push is not None \
                    and op.result[1] >= max(1, client.MAX_ATTEMPTS[push.args.get("retry", "default")]):
                self.bad("a job is delivered within its budget", f"retryable after attempt {op.result[1]}", id)
        ends = [op.after for op in sure] + [op.after for op in surely] \
            + [op.after for op in fails if op.result[0] == "discarded"]
        if ends:
            end = min(ends)
            for claim in claims:
                if claim.op.t0 > end:
                    self.bad("a finished job is never handed out", f"{claim.op.client} got it {claim.op.t0 - end:.3f} s"
                             " after its end", id)
