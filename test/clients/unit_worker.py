"""The part of unit.py that is about workers: what handlers raise and return, coroutine handlers, times, an outage."""
import asyncio
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, redirect_stderr
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import psycopg
from ojs_postgres import JobError, OjsError, Worker, info, push, push_many, wait_result

ROOT = Path(__file__).resolve().parents[2]
NAMES = (f"unit-{number}-{uuid.uuid4().hex[:6]}" for number in range(1000))
TIMES = [1, 1.0, timedelta(seconds=1), "PT1S", "1 second", "00:00:01"]


@contextmanager
def working(worker):
    """The worker at work, in a thread, until the block ends."""
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop(0)
        thread.join(10)


def until(question, within=20.0):
    end = time.monotonic() + within
    while not (answer := question()) and time.monotonic() < end:
        time.sleep(0.01)
    return answer


def ended(db, jobs):
    return [wait_result(db, job["id"], 30)["state"] for job in jobs]


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Base(BaseException):
    pass


class Text(str):
    def __str__(self):
        raise RuntimeError("no text")


class Dict(dict):
    def items(self):
        raise RuntimeError("no items")


def hostile_values():
    """Those of all parts, and those that only Python has."""
    for one in json.loads((ROOT / "test/hostile/values.json").read_text())["values"]:
        text = one.get("json") or "".join(piece * times for piece, times in one["repeat"])
        try:
            yield one["name"], json.loads(text)
        except (ValueError, RecursionError):
            yield one["name"], text
    cycle, deep = {"a": []}, []
    cycle["a"].append(cycle)
    for _ in range(5000):
        deep = [deep]
    yield from {
        "a cycle": cycle, "5000 lists": deep, "a tuple as a key": {(1, 2): 3}, "None as a key": {None: 1},
        "bytes": b"a\0\xff", "a time": datetime.now(timezone.utc), "a day": datetime.now().date(),
        "a duration": timedelta(days=1), "a decimal": Decimal("1.10"), "a decimal that is none": Decimal("sNaN"),
        "a UUID": uuid.uuid4(), "a set": {1, 2}, "a class": object, "an object": object(), "a function": print,
        "what has no text": Hostile(), "a text that has none": Text("x\0"), "a dict without items": Dict(a=1),
        "a generator": (i for i in range(3)), "a complex number": 1j, "a huge integer": 10**5000, "a memoryview":
        memoryview(b"x"), "an exception": ValueError("\0"), "a lone surrogate as a key": {"\ud800": 1},
        "an Infinity within": [1, {"a": float("-inf")}], "a range": range(3), "an ellipsis": ...,
    }.items()


def refusal_of(act):
    """What a call of the library raises: one of its own errors, or none."""
    try:
        act()
    except (OjsError, TypeError, ValueError) as error:
        str(error)
        return None
    except BaseException as error:
        return f"{type(error).__name__}: {error!r}"[:200]
    return None


def test_values(db, same):
    values, queue = list(hostile_values()), next(NAMES)
    same([(name, refused) for name, value in values if name != "a dict without items" for act in (
              lambda: push(db, "unit.hostile", value, queue="hostile"),
              lambda: push(db, "unit.hostile", [value], queue="hostile"),
              lambda: push(db, "unit.hostile", meta=value, queue="hostile"),
              lambda: push(db, "unit.hostile", meta={"a": value}, queue="hostile"),
              lambda: push(db, value, queue="hostile"), lambda: push(db, "unit.hostile", queue=value),
              lambda: push(db, "unit.hostile", queue="hostile", delay=value),
              lambda: push(db, "unit.hostile", queue="hostile", retry=value),
              lambda: push(db, "unit.hostile", queue="hostile", unique=value),
              lambda: push(db, "unit.hostile", queue="hostile", tags=value),
              lambda: push(db, "unit.hostile", queue="hostile", scheduled_at=value),
              lambda: push(db, "unit.hostile", queue="hostile", options=value),
              lambda: push_many(db, value), lambda: push_many(db, [value]),
              lambda: push_many(db, [{"type": "unit.hostile", "queue": "hostile", "args": [value]}]),
              lambda: info(db, value), lambda: wait_result(db, value, 0))
          if (refused := refusal_of(act))], [],
         "whatever is given to a call of the library, it does it or refuses it with an error of its own")
    db.execute("select ojs.cancel(id, idempotent => true) from ojs.jobs where queue = 'hostile'")

    by_name, tried = dict(values), []
    raised = {
        "details": lambda value: JobError("no", retryable=False, details=value),
        "type": lambda value: JobError("no", retryable=False, type=value),
        "message": lambda value: JobError(value, retryable=False),
        "delay": lambda value: JobError("no", retryable=False, delay=value),
        "retryable": lambda value: JobError("no", retryable=False if value else None, details=value)}

    def fail(job):
        where, name = job.args
        raise raised[where](by_name[name])

    def give(job):
        where, name = job.args
        value = by_name[name]
        if where == "result":
            return value
        try:
            if where == "progress":
                job.progress(0.5, None, value)
            elif where == "checkpoint":
                job.save_checkpoint(value)
            elif where == "release":
                job.release(value if job.deliveries == 1 else 0)
            else:
                with job.transaction():
                    job.result = value
        except (OjsError, TypeError, ValueError):
            job.result = "refused"
        except BaseException as error:
            tried.append((where, name, repr(error)))
    once = {"retry": {"max_attempts": 1}, "queue": queue}
    failing = [push(db, "unit.fail", [where, name], **once) for where in raised for name in by_name]
    giving = [push(db, "unit.give", [where, name], **once) for where in
              ("result", "progress", "checkpoint", "transaction") for name in by_name]
    Worker({"unit.fail": fail, "unit.give": give}, queues=[queue], concurrency=4, heartbeat=0.5).run(drain=True)
    rows = [(job["args"], found["state"], found["attempt"], len(found.get("errors") or ())) for job in failing
            if (found := info(db, job["id"]))]
    same([row for row in rows if row[1:] != ("discarded", 1, 1)], [],
         "a failure is reported, whatever is in it: a permanent one stays one run")
    same([job["args"] for job in giving if info(db, job["id"])["state"] not in ("completed", "discarded")] + tried, [],
         "a result that JSON cannot write is a failure, and what else JSON cannot write is refused to the handler")


