"""checker.py: proves from the logs of the sessions and the database at the end that the promises were kept.

It knows what was asked and answered, when, and what became of each transaction; nothing of how the extension works.
A call whose answer never came may or may not have happened: both are allowed, but not half of it. What a crash of the
server may forget are the leases of that moment, with the attempt and the delivery that each had counted.
"""

import bisect
import sys
from collections import defaultdict

from flows import Flows
from history import Claim, History
from keys import OrderingKeys
from limits import CLAIMS, ENDS, EPSILON, LOSSY, PROMISES
from promises import Promises

class Checker(Promises, OrderingKeys, Flows):
    def __init__(self, history, limit=20):
        self.h, self.limit = history, limit
        self.violations = []        # (check, message, job ids)
        self.counts = defaultdict(int)
        self.by_check = defaultdict(int)
        self.clock_starts = [c[0] for c in history.clock]
        self.clock_ends = [c[1] + 3.0 for c in history.clock]
        self.goes_back = any(b[2] < a[2] for a, b in zip(history.clock, history.clock[1:]))
        self.claims = defaultdict(list)     # job -> [Claim], of transactions that may have committed
        self.leases = {}                    # lease -> Claim, of every answer, committed or not
        self.acts = defaultdict(list)       # job -> [(op, what)], everything else that named the job and was answered
        self.pushes = {}                    # job -> op
        self.tags = {}                      # tag -> (op, index)
        self.last_beat = defaultdict(list)  # worker -> [(t0 of beats)]
        self.unknown_claims = []
        self.stored_flows = {}              # job of a workflow -> its row
        self.cancels = defaultdict(list)    # workflow -> calls that cancelled it
        self.horizon = max([op.t1 or op.t0 for op in history.ops], default=0.0)

    def bad(self, check, message, *ids):
        assert check in PROMISES, check
        self.by_check[check] += 1
        if len(self.violations) < self.limit * 20:
            self.violations.append((check, message, [i for i in ids if i]))

    # --- the clock of the database, as far as it is certain ---

    def clock_max(self, t):
        """What the database's clock had said by t at most: it may have been put back since."""
        last = max(0, bisect.bisect_right(self.clock_starts, t) - 1)
        said = t + self.h.clock[last][2]
        if last and self.goes_back:
            said = max([said] + [min(t, self.clock_ends[i + 1]) + self.h.clock[i][2] for i in range(last)])
        return said + EPSILON

    def clock_min(self, t):
        """What it said at t at least."""
        first = max(0, bisect.bisect_right(self.clock_ends, t) - 1)
        last = max(first, bisect.bisect_right(self.clock_starts, t) - 1)
        return t + min(move[2] for move in self.h.clock[first:last + 1]) - EPSILON

    # --- reading the logs ---

    def index(self):
        for op in self.h.ops:
            kind, args, result = op.kind, op.args, op.result
            self.counts["calls"] += 1
            if kind in CLAIMS:
                if op.status == "ok":
                    for row in result:
                        claim = Claim(op, row)
                        if claim.lease in self.leases:
                            self.bad("a lease id is never given twice", f"{claim.lease} was", claim.id)
                        self.leases[claim.lease] = claim
                        if op.possible:
                            self.claims[claim.id].append(claim)
                    self.counts["jobs claimed"] += len(result)
                if op.possible and not op.certain:
                    self.unknown_claims.append(op)
            if kind == "push":
                self.tags[args["tag"]] = (op, 0)
                if op.status == "ok" and not result[4] and op.possible:
                    self.pushes[result[0]] = op
                self.counts["jobs pushed"] += op.status == "ok"
            elif kind == "push_many":
                for i, tag in enumerate(args["tags"]):
                    self.tags[tag] = (op, i)
                if op.status == "ok" and op.possible:
                    for id in result:
                        self.pushes[id] = op
                self.counts["jobs pushed"] += len(args["tags"]) if op.status == "ok" else 0
            elif kind in ("ack", "fail", "nack", "extend", "cancel", "activate", "effect", "discard", "retry"):
                self.acts[args["id"]].append((op, kind))
                self.counts["jobs worked"] += op.status == "ok"
            elif kind in ("ack_many", "nack_many", "extend_many", "ack_and_claim", "beat"):
                for id in set(args["ids"]):
                    self.acts[id].append((op, kind))
                if op.status == "ok":
                    self.counts["jobs worked"] += len(args["ids"])
            elif kind == "cancel_many":
                for id in args["ids"]:
                    self.acts[id].append((op, kind))
            elif kind == "cancel_workflow":
                self.cancels[args["id"]].append(op)
            if kind == "beat" and op.possible:
                self.last_beat[args["w"]].append(op.t0)
        for claims in self.claims.values():
            # what a later era claimed comes later; inside one, deliveries only grow
            claims.sort(key=lambda c: (c.op.era, c.deliveries, c.started))
        for acts in self.acts.values():
            acts.sort(key=lambda a: a[0].t0)

    def queue_of(self, id):
        push = self.pushes.get(id)
        claims = self.claims.get(id)
        return push.args["q"] if push is not None else claims[0].queue if claims else None

    def find_lossy(self):
        """Pushes, ends and releases in a queue that is not durable, and pushes of what may be lost, which were their
        own transaction: a crash soon after may have taken them back."""
        for op in self.h.ops:
            if op.status != "ok" or op.tx is not None or not any(
                    c[0] < op.t1 + LOSSY and c[1] > op.t0 for c in self.h.crashes):
                continue
            if op.kind in ("push", "push_many"):
                op.lossy = op.args["q"] == "hasty" or "amo" in op.args
            elif op.kind in ENDS:
                op.lossy = all(self.queue_of(id) == "hasty" for id in op.args.get("ids", [op.args.get("id")]))
            self.counts["calls that a crash may take back"] += op.lossy

    def affected(self, op, id):
        """Whether an answered call did what it said to this job, and did not skip it."""
        if op.status != "ok":
            return op.status in ("dead", None)
        if op.kind in ("ack_many", "nack_many", "extend_many"):
            return id not in op.result[1]
        if op.kind == "beat":
            return id in op.result[1]
        return True

    def lease_of(self, op, id):
        """The lease that the caller meant."""
        mine = op.args.get("my")
        if isinstance(mine, list):
            return mine[op.args["ids"].index(id)]
        return mine

    def token_given(self, op):
        return bool(op.args.get("l"))

    # --- the checks ---

    def check(self):
        self.index()
        self.find_lossy()
        self.read_flows()
        self.check_answers()
        self.settle_unknown()
        self.check_stored()
        for id in set(self.claims) | set(self.acts) | set(self.pushes):
            self.check_job(id)
        self.check_effects()
        self.check_order()
        self.check_short_claims()
        self.check_waits()
        self.check_keepers()
        self.check_settings()
        self.check_filters()
        self.check_unique()
        self.check_dedup()
        self.check_pauses()
        self.check_places()
        self.check_ordering_keys()
        self.check_flows()
        self.check_pace()
        self.check_hooks()
        self.check_audits()
        self.check_end()
        return self.violations

    # --- telling ---

    def history_of(self, id):
        """All that was said about a job, in order."""
        lines = []
        push = self.pushes.get(id)
        if push is not None:
            lines.append((push.t0, push, "push"))
        for claims in [self.claims.get(id, ())]:
            for c in claims:
                lines.append((c.op.t0, c.op,
                    f"{c.op.kind} gives {c.lease}, attempt {c.attempt}, delivery {c.deliveries},"
                              f" until {c.deadline:.3f} (started {c.started:.3f})"))
        for op, kind in self.acts.get(id, ()):
            lease = self.lease_of(op, id)
            args = {k: v for k, v in op.args.items() if k not in ("id", "ids", "my", "l")}
            what = op.result
            if op.status == "ok" and kind in ("ack_many", "nack_many", "extend_many", "beat", "ack_and_claim"):
                what = "done" if self.affected(op, id) else "skipped"
            lines.append((op.t0, op, f"{kind} {lease or ''}{'' if self.token_given(op) else ' (not named)'} {args}"
                          f" -> {what}"))
        for c in self.h.crashes:
            lines.append((c[0], None, f"--- the server crashed ({c[3]}), era {c[2]} from {c[1]:.3f}"))
        for start, _, offset in self.h.clock[1:]:
            lines.append((start, None, f"--- the clock moved to +{offset:.3f} s"))
        lines.sort(key=lambda line: line[0])
        # only the crashes and clocks around what happened to it
        own = [t for t, op, _ in lines if op is not None]
        text = []
        for t, op, what in lines:
            if op is None:
                if own and own[0] <= t <= own[-1] + 1:
                    text.append(f"  {t:.3f} {what}")
                continue
            tx = "" if op.tx is None else f" in transaction {op.tx.number} ({op.tx.status}" \
                + (f", commit {op.tx.t0:.3f} to {op.tx.t1 or 0:.3f})" if op.tx.t0 else ")")
            if what == "push":
                what = f"push {op.args if op.kind == 'push' else op.kind} -> {op.result if op.kind == 'push' else ''}"
            text.append(f"  {t:.3f} to {op.t1 or 0:.3f} {op.client} (era {op.era}){tx}{' VOID' if op.void else ''}:"
                        f" {what} [{op.status}]")
        for event in getattr(self, "events", {}).get(id, ()):
            text.append(f"  event: {event}")
        for place in self.h.final.get("places", ()):
            if place[0] == id:
                text.append(f"  at the end in {place[1:]}")
        if id in getattr(self, "done", {}):
            text.append(f"  at the end: {self.done[id]}")
        return "\n".join(text)

    def report(self, out=sys.stdout, shown=5):
        """Each kind of violation once, with the shortest history of a job concerned; as comments of TAP."""
        def tell(text):
            out.write("".join(f"# {line}\n" for line in text.split("\n")))
        for check in sorted(self.by_check):
            tell(f"VIOLATION: {check}: {self.by_check[check]} times")
        per_check = defaultdict(list)
        for check, message, ids in self.violations:
            size = sum(len(self.acts.get(i, ())) + len(self.claims.get(i, ())) for i in ids)
            per_check[check].append((size, message, ids))
        for check, found in sorted(per_check.items())[:shown * 3]:
            found.sort(key=lambda f: f[0])
            size, message, ids = found[0]
            tell(f"\n{check}:\n  {message}")
            for id in ids[:2]:
                tell(f" job {id}:\n{self.history_of(id)}")


def check_directory(directory):
    history = History()
    history.load(directory)
    checker = Checker(history)
    checker.check()
    return checker


if __name__ == "__main__":
    result = check_directory(sys.argv[1])
    result.report()
    print(dict(result.counts))
    sys.exit(1 if result.violations else 0)
