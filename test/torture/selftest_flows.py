"""selftest_flows.py: small histories of one workflow, for selftest.py."""

STORIES = []


def story(expected):
    def add(f):
        STORIES.append((f.__name__, expected, f))
        return f
    return add


def job(tag):
    return {"type": "t.default", "queue": "flows", "args": [{"tag": tag}]}


BATCH = {"type": "batch", "jobs": [job("a"), job("b")], "callbacks": {"on_complete": job("c"), "on_success": job("d")}}
CHAIN = {"type": "chain", "steps": [job("a"), job("b")]}


def made(s, definition, state="completed", t=1, tx=0, there=True):
    s.call(t, "p", "create_workflow", {"id": "w", "tag": "w", "def": definition}, "running", tx=tx)
    s.final["flows"] = {"workflows": [], "ends": [], "mended": 0, "steps": []}
    if there:
        s.final["flows"]["workflows"].append(["w", "w", None, None, definition["type"], state, "2"])


def begun(s, tag, step):
    s.final["jobs"].append({"id": tag, "tag": tag[0], "seq": 1, "priority": 0, "hooked": None, "type": "t.default",
                            "workflow": "w", "step": step})


def run(s, t, tag, step, position, told=(), end="completed", acked=None):
    """A member that begins, is handed out at t, and is acknowledged a second later."""
    begun(s, tag, step)
    s.claim(t, "x", s.row(tag, "l" + tag, t, t + 60, queue="flows"), queue="flows")
    told = {"parent_results": list(told)} | ({"parent_errors": []} if step.startswith("on") else {})
    s.log("x", "told", s.op, {"l" + tag: told})
    s.ack(acked or t + 1, "x", tag, "l" + tag)
    if end:
        s.final["flows"]["ends"].append(["w", position, tag, end, acked or t + 1])


def batch(s, callbacks, state="completed"):
    made(s, BATCH, state)
    run(s, 2, "a", "0", 0)
    run(s, 4, "b", "1", 1)
    for i, name in enumerate(callbacks):
        run(s, 6 + 2 * i, name, "on_complete" if name[0] == "c" else "on_success", 2 + i, ("la", "lb"))


story(None)(lambda s: batch(s, "cd"))
STORIES[-1] = ("good_batch", *STORIES[-1][1:])


@story("each callback of a workflow is pushed exactly once")
def callback_twice(s):
    batch(s, ("c", "d", "d2"))


@story("each callback of a workflow is pushed exactly once")
def callback_never(s):
    batch(s, "c")


def chain(s, second=4, acked=None, told=("la",)):
    made(s, CHAIN)
    run(s, 2, "a", "0", 0, acked=acked)
    run(s, second, "b", "1", 1, told)


story(None)(lambda s: chain(s))
STORIES[-1] = ("good_chain", *STORIES[-1][1:])


@story("no member of a workflow begins before those before it have ended")
def begins_too_early(s):
    chain(s, 4, 5)


@story("results are handed on")
def result_lost(s):
    chain(s, told=(None,))


@story("each member of a workflow begins once, when its turn comes")
def step_lost(s):
    made(s, CHAIN)
    run(s, 2, "a", "0", 0)


@story("no workflow is left open")
def left_open(s):
    batch(s, "cd", "running")


@story("no workflow is left open")
def end_not_counted(s):
    made(s, CHAIN)
    run(s, 2, "a", "0", 0, end=None)


@story("no workflow is left open")
def mended_by_upkeep(s):
    chain(s)
    s.final["flows"]["mended"] = 1


@story("a workflow ends as its members did")
def wrong_outcome(s):
    batch(s, "cd", "failed")


@story("a workflow ends as its members did")
def cancelled_by_nobody(s):
    batch(s, "cd", "cancelled")


@story("a member of a workflow ends once, as its job did")
def wrong_end(s):
    made(s, CHAIN, "failed")
    run(s, 2, "a", "0", 0, end="failed")


@story("a workflow is stored whole or not at all")
def rolled_back_and_there(s):
    tx = s.begin(0.5, "p")
    made(s, CHAIN, t=0.6, tx=tx)
    s.end(0.8, "p", tx, "rb")
    run(s, 2, "a", "0", 0)
    run(s, 4, "b", "1", 1, ("la",))


@story("a workflow is stored whole or not at all")
def committed_and_gone(s):
    made(s, CHAIN, there=False)


BEGINS = "each member of a workflow begins once, when its turn comes"


@story(BEGINS)
def other_place(s):
    made(s, CHAIN)
    run(s, 2, "b", "0", 0)
    run(s, 4, "a", "1", 1, ("lb",))


@story("a member of a workflow ends once, as its job did")
def ends_twice(s):
    chain(s)
    s.final["flows"]["ends"].append(["w", 1, "b", "completed", 5])


def cancelled_chain(s, at):
    """The second step begins when the first is acknowledged, at 5."""
    made(s, CHAIN, "cancelled")
    s.call(at, "p", "cancel_workflow", {"id": "w"}, "cancelled")
    run(s, 2, "a", "0", 0, acked=5)
    run(s, 6, "b", "1", 1, ("la",))


story(None)(lambda s: cancelled_chain(s, 5.5))
STORIES[-1] = ("good_cancel", *STORIES[-1][1:])


@story(BEGINS)
def begins_after_cancel(s):
    cancelled_chain(s, 3)


@story("a workflow ends as its members did")
def cancel_forgotten(s):
    s.call(4.5, "p", "cancel_workflow", {"id": "w"}, "cancelled")
    chain(s)


def grown(s, places, stored=("e", "f")):
    made(s, CHAIN)
    s.call(1.5, "p", "extend_workflow", {"id": "w", "tags": ["e", "f"], "n": 2}, "running")
    s.final["flows"]["steps"] = list(stored)
    s.final["flows"]["workflows"][0][6] = "4"
    told = []
    for place, tag in enumerate(["a", "b", *places]):
        run(s, 2 + 2 * place, tag, str(place), place, told)
        told.append("l" + tag)


story(None)(lambda s: grown(s, "ef"))
STORIES[-1] = ("good_extension", *STORIES[-1][1:])


@story(BEGINS)
def added_in_another_order(s):
    grown(s, "fe")


@story("a workflow is stored whole or not at all")
def extension_lost(s):
    made(s, CHAIN)
    s.call(1.5, "p", "extend_workflow", {"id": "w", "tags": ["e", "f"], "n": 2}, "running")
    run(s, 2, "a", "0", 0)
    run(s, 4, "b", "1", 1, ("la",))


def nested(s, ends):
    made(s, {"type": "group", "jobs": [job("a"), {"type": "chain", "steps": [job("b")]}]})
    s.final["flows"]["workflows"].append(["v", "w", "w", 1, "chain", "completed", "1"])
    run(s, 2, "a", "0", 0)
    run(s, 4, "b", "0", 0)
    s.final["jobs"][-1]["workflow"] = s.final["flows"]["ends"][-1][0] = "v"
    s.final["flows"]["ends"] += ends


story(None)(lambda s: nested(s, [["w", 1, "v", "completed", 5]]))
STORIES[-1] = ("good_nested", *STORIES[-1][1:])


@story("no workflow is left open")
def inner_end_lost(s):
    nested(s, [])
