#!/usr/bin/env python3
"""test/clients/unit.py: what a program sees that pushes jobs over clients/python. Prints TAP. Needs a database with the
extension, by PGHOST and so on. unit.mjs does the same. OpenTelemetry is a stand-in here."""
import asyncio
import re
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
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python"))
import psycopg
from ojs_postgres import (JobError, OjsError, Worker, cancel, cancel_async, info, info_async, names, push, push_async,
                          push_many, push_many_async, wait_result, wait_result_async)

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
           retry={"max_attempts": 9}, meta={"locale": "en"}, tags=["x", "y"], options={"x_own": {"deep": 1}},
           expires_at=datetime.now(timezone.utc) + timedelta(hours=3), unique=None)
stored = info(db, job["id"])
same((job["state"], job["args"], job["priority"], stored["timeout"], stored["max_attempts"], stored["meta"],
    stored["tags"],
      stored["x_own"]), ("scheduled", [{"a": []}, "é"], 7, 1.5, 9, {"locale": "en"}, ["x", "y"], {"deep": 1}),
     "a push has every attribute of the specification, and answers the job")
same([cancel(db, job["id"]), cancel(db, job["id"])], ["cancelled"] * 2, "a job is cancelled, also twice")
same([push(db, "unit.none", args, queue="unit")["args"] for args in ([], [[]])], [[], [[]]],
     "no arguments, and an empty list as an argument, arrive as they are")
same([push(db, "unit.one", args, queue="unit")["args"] for args in ({"to": "ada"}, ({"to": "ada"},), range(2))],
     [[{"to": "ada"}], [{"to": "ada"}], [0, 1]], "a bare object is the one argument; any iterable is a list of them")
same([push_many(db, [{"type": "unit.one", "args": {"to": "ada"}, "queue": "unit"}])[0]["status"],
      info(db, push_many(db, [{"type": "unit.one", "args": {"to": "ada"}, "queue": "unit"}])[0]["id"])["args"]],
     ["created", [{"to": "ada"}]], "in a batch, too")
same([type(refusal(lambda: push(db, "unit.one", args, queue="unit"))) for args in ("hello", b"hello", 5)],
     [TypeError] * 3, "a text, bytes, and what is no list are refused as args")
misspelt = {"maxAttempts": "max_attempts", "scheduledAt": "scheduled_at", "prioritty": "priority", "queu": "queue",
            "countdown": "delay", "eta": "scheduled_at", "max_retries": "max_attempts",
            "dedup_key": "deduplication_key"}
same([[f'is it "{meant}"?' in str(refusal(act)) for act in (
        lambda: push(db, "unit.one", queue="unit", **{name: 1}),
        lambda: push_many(db, [{"type": "unit.one", "queue": "unit", name: 1}]))] for name, meant in misspelt.items()],
     [[True, True]] * len(misspelt), "a misspelt attribute is refused, with the name that was meant")
same("options=" in str(refusal(lambda: push(db, "unit.one", zzz=1))), True, "an unknown one with the way to give it")
same([f'is it "{meant}"?' in str(refusal(lambda: Worker({"*": print}, **{name: 1}))) for name, meant in
      {"concurency": "concurrency", "queue": "queues", "maxWait": None, "heart_beat": "heartbeat"}.items() if meant],
     [True] * 3, "a misspelt option of a worker, too")
same('is it "atomicity"?' in str(refusal(lambda: push_many(db, [], atomic="partial"))), True, "or of a batch")
of_server = re.findall(r'^    \{"(\w+)", Attr::', (ROOT / "src/job/attribute_names.cpp").read_text(), re.M)
same(sorted(names.KNOWN), sorted(of_server), "the library knows the attributes that the server knows")

minutes = [300, 300.0, timedelta(minutes=5), "PT5M", "5 minutes", "00:05:00", "5 min"]


def waits(job):
    return datetime.fromisoformat(job["scheduled_at"].replace("Z", "+00:00")) - datetime.fromisoformat(
        job["created_at"].replace("Z", "+00:00"))


