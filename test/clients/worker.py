#!/usr/bin/env python3
"""test/clients/worker.py OPTIONS: the worker that test/clients/run drives, over clients/python. Like worker.mjs."""
import asyncio
import json
import logging
import sys
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))
import psycopg
from ojs_postgres import JobError, JsonFormatter, Worker

options = json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")
drain, pool = options.pop("drain", False), options.pop("pool", None)
for name in ("grace", "poll", "heartbeat"):
    if name in options:
        options[name] /= 1000
log = logging.StreamHandler()
log.setFormatter(JsonFormatter())
logging.getLogger().addHandler(log)
logging.getLogger("ojs_postgres").setLevel(logging.INFO)


class Pool:
    def __init__(self, max, **where):
        self.where = where

    @contextmanager
    def connection(self):
        with psycopg.connect(**self.where, prepare_threshold=None) as db:
            yield db


worker = Worker(pool=Pool(**pool) if pool else None, **options)


@worker.handler("echo")
def echo(job):
    return job.args[0]


@worker.handler("effect")
def effect(job):
    with job.transaction() as db:
        db.execute("insert into effect (job_id, worker) values (%s, %s)", (job.id, worker.name))
        if job.args:
            db.execute("select pg_sleep(%s)", (job.args[0],))
        job.result = {"done": True}


@worker.handler("complete")
def complete(job):
    with psycopg.connect() as db:
        db.execute("insert into effect (job_id, worker) values (%s, %s)", (job.id, worker.name))
        job.complete(db, "by hand")


@worker.handler("boom")
def boom(job):
    error = dict(job.args[0])
    times, plain = error.pop("times", 1), error.pop("plain", None)
    if job.attempt > times:
        return "well at last"
    if plain:
        raise ValueError(plain)
    raise JobError("boom\0", **error)


@worker.handler("steps")
def steps(job):
    if job.attempt > 1:
        return job.checkpoint
    job.save_checkpoint({"row": 5})
    job.progress(0.5, "half", {"rows": 5})
    raise RuntimeError("in the middle")


@worker.handler("snooze")
def snooze(job):
    if job.deliveries > 1:
        return job.attempt
    job.release("0.1 s")


@worker.handler("slow")
async def slow(job):
    await asyncio.sleep(job.args[0])
    return job.deliveries


@worker.handler("wait")
def wait(job):
    print(f"waiting {job.id}", flush=True)
    job.wait(60)
    with psycopg.connect() as db:
        db.execute("insert into heard values (%s, %s)", (job.id, job.reason))
    job.check()


@worker.handler("unstorable")
def unstorable(job):
    return object()


worker.run(drain=drain)