def errors():
    def of_group():
        if sys.version_info < (3, 11):
            return JobError("the card", type="card.declined", retryable=False)
        return ExceptionGroup("both", [ValueError("a\0"), ExceptionGroup("x", [
            JobError("the card", type="card.declined", retryable=False, details={"n": float("nan")})])])
    yield "what has no text", Hostile(), "Hostile"
    yield "SystemExit", SystemExit(3), "SystemExit"
    yield "KeyboardInterrupt", KeyboardInterrupt(), "KeyboardInterrupt"
    yield "GeneratorExit", GeneratorExit(), "GeneratorExit"
    yield "a BaseException", Base("x"), "Base"
    yield "a CancelledError", asyncio.CancelledError(), "CancelledError"
    yield "a StopIteration", StopIteration(), "StopIteration"
    yield "a group", of_group(), None
    yield "an error of psycopg", psycopg.OperationalError("x"), "OperationalError"
    yield "a cause without text", JobError("x", type=""), "JobError"


def test_errors(db, same):
    queue, table = next(NAMES), {name: (error, kind) for name, error, kind in errors()}

    def threaded(job):
        raise table[job.args[0]][0]

    async def awaited(job):
        await asyncio.sleep(0)
        if isinstance(table[job.args[0]][0], StopIteration):
            raise RuntimeError  # Python makes one of it
        raise table[job.args[0]][0]
    jobs = [push(db, kind, [name], queue=queue, retry={"max_attempts": 1}) for kind in ("unit.thread", "unit.loop")
            for name in table]
    last = push(db, "unit.last", queue=queue)
    Worker({"unit.thread": threaded, "unit.loop": awaited, "unit.last": lambda job: "here"}, queues=[queue],
           concurrency=1).run(drain=True)
    found = [(job["args"][0], it["state"], it["attempt"], it["errors"][-1]["type"] in (
                  table[job["args"][0]][1], *(("ExceptionGroup", "card.declined", "RuntimeError")
                      if job["args"][0] in ("a group", "a StopIteration") else ()))) for job in jobs
             if (it := info(db, job["id"]))]
    same(found, [(name, "discarded", 1, True) for name in table] * 2,
         "whatever a handler raises, in a thread or in the loop, is in the job's history")
    same(wait_result(db, last["id"])["result"], "here", "and its place is free again")
    group = push(db, "unit.group", queue=queue)

    def grouped(_):
        raise table["a group"][0]
    Worker({"unit.group": grouped}, queues=[queue]).run(drain=True)
    same((info(db, group["id"])["state"], info(db, group["id"])["attempt"],
          "card.declined" in json.dumps(info(db, group["id"])["errors"])), ("discarded", 1, True),
         "a group of errors is not tried again if one of them is permanent")


