#!/usr/bin/env python3
"""test/clients/unit.py: what a program sees that pushes jobs over clients/python. Prints TAP. Needs a database with the
extension, by PGHOST and so on. unit.mjs does the same. OpenTelemetry is a stand-in here."""
import asyncio
import sys
import types
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
spans = []


@contextmanager
def start_as_current_span(name, **about):
    spans.append({"name": name, **about})
    try:
        yield
    except Exception as error:
        spans[-1]["error"] = type(error).__name__
        raise


def stand_in(name, **members):
    sys.modules[name] = types.SimpleNamespace(**members)
    return sys.modules[name]


tracing = []
propagate = stand_in("opentelemetry.propagate",
    inject=lambda carrier: carrier.update(tracing and {"traceparent": TRACE} or {}),
                     extract=lambda carrier: carrier.get("traceparent"))
tracer = types.SimpleNamespace(start_as_current_span=start_as_current_span)
trace = stand_in("opentelemetry.trace", get_tracer=lambda name: tracer,
    SpanKind=types.SimpleNamespace(CONSUMER="consumer"))
stand_in("opentelemetry", propagate=propagate, trace=trace)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))
import psycopg
from ojs_postgres import (JobError, OjsError, Worker, cancel, info, push, push_async, push_many, push_many_async,
                          wait_result)

count, failed = 0, 0
db = psycopg.connect(autocommit=True)


def same(found, expected, title):
    global count, failed
    count += 1
    failed += found != expected
    print(f"{'ok' if found == expected else 'not ok'} {count} - {title}", flush=True)
    if found != expected:
        print(f"#   found    {found!r}\n#   expected {expected!r}", flush=True)


def refusal(act):
    try:
        act()
    except (OjsError, TypeError, ValueError) as error:
        return error
    return None


job = push(db, "unit.one", [{"a": []}, "é"], queue="unit", priority=7, delay=timedelta(minutes=5), timeout=1.5,
           retry={"max_attempts": 9}, meta={"locale": "en"}, tags=["x", "y"], x_own={"deep": 1},
           expires_at=datetime.now(timezone.utc) + timedelta(hours=3), unique=None)
stored = info(db, job["id"])
same((job["state"], job["args"], job["priority"], stored["timeout"], stored["max_attempts"], stored["meta"],
    stored["tags"],
      stored["x_own"]), ("scheduled", [{"a": []}, "é"], 7, 1.5, 9, {"locale": "en"}, ["x", "y"], {"deep": 1}),
     "a push has every attribute of the specification, and answers the job")
same([cancel(db, job["id"]), cancel(db, job["id"])], ["cancelled"] * 2, "a job is cancelled, also twice")
same([push(db, "unit.none", args, queue="unit")["args"] for args in ([], [[]])], [[], [[]]],
     "no arguments, and an empty list as an argument, arrive as they are")
with db.transaction(force_rollback=True):
    gone = push(db, "unit.gone", queue="unit")
same(refusal(lambda: info(db, gone["id"])).code, "NOT_FOUND", "a push belongs to the transaction of its caller")

jobs = [{"type": "unit.many", "args": [1], "queue": "unit"}, {"type": "Wrong", "queue": "unit"}]
same(refusal(lambda: push_many(db, jobs)).code, "INVALID_JOB_TYPE", "a batch is all or nothing")
rows = push_many(db, jobs, atomicity="partial", idempotency_key="unit-py")
same([(row["status"], (row["error"] or {}).get("code")) for row in rows],
    [("created", None), ("failed", "INVALID_JOB_TYPE")],
     "or each job for itself")
same(push_many(db, jobs, atomicity="partial", idempotency_key="unit-py")[0]["id"], rows[0]["id"],
     "its key makes it safe to send again")
same([push_many(db, jobs[:1], deduplication_key="unit-batch-py", deduplication_ttl=timedelta(minutes=1))[0]["status"]
      for _ in range(2)], ["created", "duplicate"], "a batch with a deduplication key is pushed once")


async def pushed_async():
    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        one = await push_async(connection, "unit.one", [1], queue="unit")
        many = await push_many_async(connection, [{"type": "unit.one", "queue": "unit"}])
        try:
            await push_async(connection, "Wrong")
        except OjsError as error:
            return one["args"], many[0]["status"], error.code

same(asyncio.run(pushed_async()), ([1], "created", "INVALID_JOB_TYPE"), "all of it over an asynchronous connection too")
error = refusal(lambda: push(db, "No Type"))
same((error.code, error.sqlstate, error.retryable, error.details["field"], "segments" in error.hint,
      isinstance(error.__cause__, psycopg.Error)), ("INVALID_JOB_TYPE", "OJ101", False, "type", True, True),
     "errors have the code of the specification, the SQLSTATE, details and a hint")
twice = push(db, "unit.twice", queue="unit")
same(refusal(lambda: push(db, "unit.twice", queue="unit", id=twice["id"])).sqlstate, "OJ301",
    "also that of a duplicate")
same(type(refusal(lambda: push(db, "unit.x", [object()]))), TypeError, "what is no JSON is refused before it is sent")
same([type(refusal(act)) for act in (lambda: Worker(queues="mail"), lambda: Worker(concurrency=0))],
    [TypeError, ValueError],
     "what a worker cannot work with is refused at once")
same(refusal(Worker(queues=["My_Queue"]).run).code, "INVALID_QUEUE", "or when it begins")

tracing.append(True)
traced = push(db, "unit.traced", queue="unit-traced", retry={"max_attempts": 1}, meta={"a": 1})
tracing.clear()
worker = Worker(queues=["unit-traced"])


@worker.handler("*")
def refuse(_):
    raise JobError("no", type="unit.no")


worker.run(drain=True)
same(wait_result(db, traced["id"])["state"], "discarded", "the handler of all types had it")
same((traced["meta"], spans), ({"a": 1, "traceparent": TRACE, "trace_id": "0af7651916cd43dd8448eb211c80319c"}, [{
    "name": "process unit.traced", "context": TRACE, "kind": "consumer", "error": "JobError", "attributes": {
        "messaging.system": "ojs", "messaging.operation.type": "process", "messaging.destination.name": "unit-traced",
        "messaging.message.id": traced["id"], "ojs.job.type": "unit.traced", "ojs.job.attempt": 1}}]),
     "spans go from the push to the handler, with what it raised")
same(wait_result(db, push(db, "unit.never", queue="unit")["id"], 0.01), None, "waiting for a result ends without one")
print(f"1..{count}")
sys.exit(failed > 0)