same([round(waits(push(db, "unit.later", queue="unit", delay=given)).total_seconds()) for given in minutes], [300] * 7,
     "a delay is a number of seconds, a timedelta, ISO 8601 or an interval")
same([info(db, push(db, "unit.timeout", queue="unit", timeout=given)["id"])["timeout"] for given in minutes],
     [300] * 7, "a timeout as well")
retried = [push(db, "unit.retry", queue="unit", retry={"initial_interval": given}) for given in minutes[2:]]
same([info(db, job["id"])["retry"]["initial_interval"] for job in retried],
     ["PT300S", "PT5M", "PT300S", "PT300S", "PT300S"],
     "and the times of a retry policy")
same([push_many(db, [{"type": "unit.one", "queue": "unit"}], deduplication_key=f"unit-{given}", deduplication_ttl=given,
                )[0]["status"] for given in minutes], ["created"] * 7, "and that of a deduplication key")
same(refusal(lambda: push(db, "unit.later", queue="unit", delay="soon")).code, "INVALID_PAYLOAD",
     "what is no time is refused")
no_times = ["foo", -1, float("nan"), True, []]
same(["lease" in str(refusal(lambda: Worker({"*": print}, lease=given))) for given in no_times], [True] * 5,
     "by a worker with the name of the option")
same([(worker := Worker({"*": print}, grace=given, poll=given, heartbeat=given)) and (worker.grace, worker.poll)
      for given in minutes], [(300.0, 300.0)] * 7, "whose times have each of the forms")

same([refusal(lambda: act(db, "x")).code for act in (info, cancel, wait_result)], ["NOT_FOUND"] * 3,
     "what is no id is no job")
same('job["id"]' in str(refusal(lambda: info(db, job))), True,
     "a job in place of its id is refused with what to write")
same([type(refusal(lambda: act(psycopg.AsyncConnection.__new__(psycopg.AsyncConnection), "x"))) for act in
      (push, push_many, info, cancel, wait_result)], [TypeError] * 5,
     "an AsyncConnection is refused, since it needs await")
foreign = type("connection", (), {"__module__": "psycopg2.extensions", "cursor": print})()
same(["psycopg 3" in str(refusal(lambda: push(given, "unit.one"))) for given in (foreign, None, "dbname=x")],
     [True] * 3, "a connection of another driver is, too")


def no_rights(database):
    with psycopg.connect(dbname=database, autocommit=True) as other:
        if database == db.info.dbname:
            other.execute("set role unit_nobody")
        error = refusal(lambda: push(other, "unit.one"))
        return type(error).__name__, error.code, error.hint.split(": ")[-1].replace(other.info.user, "USER")

db.execute("drop role if exists unit_nobody")
db.execute("create role unit_nobody")
same([no_rights(db.info.dbname), no_rights("template1")],
     [("OjsError", "PERMISSION_DENIED", "grant ojs_producer to USER"),
      ("OjsError", "UNAVAILABLE", "create extension ojs")],
     "a role without rights and a database without the extension are refused with what to do")
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
            found = await info_async(connection, one["id"])
            return (one["args"], many[0]["status"], error.code, found["state"],
                    await cancel_async(connection, one["id"]),
                    (await wait_result_async(connection, one["id"], "1 s"))["state"],
                    [type(await refusal_async(act(db, one["id"]))) for act in
                     (push_async, info_async, cancel_async, wait_result_async)])


async def refusal_async(coroutine):
    try:
        await coroutine
    except (OjsError, TypeError, ValueError) as error:
        return error

same(asyncio.run(pushed_async()), ([1], "created", "INVALID_JOB_TYPE", "available", "cancelled", "cancelled",
                                   [TypeError] * 4), "all of it over an asynchronous connection too")
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
same(refusal(Worker({"*": print}, queues=["My_Queue"]).run).code, "INVALID_QUEUE", "or when it begins")

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
import unit_worker
unit_worker.main(db, same, refusal)
print(f"1..{count}")
sys.exit(failed > 0)
