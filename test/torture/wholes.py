"""wholes.py: the checks that look at more than one job: effects, order, wake-ups, uniqueness, pauses, the end."""

import bisect
from collections import defaultdict

import client
import sessions
from limits import *


class Wholes:
    """Half of the checks; the other half is in promises.py."""

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
                # a claim whose answer nobody saw may hold the job meanwhile
                hidden = any(id_may_be(op, args["q"]) and since - SLOW <= op.t0 <= t0 for op in self.unknown_claims)
                if not hidden and not self.in_doubt(id, t0):
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

    def in_doubt(self, id, at):
        """A prepared push or end outlives the hot rows that a crash empties: a reconcile pass decides after its end."""
        ids = [id]
        if id in self.flow_job:     # whoever ends a member of a workflow may have begun this one
            roots = {w.root or w.id for w, _ in self.around(*self.flow_job[id])}
            ids += [job for w in self.flows.values() if (w.root or w.id) in roots
                    for jobs in w.jobs.values() for job in jobs]
        ops = [op for job in ids for op, _ in self.acts[job]] + [self.pushes[id]] * (id in self.pushes)
        return any(op.client.startswith("side") and self.crash_between(op.t0, at) for op in ops)

    def check_keepers(self):
        """Who extends its lease in time keeps its job, however long others wait."""
        since = {}      # lease -> (when the last extension was asked for, its length)
        for op in sorted((o for o in self.h.ops if o.client.startswith("keeper")), key=lambda o: o.t0):
            if op.kind == "claim" and op.status == "ok" and op.result:
                since[op.result[0][1]] = op.t0, sessions.Keeper.LEASE
            elif op.kind in ("extend", "ack") and op.args["my"] in since:
                at, length = since[op.args["my"]]
                if op.kind == "extend" and op.t1 and op.t1 - op.t0 > length + HOPS * self.lag(op.t0, op.t1) \
                        and not self.disturbed(op.t0, op.t1) and not self.crash_between(op.t0, op.t1):
                    self.bad("who extends a lease waits for nobody", f"{op.client} waited {op.t1 - op.t0:.1f} s",
                        op.args["id"])
                # who extends may not have heard of the clock's last move, and who reaps the lease has
                moved = not op.t1 or any(a < op.t1 and b > at
                                         for a, b in zip(self.clock_starts[1:], self.clock_ends[1:]))
                if op.status == "ok" and op.kind == "extend":
                    since[op.args["my"]] = op.t0, op.args["for"]
                    self.counts["extensions in time"] += 1
                elif op.status == "err" and op.result[0] in NOT_HELD and op.t0 + 1 + HOPS * self.lag(at,
                    op.t1) < at + length \
                        and not moved and not self.crash_between(at, op.t1) and not self.disturbed(at, op.t1):
                    self.bad("who extends in time keeps its job",
                        f"{op.client}: {op.kind} was refused {op.t1 - at:.2f} s after"
                             f" an extension of {length} s", op.args["id"])

    def check_settings(self):
        """What a session has set, and nobody else sets, is there when it looks."""
        for op in self.h.ops:
            if op.kind == "read_setting" and op.status == "ok" and \
                    op.result != (op.args["value"] and str(op.args["value"])):
                self.bad("no setting is lost to another's",
                    f"{op.client} set {op.args['key']} to {op.args['value']}, and read"
                         f" {op.result}")

    def check_filters(self):
        """Who cancels all jobs of a batch by filter leaves none of them open, but those that it names as failed."""
        for op in self.h.ops:
            if op.kind == "cancel_many" and op.status == "ok":
                succeeded, failed, left = op.result
                self.counts["jobs cancelled by filter"] += succeeded
                if len(left) > failed:
                    self.bad("a call by filter passes over no open job", f"{op.client} cancelled {succeeded} jobs,"
                             f" could not cancel {failed}, and {len(left)} were left", left[0])

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
            # each of the processes that a wake-up goes through may have had to wait for the machine
            late = op.t1 - times[i] - HOPS * self.lag(times[i], op.t1)
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

    def lag(self, t0, t1):
        return sum(seconds for a, b, seconds in self.h.lags if a < t1 and b > t0)

    def lifetime(self, id, push):
        """When the job was surely open: from its commit to the first call that may have ended it."""
        end = self.horizon
        done = self.done.get(id)
        for op, kind in self.acts[id]:
            if kind in ENDS | CANCELS and op.possible and op.status != "err" and self.affected(op, id):
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
        """No two jobs of one deduplication key within its time, in whichever order two calls at a time took it."""
        def may_follow(a, b):
            return self.clock_max(b.t1) >= self.clock_min(a.t0) + a.args["ttl"]

        groups = defaultdict(list)
        for id, op in self.pushes.items():
            if op.kind == "push" and "key" in op.args and op.certain and op.status == "ok" and not op.result[4]:
                groups[op.args["key"]].append((op.t0, op))
        for key, pushes in groups.items():
            pushes.sort(key=lambda p: p[0])
            for (_, a), (_, b) in zip(pushes, pushes[1:]):
                if not may_follow(a, b) and not may_follow(b, a):
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

    def held_spans(self, queue):
        """(start, end, job): when jobs of this queue were held, as far as that is sure."""
        for id, claims in self.claims.items():
            for c in claims:
                if c.queue != queue or not c.op.answered:
                    continue
                start, end = c.op.after, self.real_time(self.earliest_end(c, self.horizon))
                for op, kind in self.acts[id]:
                    # What began before the claim may have waited for it.
                    if kind in ENDS | CANCELS and op.status != "err" \
                            and (op.after or self.horizon) >= c.op.t0:
                        end = min(end, op.t0)
                if queue != "kept":
                    end = min([end] + [crash[0] for crash in self.h.crashes if crash[1] > start])
                if start < end:
                    yield start, end, id

    @staticmethod
    def held_together(spans, most):
        """(time, jobs) of each moment at which more than `most` of these were held."""
        held = set()
        for at, step, id in sorted(s for start, end, id in spans for s in ((start, 1, id), (end, -1, id))):
            (held.add if step > 0 else held.discard)(id)
            if step > 0 and len(held) > most:
                yield at, sorted(held)

    def check_places(self):
        """No more jobs are held at once than the queue's concurrency, as far as it is sure that they are; where leases
        are durable, over crashes too."""
        for queue, most in PLACES.items():
            spans = list(self.held_spans(queue))
            for at, held in self.held_together(spans, most):
                self.bad("no more jobs are held than the queue's concurrency", f"{len(held)} at {at:.3f}", *held)
            self.counts["places checked"] += len(spans)

    def check_pace(self):
        """Of the queue "paced" no more jobs start within a window than its rate, by the database's own times. A crash
        forgets the starts before it. In the end the rate is taken back, so that all gets finished. When the clock is
        moved, others may have seen the end of a window by the time that a call with the old clock starts a job."""
        limit, period = PACE
        starts = defaultdict(list)
        for claims in self.claims.values():
            for c in claims:
                if c.queue == "paced" and c.op.answered and c.op.client != "drain":
                    starts[c.op.era].append(c)
        for found in starts.values():
            found.sort(key=lambda c: c.started)
            for i, last in enumerate(found[limit:]):
                first = found[i]
                if last.started - first.started < period - EPSILON \
                        and not any(self.by_old_clock(c) for c in found[i:i + limit + 1]):
                    self.bad("no more jobs start within a window than the queue's rate", f"{limit + 1} within"
                             f" {last.started - first.started:.3f} s", last.id)
            self.counts["starts checked"] += len(found)

    def by_old_clock(self, claim):
        """Handed out by a call that had not heard yet of the clock's last move, or after the clock was put back."""
        if self.clock_max(claim.op.t0) > claim.started + 1:
            return True
        return any(at < claim.op.t1 and claim.started < at + offset - EPSILON for at, _, offset in self.h.clock[1:])

    def check_hooks(self):
        """Each push of the queue "hooked" went through the enqueue hook, no other was changed, and the other hook wrote
        down each end, in the transaction of the call."""
        ended = self.h.final.get("ended")
        if ended is None:
            return
        completed = defaultdict(int)
        for id, state in ended:
            completed[id] += state == "completed"
        for id, job in self.stored.items():
            hooked = self.queue_of(id) == "hooked"
            if (job["hooked"] == "1") != hooked:
                self.bad("an enqueue hook sees each push", f"its mark is {job['hooked']}", id)
            done = self.done.get(id)
            if hooked and completed[id] != (done is not None and done["state"] == "completed"):
                self.bad("an execution hook runs with the end of the job",
                    f"it has written {completed[id]} rows, and the job is"
                         f" {done['state'] if done else 'open'}", id)
            self.counts["hooked jobs checked"] += hooked

    def check_audits(self):
        """In every snapshot each job was in exactly one place."""
        for t0, t1, stands, wrong, twins in self.h.audits:
            self.counts["audits"] += 1
            if not stands:
                continue
            for id, places, ends in wrong:
                if places == 0 and self.in_doubt(id, t0):
                    continue
                self.bad("every job is in exactly one place", f"at {t0:.3f} in {places} places, with {ends} ends", id)
            for key, n in twins:
                self.bad("no two open jobs of one uniqueness key", f"at {t0:.3f}, {n} of key {key}")

    def check_end(self):
        """With the faults over and the clock moved on, everything gets finished, and the statistics agree."""
        final = self.h.final
        for id in self.stored:
            if id not in self.done:
                self.bad("nothing is stuck", "it is open at the end", id)
        for name in ("ready", "lease", "delayed", "ordering_line", "workflow_open", "workflow_due"):
            if final["left"].get(name):
                self.bad("nothing is left of finished jobs", f"{final['left'][name]} rows in {name}")
        for line in final["differences"]:
            self.bad("statistics agree with the rows", line)
        for line in final["server"]:
            self.bad("the server itself is sound", line)
        for name, *note in self.h.notes:
            if note[1] not in FAULTS and not note[1].startswith("40"):
                self.bad("no call fails but as documented", f"{name}: {note}")
