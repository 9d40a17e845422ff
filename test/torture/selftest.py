#!/usr/bin/env python3
"""selftest.py: the checker itself, on small histories written by hand: a good one must pass, and each way to break a
promise must be found under its own name.
"""

import sys

sys.dont_write_bytecode = True

import checker
import history as model
import selftest_flows
import selftest_limits


class Story:
    """A history in the making. Times are seconds; jobs, leases and workers have short names."""

    def __init__(self):
        self.logs, self.faults, self.op, self.tx = {}, [["round", {"kind": "story", "preload": True}]], 0, 0
        self.final = {"jobs": [], "done": [], "events": [], "effects": [], "left": {}, "differences": [], "server": []}
        self.eras = {}

    def log(self, who, *line):
        self.logs.setdefault(who, []).append(list(line))
        return self

    def call(self, t, who, kind, args, result=None, error=None, tx=0, dead=False, took=0.01):
        era = sum(1 for f in self.faults if f[0] == "crash" and f[2] <= t)
        if self.eras.get(who) != era:
            self.eras[who] = era
            self.log(who, "conn", t - 0.001, era)
        self.op += 1
        self.log(who, "op", t, self.op, tx, kind, args)
        if dead:
            self.log(who, "dead", t + took, self.op)
        elif error:
            self.log(who, "err", t + took, self.op, error, "")
        else:
            self.log(who, "ok", t + took, self.op, result)
        return self

    def begin(self, t, who):
        self.tx += 1
        self.log(who, "begin", t, self.tx, "read committed")
        return self.tx

    def end(self, t, who, tx, how="ok"):
        if how != "rb":
            self.log(who, "commit", t, tx)
        return self.log(who, "end", t + 0.01, tx, how)

    def crash(self, t):
        self.faults.append(["crash", t, t + 1, 1 + sum(f[0] == "crash" for f in self.faults), "kill -9"])
        return self

    def clock(self, t, offset):
        self.faults.append(["clock", t, t, offset])
        return self

    # --- what a job goes through ---

    def push(self, t, job, who="p", stored=True, seq=None, tx=0, result=True, dead=False, took=0.01, **args):
        args, seq = dict({"q": "q", "tag": job}, **args), seq or int(t * 1000)
        self.call(t, who, "push", args, [job, seq, "available", t, not result, None], None, tx, dead, took)
        if stored:
            self.final["jobs"].append({"id": job, "tag": job, "seq": seq, "priority": 0})
        return self

    def row(self, job, lease, t, until, attempt=1, deliveries=1, priority=0, seq=1, queue="q", retry="default"):
        return [job, lease, attempt, deliveries, t, until, priority, seq, queue, "active", retry]

    def claim(self, t, who, *rows, queue="q", tx=0, n=10, took=0.01, **args):
        return self.call(t, who, "claim", dict({"q": queue, "n": n, "w": who}, **args), [list(r) for r in rows], tx=tx,
            took=took)

    def give(self, t, who, job, lease, seconds=10, tx=0, **o):
        return self.claim(t, who, self.row(job, lease, t, t + seconds, **o), tx=tx, queue=o.get("queue", "q"))

    def ack(self, t, who, job, lease, error=None, tx=0, done=True, dead=False):
        self.call(t, who, "ack", {"id": job, "l": lease, "w": who, "my": lease}, ["completed", 1, 1], error, tx, dead)
        if done and not error:
            self.done(job, "completed", t)
        return self

    def fail(self, t, who, job, lease, state="retryable", due=None, attempt=1, named=True, took=0.01):
        args = {"id": job, "l": lease if named else None, "w": who if named else None, "my": lease, "fatal": False,
                "requeue": False, "delay": None}
        return self.call(t, who, "fail", args, [state, attempt, due], took=took)

    def extend(self, t, who, job, lease, seconds, took=0.01):
        return self.call(t, who, "extend", {"id": job, "l": lease, "w": who, "my": lease, "for": seconds}, ["active"],
            took=took)

    def cancel(self, t, who, job):
        return self.call(t, who, "cancel", {"id": job}, ["cancelled"])

    def done(self, job, state, t, attempt=1):
        self.final["done"].append({"job_id": job, "state": state, "attempt": attempt, "deliveries": attempt,
                                   "finished_at": t, "error": None})
        return self

    def violations(self):
        history = model.History()
        for who, lines in list(self.logs.items()) + [("faults", self.faults)]:
            history.add_log(who, lines)
        history.final = self.final
        result = checker.Checker(history)
        result.check()
        return result


