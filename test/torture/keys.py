"""keys.py: what is checked of jobs with an ordering key. They are all in the queue "ordered"."""

import bisect
from collections import defaultdict

from limits import *


class OrderingKeys:
    """The checks; checker.py has what they stand on."""

    def check_ordering_keys(self):
        """One job of a key is handed out at a time. A strict one holds back its successors from its push to its end, a
        relaxed one until it is handed out for the first time."""
        keys = defaultdict(list)        # key -> [(seq, job)]
        for id, push in self.pushes.items():
            if "okey" in push.args and id in self.stored:
                keys[push.args["okey"]].append((int(self.stored[id]["seq"]), id))
        spans = defaultdict(list)
        for start, end, id in self.held_spans("ordered"):
            push = self.pushes.get(id)
            if push is not None and "okey" in push.args:
                spans[push.args["okey"]].append((start, end, id))
        for key, jobs in keys.items():
            jobs.sort()
            for at, held in self.held_together(spans[key], 1):
                self.bad("one job of an ordering key is handed out at a time", f"{len(held)} of {key} at {at:.3f}",
                         *held)
            self.check_order_of_push(key, jobs)
            self.check_line(key, jobs)

    def check_order_of_push(self, key, jobs):
        """Who pushes after the answer of another push comes behind it; jobs of one push_many in its order."""
        latest, whose, index = 0.0, None, -1    # the latest start of a push so far; the last job's index in its push
        for _, id in jobs:
            push = self.pushes[id]
            if push.status != "ok":
                continue
            before, index = index, self.tags[self.stored[id]["tag"]][1]
            if push.t1 < latest or (whose is not None and push is self.pushes[whose] and index < before):
                self.bad("jobs of an ordering key are handed out in order of push",
                         f"key {key}: the push answered at {push.t1:.3f} came behind one that began at {latest:.3f}",
                         whose, id)
            if push.t0 >= latest:
                latest, whose = push.t0, id

    def check_line(self, key, jobs):
        """No job was handed out while one before it surely held it back."""
        before = []     # (until when it does so, job), by that time, the latest first
        for _, id in jobs:
            for claim in self.claims.get(id, ()):
                self.counts["claims of ordering keys checked"] += claim.op.answered
                for end, other in before:
                    if not claim.op.answered or end <= claim.op.t1:
                        break
                    if not self.in_doubt(other, claim.op.t1) and not self.ended_with(other, claim.op.tx):
                        self.bad("jobs of an ordering key are handed out in order of push", f"key {key}:"
                                 f" {claim.op.client} got it by {claim.op.t1:.3f}, and one before it was not done until"
                                 f" {end:.3f}", other, id)
                        break
            end = self.holds_back_until(id)
            if end is not None:
                bisect.insort(before, (end, id), key=lambda one: -one[0])

    def ended_with(self, id, tx):
        return tx is not None and any(op.tx is tx for op, _ in self.acts[id])

    def holds_back_until(self, id):
        """The first moment at which its successors may be let go, as far as others than its own transaction see it."""
        push, done = self.pushes[id], self.done.get(id)
        if not push.certain:
            return None
        end = self.horizon
        relaxed = push.args["ordering"] == "relaxed"
        if relaxed and {"delay", "pending", "sched"} & set(push.args):
            return None     # it goes to the end of the line when it is due
        for op, kind in self.acts[id]:
            if op.possible and op.status != "err" and (relaxed or self.may_end(op, kind, id)):
                end = min(end, op.before)
        if done is not None and done["state"] != "completed":
            end = min(end, self.real_time(done["finished_at"]))
        if relaxed:
            ops = [c.op for c in self.claims.get(id, ())]
            ops += [op for op in self.unknown_claims if id_may_be(op, "ordered") and (op.t1 or self.horizon) >= push.t0]
            end = min([end] + [op.t0 for op in ops])
        return end

    def may_end(self, op, kind, id):
        if kind not in ENDS | {"cancel"} or not self.affected(op, id) or kind in ("nack", "nack_many"):
            return False
        return kind != "fail" or op.status != "ok" or op.result[0] == "discarded"
