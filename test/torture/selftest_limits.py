"""selftest_limits.py: small histories of queues with a limit, for selftest.py."""

STORIES = []


def story(expected):
    def add(f):
        STORIES.append((f.__name__, expected, f))
        return f
    return add


@story("no more jobs start within a window than the queue's rate")
def six_in_a_second(s):
    for i in range(6):
        s.push(1, f"p{i}", q="paced").give(2 + 0.19 * i, "w1", f"p{i}", f"m{i}", queue="paced").ack(9, "w1", f"p{i}",
            f"m{i}")


def five_then_the_clock(s, *later):
    """Five start, the clock is moved, then others start. Those that name no clock of their own go by the new one."""
    for i in range(5 + len(later)):
        s.push(1, f"p{i}", q="paced").ack(9, "w1", f"p{i}", f"m{i}")
    for i in range(5):
        s.give(2, "w1", f"p{i}", f"m{i}", queue="paced")
    s.clock(2.1, 3)
    for i, (t, started) in enumerate(later, 5):
        s.claim(t, f"w{i}", s.row(f"p{i}", f"m{i}", started, started + 10, queue="paced"), queue="paced", took=0.2)


@story(None)
def one_with_the_old_clock(s):
    five_then_the_clock(s, (2.12, 5.15), (2.05, 2.06))


@story("no more jobs start within a window than the queue's rate")
def six_by_the_new_clock(s):
    five_then_the_clock(s, *((2.2 + i / 100, 5.2 + i / 100) for i in range(6)))


@story("no more jobs are held than the queue's concurrency")
def four_of_three(s):
    for i in range(4):
        s.push(1, f"f{i}", q="few").give(2 + i, "w1", f"f{i}", f"m{i}", 60, queue="few").ack(9, "w1", f"f{i}", f"m{i}")


@story("no more jobs are held than the queue's concurrency")
def seven_of_six_over_a_crash(s):
    for i in range(7):
        s.push(1, f"k{i}", q="kept")
    for i in range(6):
        s.give(2, "w1", f"k{i}", f"m{i}", 60, queue="kept")
    s.crash(3).give(5, "w2", "k6", "m6", 60, queue="kept")
    for i in range(7):
        s.ack(9, "w2" if i == 6 else "w1", f"k{i}", f"m{i}")


@story(None)
def one_of_four_cancelled(s):
    """By a call that began before its claim, and waited for that."""
    for i in range(4):
        s.push(1, f"f{i}", q="few")
    s.call(3.9, "c", "cancel", {"id": "f2"}, ["cancelled"], took=1).done("f2", "cancelled", 4.9)
    for i, t in enumerate((2, 3, 4, 6)):
        s.give(t, "w1", f"f{i}", f"m{i}", 60, queue="few")
    for i in (0, 1, 3):
        s.ack(9, "w1", f"f{i}", f"m{i}")