STORIES = []


def story(expected):
    def add(f):
        STORIES.append((f.__name__, expected, f))
        return f
    return add


@story(None)
def good(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(4, "w2", "a", "l2", attempt=2, deliveries=2)
    s.ack(4.5, "w1", "a", "l1", error="OJ311").ack(5, "w2", "a", "l2").ack(6, "w2", "a", "l2", error="OJ302")
    s.push(1, "b").give(2, "w1", "b", "l3").fail(3, "w1", "b", "l3", due=4.0).give(4.5, "w1", "b", "l4", attempt=2,
                                                                                 deliveries=2).ack(5, "w1", "b", "l4")
    s.push(1, "c", stored=False, dead=True).push(7, "d").give(8, "w1", "d", "l5", 60).crash(9)
    s.give(11, "w2", "d", "l6").ack(12, "w1", "d", "l5", error="OJ311").ack(13, "w2", "d", "l6")
    s.push(1, "e", delay=5).clock(3, 10).give(7, "w1", "e", "l7").cancel(8, "p", "e").done("e", "cancelled", 8)
    tx = s.begin(20, "w3")
    s.push(20.1, "f", who="w3", tx=tx, stored=False).end(20.2, "w3", tx, "rb")
    s.push(21, "g").give(22, "w3", "g", "l8", 2).extend(23, "w3", "g", "l8", 9)
    s.give(34, "w1", "g", "l9", attempt=2, deliveries=2).ack(35, "w1", "g", "l9")
    s.push(40, "h", took=5, key="k", ttl=4).push(41, "i", who="w1", key="k", ttl=2)    # h has waited for i
    s.cancel(46, "p", "h").done("h", "cancelled", 46).cancel(46, "p", "i").done("i", "cancelled", 46)


@story(None)
def good_apart(s):
    s.push(1, "a", q="kept").give(2, "w1", "a", "l1", 60, queue="kept").crash(3).ack(5, "w1", "a", "l1")
    s.push(1, "b", q="hasty", stored=False).push(1, "c", q="hasty").give(2, "w1", "c", "l2", queue="hasty")
    s.ack(2.5, "w1", "c", "l2", done=False).give(6, "w1", "c", "l3", queue="hasty").ack(7, "w1", "c", "l3")
    for i in range(4):
        s.push(10, f"f{i}", q="few").give(11 + i, "w1", f"f{i}", f"m{i}", 2, queue="few").ack(13 + i, "w1", f"f{i}",
            f"m{i}")
    for i in range(11):
        s.push(20, f"p{i}", q="paced").give(21 + 0.2 * i, "w1", f"p{i}", f"n{i}", queue="paced").ack(30, "w1", f"p{i}",
            f"n{i}")


@story(None)
def extended_by_who_named_nobody(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(4, "w2", "a", "l2", 60, attempt=2, deliveries=2)
    s.call(5, "w1", "extend", {"id": "a", "l": None, "w": None, "my": "l1", "for": 1}, ["active"])
    s.ack(7, "w2", "a", "l2", error="OJ311").give(8, "w1", "a", "l3", attempt=3, deliveries=3).ack(9, "w1", "a", "l3")


@story(None)
def failed_by_who_named_no_lease(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).fail(3, "w1", "a", "l1", due=4.0, attempt=2, named=False, took=0.3)
    s.give(3.1, "w2", "a", "l2", attempt=2, deliveries=2).give(4.5, "w3", "a", "l3", attempt=3, deliveries=3)
    s.ack(5, "w3", "a", "l3")


@story("a durable lease survives a crash")
def kept_lease_refused(s):
    s.push(1, "a", q="kept").give(2, "w1", "a", "l1", 60, queue="kept").crash(3).ack(5, "w1", "a", "l1", error="OJ311")


@story("a durable lease survives a crash")
def kept_lease_given_away(s):
    s.push(1, "a", q="kept").give(2, "w1", "a", "l1", 60, queue="kept").crash(3)
    s.give(5, "w2", "a", "l2", queue="kept", attempt=2, deliveries=2)


@story("no committed push is lost")
def lost_long_before_the_crash(s):
    s.push(1, "a", q="hasty", stored=False).crash(9)


@story("no committed push is lost")
def lost_with_the_callers_own(s):
    tx = s.begin(1, "p")
    s.push(1.1, "a", q="hasty", stored=False, tx=tx).end(1.2, "p", tx).crash(2)


def ordered(s, t, job, key="k", ordering="strict", **o):
    return s.push(t, job, q="ordered", okey=key, ordering=ordering, **o)


@story(None)
def in_line(s):
    """One by one: an end, an end and a claim in one transaction, a lapse that is the end; relaxed ones pass."""
    ordered(s, 1, "a"), ordered(s, 1.1, "b"), ordered(s, 1.2, "c", retry="once"), ordered(s, 1.3, "d")
    s.give(2, "w1", "a", "l1", queue="ordered").fail(3, "w1", "a", "l1", due=4.0)
    s.give(4.5, "w1", "a", "l2", attempt=2, deliveries=2, queue="ordered")
    tx = s.begin(5, "w1")
    s.ack(5.1, "w1", "a", "l2", tx=tx).give(5.2, "w1", "b", "l3", tx=tx, queue="ordered").end(6, "w1", tx)
    s.ack(7, "w1", "b", "l3").give(8, "w1", "c", "l4", 1, queue="ordered").done("c", "discarded", 9)
    s.give(10, "w2", "d", "l5", queue="ordered").ack(11, "w2", "d", "l5")
    ordered(s, 1.4, "e", "r", "relaxed"), ordered(s, 1.5, "f", "r", "relaxed")
    s.give(2, "w3", "e", "l6", queue="ordered").fail(3, "w3", "e", "l6", due=4.0)
    s.give(3.5, "w3", "f", "l7", queue="ordered").ack(4, "w3", "f", "l7")
    s.give(5, "w3", "e", "l8", attempt=2, deliveries=2, queue="ordered").ack(6, "w3", "e", "l8")


@story("one job of an ordering key is handed out at a time")
def two_of_a_key(s):
    ordered(s, 1, "a", ordering="relaxed"), ordered(s, 1.1, "b", ordering="relaxed")
    s.give(2, "w1", "a", "l1", 60, queue="ordered").give(3, "w2", "b", "l2", 60, queue="ordered")
    s.ack(4, "w1", "a", "l1").ack(4, "w2", "b", "l2")


@story("jobs of an ordering key are handed out in order of push")
def past_a_retry(s):
    ordered(s, 1, "a"), ordered(s, 1.1, "b")
    s.give(2, "w1", "a", "l1", queue="ordered").fail(3, "w1", "a", "l1", due=4.0)
    s.give(3.5, "w2", "b", "l2", queue="ordered").ack(3.6, "w2", "b", "l2")
    s.give(4.5, "w1", "a", "l3", attempt=2, deliveries=2, queue="ordered").ack(5, "w1", "a", "l3")


@story("jobs of an ordering key are handed out in order of push")
def before_the_commit_of_the_end(s):
    ordered(s, 1, "a"), ordered(s, 1.1, "b")
    tx = s.begin(2.9, "w1")
    s.give(2, "w1", "a", "l1", queue="ordered").ack(3, "w1", "a", "l1", tx=tx)
    s.give(3.5, "w2", "b", "l2", queue="ordered").end(4, "w1", tx).ack(4.5, "w2", "b", "l2")


@story("jobs of an ordering key are handed out in order of push")
def past_a_fresh_one(s):
    ordered(s, 1, "a", ordering="relaxed"), ordered(s, 1.1, "b", ordering="relaxed")
    s.crash(2).give(4, "w2", "b", "l2", queue="ordered").ack(5, "w2", "b", "l2")
    s.give(6, "w1", "a", "l1", queue="ordered").ack(7, "w1", "a", "l1")


@story("jobs of an ordering key are handed out in order of push")
def behind_a_later_push(s):
    ordered(s, 1, "a", seq=20), ordered(s, 2, "b", seq=10)
    s.give(3, "w2", "b", "l2", queue="ordered").ack(5, "w2", "b", "l2")
    s.give(6, "w1", "a", "l1", queue="ordered").ack(7, "w1", "a", "l1")


def with_hooks(s, mark, *ended):
    s.push(1, "a", q="hooked").give(2, "w1", "a", "l1", queue="hooked").ack(3, "w1", "a", "l1")
    s.final["jobs"][0]["hooked"] = mark
    s.final["ended"] = [["a", state] for state in ended]


@story(None)
def hooks_ran(s):
    with_hooks(s, "1", "completed")


@story("an enqueue hook sees each push")
def hook_left_out(s):
    with_hooks(s, None, "completed")


@story("an execution hook runs with the end of the job")
def hook_undone(s):
    with_hooks(s, "1")


@story("no committed push is lost")
def lost(s):
    s.push(1, "a", stored=False)


@story("a rolled back push leaves nothing")
def phantom(s):
    tx = s.begin(1, "p")
    s.push(1.1, "a", tx=tx).end(2, "p", tx, "rb")
    s.done("a", "completed", 3)


@story("every job was pushed by someone")
def from_nowhere(s):
    s.final["jobs"].append({"id": "a", "tag": "a", "seq": 1, "priority": 0})


@story("a transaction commits as a whole")
def half_a_commit(s):
    tx = s.begin(1, "p")
    s.push(1.1, "a", tx=tx).push(1.2, "b", tx=tx, stored=False).end(2, "p", tx, "dead")


@story("no two holders at once")
def two_holders(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 10).give(4, "w2", "a", "l2", attempt=2, deliveries=2)


@story("no two holders at once")
def extension_ignored(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 2).extend(3, "w1", "a", "l1", 10)
    s.give(6, "w2", "a", "l2", attempt=2, deliveries=2)


@story("a lease id is never given twice")
def token_twice(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(5, "w2", "a", "l1", attempt=2, deliveries=2)


@story("no stale holder can act on a job")
def stale_ack(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(4, "w2", "a", "l2", attempt=2, deliveries=2)
    s.ack(5, "w1", "a", "l1")


@story("no stale holder can act on a job")
def stale_extend(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(4, "w2", "a", "l2", attempt=2, deliveries=2)
    s.extend(5, "w1", "a", "l1", 10)


@story("a crash voids the leases of its moment")
def lease_after_crash(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).crash(3)
    s.ack(5, "w1", "a", "l1")


@story("who holds a lease can use it")
def holder_refused(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).ack(3, "w1", "a", "l1", error="OJ311")


@story("no job is completed twice")
def twice(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).ack(3, "w1", "a", "l1").ack(4, "w1", "a", "l1", done=False)


@story("an acknowledged job is completed")
def ack_forgotten(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).ack(3, "w1", "a", "l1", done=False)


@story("a completed job was acknowledged")
def completed_by_nobody(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).done("a", "completed", 3)


@story("a finished job is never handed out")
def after_the_end(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60).ack(3, "w1", "a", "l1").give(4, "w2", "a", "l2", attempt=2,
                                                                             deliveries=2)


@story("a cancelled job stays so")
def cancel_forgotten(s):
    s.push(1, "a").cancel(2, "p", "a").give(3, "w1", "a", "l1").ack(4, "w1", "a", "l1")


@story("no job runs before its time")
def too_early(s):
    s.push(1, "a", delay=5).give(3, "w1", "a", "l1")


@story("a pending job waits for its activation")
def not_activated(s):
    s.push(1, "a", pending=True).give(3, "w1", "a", "l1")


@story("no retry before its time")
def retry_too_early(s):
    s.push(1, "a").give(2, "w1", "a", "l1").fail(3, "w1", "a", "l1", due=3.6)
    s.give(3.2, "w2", "a", "l2", attempt=2, deliveries=2)


@story("no retry before its time")
def short_delay(s):
    s.push(1, "a").give(2, "w1", "a", "l1").fail(3, "w1", "a", "l1", due=3.2)


@story("a job is delivered within its budget")
def over_budget(s):
    s.push(1, "a", retry="once").give(2, "w1", "a", "l1", 1).give(5, "w1", "a", "l2", attempt=2, deliveries=2)


@story("an at-most-once job is delivered once")
def more_than_once(s):
    s.push(1, "a", amo=True).give(2, "w1", "a", "l1").crash(3).give(5, "w1", "a", "l2")


@story("each delivery is counted")
def not_counted(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(5, "w1", "a", "l2", attempt=1, deliveries=1)


@story("each delivery is counted once")
def counted_twice(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 1).give(5, "w1", "a", "l2", attempt=2, deliveries=4)


@story("a crash forgets no more than the leases of its moment")
def crash_forgets(s):
    s.push(1, "a").give(2, "w1", "a", "l1").fail(3, "w1", "a", "l1", due=4).give(5, "w1", "a", "l2", attempt=2,
                                                                               deliveries=2)
    s.fail(6, "w1", "a", "l2", due=7, attempt=2).crash(8)
    s.give(11, "w1", "a", "l3", attempt=1, deliveries=1)


@story("a job is discarded for a reason")
def given_up(s):
    s.push(1, "a").done("a", "discarded", 3, attempt=1)


@story("effects exist only where the job is completed")
def effect_without(s):
    s.push(1, "a").done("a", "cancelled", 3)
    s.cancel(2, "p", "a")
    s.final["effects"].append({"job_id": "a", "attempt": 1, "worker": "w1"})


@story("effects exist where the job is completed")
def effect_lost(s):
    s.push(1, "a").give(2, "w1", "a", "l1", 60)
    tx = s.begin(3, "w1")
    s.ack(3.1, "w1", "a", "l1", tx=tx).call(3.2, "w1", "effect", {"id": "a", "attempt": 1}, 1, tx=tx)
    s.end(3.3, "w1", tx)


@story("priority, then first in first out, for one claimer")
def out_of_order(s):
    s.push(1, "a", q="fifo", seq=10).push(2, "b", q="fifo", seq=20)
    s.give(9, "fifo1", "b", "l1", queue="fifo", seq=20).ack(9.1, "fifo1", "b", "l1")
    s.give(9.2, "fifo1", "a", "l2", queue="fifo", seq=10).ack(9.3, "fifo1", "a", "l2")


@story("priority, then first in first out, for one claimer")
def priority_ignored(s):
    s.push(1, "a", q="fifo", seq=10).push(2, "b", q="fifo", seq=20, pr=5)
    s.give(9, "fifo1", "a", "l1", queue="fifo", seq=10)


@story("a claim that comes back short leaves nothing behind")
def passed_over(s):
    s.push(1, "a", q="crowd0")
    for t in (3, 4, 5, 6):
        s.claim(t, "w1", queue="crowd0")
    s.give(9, "w1", "a", "l1", queue="crowd0").ack(10, "w1", "a", "l1")


@story("the jobs of one claim are in order of queue, priority and seq")
def shuffled(s):
    s.push(1, "a").push(1.1, "b")
    s.claim(2, "w1", s.row("b", "l1", 2, 12, seq=20), s.row("a", "l2", 2, 12, seq=10))


@story("a claim hands out no more than it was asked for")
def too_many(s):
    s.push(1, "a").push(1.1, "b")
    s.claim(2, "w1", s.row("a", "l1", 2, 12, seq=10), s.row("b", "l2", 2, 12, seq=20), n=1)


@story("who waits in a claim learns of a commit soon")
def overslept(s):
    s.call(1, "waiter", "claim", {"q": "wake", "n": 1, "w": "waiter", "wait": 4},
           [s.row("a", "l1", 4.9, 20, queue="wake")], took=4)
    s.push(2, "a", q="wake")


@story("no two open jobs of one uniqueness key")
def twins(s):
    unique = {"uniq": {}, "keyval": 7}
    s.push(1, "a", **unique).push(2, "b", **unique)
    s.cancel(5, "p", "a").cancel(5, "p", "b").done("a", "cancelled", 5)
    s.done("b", "cancelled", 5)


@story("no two jobs of one deduplication key within its time")
def deduplicated(s):
    s.push(1, "a", key="k", ttl=10).push(5, "b", key="k", ttl=10)


@story("nothing is handed out of a paused queue")
def paused(s):
    s.push(1, "a").call(2, "p", "pause_queue", {"q": "q"}, 1).give(3, "w1", "a", "l1")
    s.call(4, "p", "resume_queue", {"q": "q"}, 1)


@story("every job is in exactly one place")
def nowhere(s):
    s.push(1, "a").log("auditor", "audit", 2, 2.1, True, [["a", 0, 0]], [])


@story("nothing is stuck")
def stuck(s):
    s.push(1, "a")


@story("no call fails but as documented")
def strange_error(s):
    s.push(1, "a").call(2, "w1", "claim", {"q": "q", "n": 1, "w": "w1"}, error="23505")


@story("no claim and no push waits for another's transaction")
def blocked(s):
    s.push(1, "a").call(2, "w1", "claim", {"q": "q", "n": 1, "w": "w1"}, [], took=12)


@story("who extends a lease waits for nobody")
def extended_late(s):
    s.push(1, "a", q="long").give(2, "keeper1", "a", "l1", 4, queue="long").extend(5, "keeper1", "a", "l1", 4, took=6)


def refused_at(s, t, ahead=0):
    """The lease was extended for 4 s at 3."""
    s.push(1, "a", q="long").give(2, "keeper1", "a", "l1", 4, queue="long").extend(3, "keeper1", "a", "l1", 4)
    s.claim(t, "w2", s.row("a", "l2", t + ahead, t + ahead + 60, attempt=2, deliveries=2, queue="long"), queue="long")
    s.call(t + 0.1, "keeper1", "extend", {"id": "a", "l": "l1", "w": "keeper1", "my": "l1", "for": 4}, error="OJ311")
    s.ack(9, "w2", "a", "l2")


# The second one was extended by a session that had not heard yet that the clock had moved.
STORIES += [("lapsed_too_early", "who extends in time keeps its job", lambda s: refused_at(s, 4.5)),
            ("lapsed_by_the_new_clock", None, lambda s: refused_at(s.clock(2.9, 10), 3.4, 10))]


def cancelled_by_filter(s, failed, *left):
    s.push(1, "a", q="filtered").push(1, "b", q="filtered")
    s.call(2, "f1", "cancel_many", {"ids": ["a", "b"], "batch": "x"}, [2 - len(left), failed, list(left)])
    for job in left:
        s.give(3, "w1", job, "l" + job, queue="filtered").ack(4, "w1", job, "l" + job)
    s.final["done"] += [dict(job_id=job, state="cancelled", attempt=0, deliveries=0, finished_at=2, error=None)
                        for job in ("a", "b") if job not in left]


STORIES += [("filtered_all", None, lambda s: cancelled_by_filter(s, 0)),
            ("filtered_but_one_that_it_names", None, lambda s: cancelled_by_filter(s, 1, "b")),
            ("filtered_past_one", "a call by filter passes over no open job",
             lambda s: cancelled_by_filter(s, 0, "b"))]


def lapses_while_the_clock_is_ahead(s, ahead):
    """The lease of ten seconds ends at 2, and the clock is right again at 3."""
    s.push(1, "a").give(1.5, "w1", "a", "l1").clock(2, ahead).clock(3, 0)
    s.give(8, "w2", "a", "l2", attempt=2, deliveries=2).ack(9, "w2", "a", "l2")


STORIES += [("lapsed_by_a_clock_put_back", None, lambda s: lapses_while_the_clock_is_ahead(s, 40)),
            ("lapsed_by_no_clock", "no two holders at once", lambda s: lapses_while_the_clock_is_ahead(s, 1))]


@story("statistics agree with the rows")
def miscounted(s):
    s.final["differences"].append("queue q: counted 1, said 2")


@story("the server itself is sound")
def leak(s):
    s.final["server"].append("WARNING:  buffer refcount leak")


def main():
    """Prints TAP without its plan; returns how many stories there were, and how many were judged wrong."""
    failures = 0
    stories = STORIES + selftest_flows.STORIES + selftest_limits.STORIES
    for name, expected, tell in stories:
        s = Story()
        tell(s)
        result = s.violations()
        if expected is None:
            fine = not result.by_check
        else:
            fine = expected in result.by_check
        if not fine:
            failures += 1
            print(f"not ok - the checker judges: {name} "
                  f"(expected {expected or 'nothing'}, got {dict(result.by_check)})")
            result.report()
        else:
            print(f"ok - the checker judges: {name}")
    return len(stories), failures


if __name__ == "__main__":
    n, wrong = main()
    print(f"1..{n}")
    sys.exit(1 if wrong else 0)
