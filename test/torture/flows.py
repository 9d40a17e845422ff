"""flows.py: what is checked of workflows. Their jobs are all in the queue "flows"; nobody pushed them."""

from collections import defaultdict

from history import Op
from limits import *

CALLBACKS = ("on_complete", "on_success", "on_failure")


class Workflow:
    def __init__(self, row):
        self.id, self.root, self.parent, position, self.type, self.state, members = row
        self.position, self.members = int(position or 0), int(members)
        self.ends = {}          # position -> (member, state, time)
        self.jobs = {}          # step or name of a callback -> its jobs
        self.inner = {}         # position -> Workflow
        self.definition = None

    def listed(self):
        return self.definition["steps" if self.type == "chain" else "jobs"]

    def failed(self, upto=None):
        return [p for p, end in sorted(self.ends.items()) if p < (upto or self.members) and end[1] != "completed"]


class Flows:
    """The checks; checker.py has what they stand on."""

    def read_flows(self):
        """Jobs of workflows are taken for pushed once their workflow was."""
        final = self.h.final.get("flows") or {"workflows": [], "ends": [], "steps": [], "mended": 0}
        self.flows = {row[0]: Workflow(row) for row in final["workflows"]}
        self.flow_tags, self.flow_job, self.flow_by_tag = set(final["steps"]), {}, {}
        for workflow, position, member, state, at in final["ends"]:
            ends = self.flows[workflow].ends
            if int(position) in ends:
                self.bad("a member of a workflow ends once, as its job did", f"place {position} of {workflow}", member)
            ends[int(position)] = member, state, float(at)
        for w in self.flows.values():
            if w.parent in self.flows:
                self.flows[w.parent].inner[w.position] = w
        for job in self.h.final["jobs"]:
            if job.get("workflow"):
                step = job["step"] if job["step"] in CALLBACKS else int(job["step"])
                self.flow_tags.add(job["tag"])
                self.flow_job[job["id"]] = job["workflow"], step
                self.flow_by_tag[job["tag"]] = job["id"]
                if job["workflow"] in self.flows:
                    self.flows[job["workflow"]].jobs.setdefault(step, []).append(job["id"])
                op = Op("workflow", 0, None, 0, "begin", {"q": "flows", "retry": job["type"][2:], "tag": job["tag"]}, 0)
                op.t1, op.status = 0, "ok"
                self.pushes[job["id"]] = op
                self.stored_flows[job["id"]] = job

    def marks(self, op):
        """What shows that a call on a workflow has happened: each is there or is not."""
        if op.kind == "create_workflow":
            return [op.args["id"] in self.flows]
        if op.kind == "extend_workflow":
            return [tag in self.flow_tags for tag in op.args["tags"]]
        return []

    def by_hand(self, id, kind):
        return any(k == kind and op.possible and op.status != "err" for op, k in self.acts[id])

    def cancelled_with_workflow(self, id):
        return id in self.flow_job and any(w.state == "cancelled" for w, _ in self.around(*self.flow_job[id]))

    def around(self, workflow, step):
        """The workflows that a member stands in, from within, and where."""
        w = self.flows.get(workflow)
        while w is not None:
            yield w, step
            w, step = self.flows.get(w.parent), w.position

    # --- the checks ---

    def check_flows(self):
        if not self.h.final.get("flows"):
            return
        more = defaultdict(int)     # workflow -> how many members it got later
        for op in self.h.ops:
            if op.kind not in ("create_workflow", "extend_workflow"):
                continue
            marks = self.marks(op)
            if op.certain and not all(marks):
                self.bad("a workflow is stored whole or not at all", f"{op.kind} by {op.client}: {op.args['id']}, a"
                         " part is missing")
            if any(marks) and not op.possible:
                self.bad("a workflow is stored whole or not at all", f"{op.kind} by {op.client} was rolled back, and"
                         f" {op.args['id']} has it")
            if op.kind == "create_workflow" and marks[0]:
                self.define(self.flows[op.args["id"]], op.args["def"])
            elif any(marks):
                more[op.args["id"]] += op.args["n"]
                self.check_added(op)
        for w in self.flows.values():
            self.counts["workflows checked"] += 1
            if w.definition is None:
                self.bad("a workflow is stored whole or not at all", f"nobody made {w.id}")
                continue
            if w.members != len(w.listed()) + more[w.id]:
                self.bad("a workflow is stored whole or not at all", f"{w.id} has {w.members} members, not"
                         f" {len(w.listed())} and {more[w.id]} more")
            self.check_members(w)
            self.check_outcome(w)
        for id, (workflow, step) in self.flow_job.items():
            self.check_turn(id, workflow, step)
        if self.h.final["flows"]["mended"]:
            self.bad("no workflow is left open", f"the check of upkeep has found {self.h.final['flows']['mended']}")

    def check_added(self, op):
        """What a call added stands in that workflow, in its order."""
        begun = [(n, self.flow_by_tag[tag]) for n, tag in enumerate(op.args["tags"]) if tag in self.flow_by_tag]
        places = [self.flow_job[id] for _, id in begun]
        if any(workflow != op.args["id"] for workflow, _ in places) \
                or len({step - n for (n, _), (_, step) in zip(begun, places)}) > 1:
            self.bad("each member of a workflow begins once, when its turn comes", f"{op.client} added"
                     f" {op.args['tags']} to {op.args['id']}, and they are at {places}", *[id for _, id in begun])

    def define(self, w, definition):
        w.definition = definition
        for position, member in enumerate(w.listed()):
            if "args" not in member and position in w.inner:
                self.define(w.inner[position], member)

    def check_members(self, w):
        """Each member begins once if its turn came, in its place, and not otherwise."""
        for position in range(w.members):
            due = w.type != "chain" or position == 0 or w.ends.get(position - 1, (0, 0))[1] == "completed"
            self.check_begun(w, position, due)
            if position < len(w.listed()):
                self.check_tag(w, position, w.listed()[position])
        for name in CALLBACKS:
            job = w.definition.get("callbacks", {}).get(name)
            due = job is not None and (name == "on_complete" or (name == "on_failure") == bool(w.failed()))
            self.check_begun(w, name, due)
            self.check_tag(w, name, job)
        self.check_stopped(w)

    def check_stopped(self, w):
        """Nothing begins whose turn came after a cancel had committed."""
        over = min([op.after for op in self.cancels[w.id] if op.certain], default=None)
        for step in [*w.jobs, *w.inner] if w.state == "cancelled" and over is not None else ():
            places = range(w.members) if step in CALLBACKS else [step - 1] if w.type == "chain" and step > 0 else ()
            turn = max((self.earliest_member_end(*one) for one in self.jobs_below(w, places)), default=0)
            if turn > over:
                self.bad("each member of a workflow begins once, when its turn comes", f"{step} of {w.id} began when"
                         f" its turn came at {turn:.3f}, after the cancel of {over:.3f}", *w.jobs.get(step, [])[:1])
            self.counts["cancels checked"] += bool(places)

    def check_begun(self, w, step, due):
        jobs = w.jobs.get(step, []) + [i.id for i in [w.inner.get(step)] if i]
        callback = step in CALLBACKS
        name = "each callback of a workflow is pushed exactly once" if callback else \
            "each member of a workflow begins once, when its turn comes"
        if len(jobs) > due or (due and not jobs and w.state != "cancelled"):
            self.bad(name, f"{step} of the {w.type} {w.id} ({w.state}): {len(jobs)} times, not {int(due)}",
                     *w.jobs.get(step, [])[:2])
        self.counts["callbacks checked" if callback else "members checked"] += due

    def check_tag(self, w, step, member):
        for id in w.jobs.get(step, ()):
            if member is None or "args" not in member or self.stored_flows[id]["tag"] != member["args"][0]["tag"]:
                self.bad("each member of a workflow begins once, when its turn comes", f"{step} of {w.id} is"
                         f" {self.stored_flows[id]['tag']}", id)

    def check_outcome(self, w):
        """It has ended, as its members did; and they as their jobs did, the first time."""
        for position, (member, state, at) in w.ends.items():
            done, inner = self.done.get(member), w.inner.get(position)
            known = inner.state if inner else done and done["state"]
            if state != {"discarded": "failed"}.get(known, known) and not self.by_hand(member, "retry"):
                self.bad("a member of a workflow ends once, as its job did", f"place {position} of {w.id}: {state},"
                         f" and its job is {known}", member)
        for step, jobs in w.jobs.items():
            if not any(end[0] in jobs for end in w.ends.values()):
                self.bad("no workflow is left open", f"{step} of {w.id} has not ended", *jobs)
        for step, inner in w.inner.items():
            if step not in w.ends:
                self.bad("no workflow is left open", f"{step} of {w.id}, the {inner.type} {inner.id}, has not ended")
        outcome = "completed"
        if (w.failed(10**6) if w.type != "batch" else [p for p in w.failed(10**6) if p >= w.members]):
            outcome = "failed"
        if w.state == "running":
            self.bad("no workflow is left open", f"the {w.type} {w.id} is", *[id for ids in w.jobs.values()
                                                                            for id in ids][:2])
        elif w.state == "cancelled":
            if not any(a.state == "cancelled" and op.possible and op.status != "err"
                       for a, _ in self.around(w.id, None) for op in self.cancels[a.id]):
                self.bad("a workflow ends as its members did", f"nobody cancelled {w.id}")
        elif w.state != outcome:
            self.bad("a workflow ends as its members did", f"{w.id} is {w.state}, not {outcome}")
        if w.state != "cancelled" and any(op.certain for op in self.cancels[w.id]):
            self.bad("a workflow ends as its members did", f"{w.id} was cancelled, and is {w.state}")

    # --- turns and results ---

    def parents(self, workflow, step):
        """The members that come before this one: (workflow, how many of its members), and what they are told as."""
        for w, at in self.around(workflow, step):
            if at in CALLBACKS:
                return w, w.members
            if w.type == "chain" and at > 0:
                return w, at
        return None, 0

    def jobs_below(self, w, places):
        """All jobs that must have ended before the members at these places have."""
        for position in places:
            for id in w.jobs.get(position, ()):
                yield w, position, id
            inner = w.inner.get(position)
            if inner:
                yield from self.jobs_below(inner, range(inner.members))
                for name in CALLBACKS:
                    for id in inner.jobs.get(name, ()):
                        yield inner, name, id

    def check_turn(self, id, workflow, step):
        """It was handed out after the ends of those before it, and was told what these led to."""
        if workflow not in self.flows:
            return self.bad("a workflow is stored whole or not at all", f"{workflow} is not there, and {step} of it is",
                            id)
        w, upto = self.parents(workflow, step)
        claims = [c for c in self.claims.get(id, ()) if c.op.answered]
        for claim in claims[:1]:
            for of, position, other in self.jobs_below(w, range(upto)) if w else ():
                self.counts["turns checked"] += 1
                start = self.earliest_member_end(of, position, other)
                if start > claim.op.t1 and not self.ended_with(other, claim.op.tx):
                    self.bad("no member of a workflow begins before those before it have ended",
                             f"{step} of {workflow} was handed out by {claim.op.t1:.3f}, and a job before it was not"
                             f" done until {start:.3f}", other, id)
                    break
        for claim in claims:
            told = claim.op.told.get(claim.lease)
            if told is None:
                continue
            self.counts["results checked"] += 1
            if not self.results_fit(told.get("parent_results", []), w, upto):
                self.bad("results are handed on", f"{step} of {workflow} was told {told}", id)
            errors = [e["index"] for e in told.get("parent_errors", [{"index": None}])]
            if step in CALLBACKS and errors != w.failed(upto)[:100]:
                self.bad("results are handed on", f"{step} of {workflow} was told of {told.get('parent_errors')}, and"
                         f" {w.failed(upto)} failed", id)

    def earliest_member_end(self, w, step, id):
        """The first moment at which others may have seen the end of this job."""
        state, at = next(((end[1], end[2]) for end in w.ends.values() if end[0] == id), ("", None))
        end = self.horizon if state == "completed" or at is None else self.real_time(at)
        for op, kind in self.acts[id]:
            if kind in ENDS | {"cancel", "discard"} and op.possible and op.status != "err" and self.affected(op, id):
                end = min(end, op.before)
        return end

    def results_fit(self, told, w, upto):
        if w is None:
            return told == []
        return len(told) == upto and all(self.result_fits(told[p], w, p) for p in range(upto))

    def result_fits(self, told, w, position):
        inner = w.inner.get(position)
        if inner:
            return isinstance(told, list) and self.results_fit(told, inner, inner.members)
        member, state, _ = w.ends.get(position, (None, None, None))
        if state != "completed":
            return told is None
        # an ack says its lease, and the calls that end many say nothing
        return any(told == (self.lease_of(op, member) if kind == "ack" else None) for op, kind in self.acts[member]
                   if kind in ("ack", "ack_many", "ack_and_claim") and op.possible and op.status != "err"
                   and self.affected(op, member))