def test_times(db, same):
    queue = next(NAMES)
    runs = {}

    def begin(job):
        runs.setdefault((job.type, job.args[0]), []).append(time.monotonic())

    def release(job):
        begin(job)
        if job.deliveries == 1:
            job.release(TIMES[job.args[0]])

    def fail(job):
        begin(job)
        if job.attempt == 1:
            raise JobError("later", delay=TIMES[job.args[0]])
    jobs = [push(db, kind, [number], queue=queue) for kind in ("unit.release", "unit.fail")
            for number in range(len(TIMES))]
    with working(Worker({"unit.release": release, "unit.fail": fail}, queues=[queue], poll=1)):
        ended(db, jobs)
    same([key for key, times in runs.items() if len(times) != 2 or not 0.9 < times[1] - times[0] < 20], [],
         "a handler says when to try again in each form that a time has")
    begun, never = time.monotonic(), push(db, "unit.never", queue=queue)
    same([wait_result(db, never["id"], given) for given in (0, "PT0S", timedelta(0), "0 s")], [None] * 4,
         "and who waits for a result how long")
    same(time.monotonic() - begun < 5, True, "which is then as long")


def test_handlers(db, same, refusal):
    worker = Worker(queues=[next(NAMES)])
    same([type(refusal(act)) for act in (
        lambda: worker.handler(lambda job: None), lambda: worker.handler(""), lambda: worker.handler("a.b")(5),
        lambda: Worker({"a.b": "x"}), lambda: Worker({print: print}), lambda: Worker({"a.b": print}, pool=object()))],
        [TypeError] * 6, "a handler without its type, or that is no function, is refused")
    same('@worker.handler("' in str(refusal(lambda: worker.handler(print))), True, "with what to write")
    same(type(refusal(lambda: worker.run(drain=True))), ValueError, "and so is a worker without handlers")

    queue = next(NAMES)
    job = push(db, "unit.half", queue=queue)
    seen = []

    def half(job):
        for number in (0.25, Decimal("0.5"), 1 / 3, 0.75):
            job.progress(number, "half", {"rows": 5})
        seen.append(info(db, job.id))
    Worker({"unit.half": half}, queues=[queue]).run(drain=True)
    same([(it["progress"], it["progress_message"], it["progress_data"]) for it in seen], [(0.75, "half", {"rows": 5})],
         "a handler says how far it is by a float, a Decimal or an integer")
    same(ended(db, [job]), ["completed"], "and goes on")

    log, handler = logging.getLogger("ojs_postgres"), logging.Handler()
    records = []
    handler.emit = records.append
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    busy = push(db, "unit.busy", queue=queue, retry={"max_attempts": 1})

    def fail(job):
        raise JobError("busy", type="pdf.busy")
    Worker({"unit.busy": fail}, queues=[queue]).run(drain=True)
    log.removeHandler(handler)
    log.setLevel(logging.CRITICAL)
    same([record.ojs["error_type"] for record in records if record.getMessage() == "job failed"], ["pdf.busy"],
         "the log has the type that the job's error has")
    same(ended(db, [busy]), ["discarded"], "as the job does")
    program = ("import sys; sys.path.insert(0, sys.argv[1]); from ojs_postgres import Worker;"
               "Worker({'a.b': print}, queues=['unit-said']).run(drain=True)")
    said = subprocess.run([sys.executable, "-c", program, str(ROOT / "clients/python")], capture_output=True, text=True)
    same(["started" in said.stderr, "unit-said" in said.stderr], [True, True],
         "a worker says that it has started where the program has not set up logging", )


def test_loop(db, same):
    queue, loops, seen, ends = next(NAMES), set(), [], {}
    marks = threading.Lock()
    try:
        from psycopg_pool import AsyncConnectionPool
    except ImportError:
        AsyncConnectionPool = None
        print("# no psycopg_pool: a pool of the program's own is left out")
    pool = AsyncConnectionPool and AsyncConnectionPool(min_size=1, max_size=2, open=False)

    async def shared(job):
        loops.add(id(asyncio.get_running_loop()))
        if pool:
            await pool.open()
            async with pool.connection() as connection:
                await connection.execute("select pg_sleep(0.05)")
        await job.progress_async(0.5)
        async with job.transaction() as connection:
            await connection.execute("select 1")
            job.result = {"in": "transaction"}

    async def asleep(job):
        seen.append(job.id)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with marks:
                ends[str(job.id)] = job.reason
            raise

    async def dies(job):
        async def exits():
            raise SystemExit(1)
        asyncio.get_running_loop().create_task(exits())
        await asyncio.sleep(0.1)
        return "alive"

    async def by_thread(job):
        with job.transaction():
            pass
    worker = Worker({"unit.shared": shared, "unit.asleep": asleep, "unit.dies": dies, "unit.by_thread": by_thread},
                    queues=[queue], heartbeat=0.2, concurrency=20)
    with working(worker):
        many = [push(db, "unit.shared", queue=queue) for _ in range(8)]
        same(ended(db, many), ["completed"] * 8, "coroutine handlers share a pool of asynchronous connections")
        same((len(loops), wait_result(db, many[0]["id"])["result"]), (1, {"in": "transaction"}),
             "since they run in one event loop, and end their jobs in a transaction of theirs")
        alive = [push(db, "unit.dies", queue=queue), push(db, "unit.shared", queue=queue)]
        same(ended(db, alive), ["completed"] * 2, "a task that ends the process does not end the loop")
        thread = push(db, "unit.by_thread", queue=queue, retry={"max_attempts": 1})
        same((ended(db, [thread]), "async with" in info(db, thread["id"])["errors"][0]["message"]),
             (["discarded"], True),
             "a transaction of threads is refused in a coroutine, since it would hold up the others")
        cancelled, late, lost = [push(db, "unit.asleep", queue=queue, timeout=timeout, retry={"max_attempts": 1})
                                 for timeout in (None, 1, None)]
        stopped = push(db, "unit.asleep", queue=queue)
        until(lambda: len(seen) == 4)
        begun = time.monotonic()
        db.execute("select ojs.cancel(%s)", [cancelled["id"]])
        db.execute("select ojs.nack(%s, delay => '1 hour')", [lost["id"]])
        until(lambda: len(ends) == 3)
        same((ends.get(cancelled["id"]), ends.get(late["id"]), ends.get(lost["id"])), ("cancelled", "timeout", "lost"),
             "a coroutine is cancelled when its job is cancelled, over its timeout or lost")
        same(time.monotonic() - begun < 15, True, "soon")
        same(ended(db, [late]), ["discarded"], "and the timeout is reported")
    same((ends.get(stopped["id"]), info(db, stopped["id"])["state"], info(db, stopped["id"])["attempt"]),
         ("shutdown", "available", 0), "a worker that stops cancels what still runs, and gives it back")


def test_first(db, same):
    best = None
    for _ in range(5):
        queue, begun = next(NAMES), []
        with working(Worker({"unit.first": lambda job: begun.append(time.monotonic())}, queues=[queue])) as worker:
            until(lambda: worker._welcome and not worker._more)
            time.sleep(0.2)  # let the worker fall asleep
            pushed = time.monotonic()
            push(db, "unit.first", queue=queue)
            until(lambda: begun, 8)
            took = (begun or [pushed + 8])[0] - pushed
        best = took if best is None else min(best, took)
        if best < 1:
            break
    same(best < 1, True, f"the first job of a queue that did not exist is handled at once ({best:.2f} s)")


class Door:
    """A port of this machine that leads to the server, or while it is shut counts who knocks."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open, self.knocks, self.inside = True, 0, []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                guest, _ = self.listener.accept()
            except OSError:
                return
            if not self.open:
                self.knocks += 1
                guest.close()
                continue
            host, port = os.environ.get("PGHOST", "/var/run/postgresql"), os.environ.get("PGPORT", "5432")
            if host.startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{host}/.s.PGSQL.{port}")
            else:
                server = socket.create_connection((host, int(port)))
            self.inside += [guest, server]
            for one, other in ((guest, server), (server, guest)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def shut(self):
        self.open = False
        for end in self.inside:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.inside = []


def test_outage(db, same):
    door, queue, done = Door(), next(NAMES), []

    async def slow(job):
        await asyncio.sleep(1)
        return "kept"
    worker = Worker({"unit.job": lambda job: done.append(job.id), "unit.slow": slow}, queues=[queue],
                    connection={"host": "127.0.0.1", "port": door.port, "sslmode": "disable", "gssencmode": "disable"},
                    lease=60)
    with working(worker):
        first, slowly = push(db, "unit.job", queue=queue), push(db, "unit.slow", queue=queue)
        until(lambda: done and info(db, slowly["id"])["state"] == "active")
        door.shut()
        used = time.process_time()
        time.sleep(10)
        used, knocks = time.process_time() - used, door.knocks
        door.open = True
        back = time.monotonic()
        later = push(db, "unit.job", queue=queue)
        until(lambda: uuid.UUID(later["id"]) in done, 30)
        back = time.monotonic() - back
        same((2 <= knocks <= 40, used < 3), (True, True),
             f"an outage of 10 s is no storm of connections ({knocks}, {used:.1f} s of CPU)")
        same(back < 15, True, f"after it the worker works again ({back:.1f} s)")
        same((ended(db, [first, slowly]), wait_result(db, slowly["id"])["result"]), (["completed"] * 2, "kept"),
             "and reports what a handler returned meanwhile")
    door.listener.close()


def main(db, same, refusal):
    logging.getLogger("ojs_postgres").setLevel(logging.CRITICAL)
    sink = io.StringIO()
    with redirect_stderr(sink):
        test_handlers(db, same, refusal)
        test_values(db, same)
        test_errors(db, same)
        test_times(db, same)
        test_loop(db, same)
        test_first(db, same)
        test_outage(db, same)
