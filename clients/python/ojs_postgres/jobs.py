"""Producing jobs. `db` is a connection of psycopg; within a transaction, the job belongs to it.

The attributes of a job have their names in the specification: queue, priority, delay, scheduled_at, expires_at,
timeout, retry, unique, meta, tags, deduplication_key and others (docs/how-to/producing.md of ojs). A duration is a
timedelta, a number of seconds, or ISO 8601."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Optional, Union
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from .errors import dumps, query, translated
from .trace import with_trace

_PUSH = "select ojs.push_job(%s::jsonb) as job"
_PUSH_MANY = """select index, id, status, error from ojs.push_many(
    %s::jsonb, %s, %s::interval, atomicity => %s, idempotency_key => %s)"""
_Id = Union[UUID, str]


def _envelope(job: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in job.items() if value is not None}
    meta = with_trace(present.get("meta") or {})
    return {"args": [], **present, **({"meta": meta} if meta else {})}


async def _query_async(db: psycopg.AsyncConnection[Any], text: str, *values: Any) -> list[dict[str, Any]]:
    with translated():
        cursor = await db.cursor(row_factory=dict_row).execute(text, values)
        return await cursor.fetchall()


def push(db: psycopg.Connection[Any], type: str, args: Sequence[Any] = (), **attributes: Any) -> dict[str, Any]:
    """Pushes a job, and returns its envelope."""
    job: dict[str, Any] = query(db, _PUSH, dumps(_envelope({**attributes, "type": type, "args": list(args)})))[0]["job"]
    return job


async def push_async(db: psycopg.AsyncConnection[Any], type: str, args: Sequence[Any] = (), **attributes: Any,
                     ) -> dict[str, Any]:
    envelope = _envelope({**attributes, "type": type, "args": list(args)})
    job: dict[str, Any] = (await _query_async(db, _PUSH, dumps(envelope)))[0]["job"]
    return job


def _batch(jobs: Sequence[Mapping[str, Any]], *, deduplication_key: Optional[str] = None,
           deduplication_ttl: Union[timedelta, str, None] = None, atomicity: str = "atomic",
           idempotency_key: Optional[str] = None) -> tuple[Any, ...]:
    return dumps([_envelope(job) for job in jobs]), deduplication_key, deduplication_ttl, atomicity, idempotency_key


def push_many(db: psycopg.Connection[Any], jobs: Sequence[Mapping[str, Any]], **batch: Any) -> list[dict[str, Any]]:
    """Pushes many jobs at a small part of the cost; a dict with index, id, status and error for each. Of the whole
    batch: deduplication_key, deduplication_ttl, atomicity ("atomic" or "partial"), idempotency_key."""
    return query(db, _PUSH_MANY, *_batch(jobs, **batch))


async def push_many_async(db: psycopg.AsyncConnection[Any], jobs: Sequence[Mapping[str, Any]], **batch: Any,
                          ) -> list[dict[str, Any]]:
    return await _query_async(db, _PUSH_MANY, *_batch(jobs, **batch))


def cancel(db: psycopg.Connection[Any], job_id: _Id) -> str:
    """Ends an open job; the state that it has now is returned."""
    return str(query(db, "select state from ojs.cancel(%s::uuid, idempotent => true)", str(job_id))[0]["state"])


def info(db: psycopg.Connection[Any], job_id: _Id) -> dict[str, Any]:
    """The job's envelope as it stands."""
    job: dict[str, Any] = query(db, "select ojs.info(%s::uuid) as job", str(job_id))[0]["job"]
    return job


def wait_result(db: psycopg.Connection[Any], job_id: _Id, timeout: float = 30) -> Optional[dict[str, Any]]:
    """state, result and error once the job has ended; None if it has not within so many seconds, at most 30."""
    row = query(db, "select state, result, error from ojs.wait_result(%s::uuid, timeout => make_interval(secs => %s))",
                str(job_id), timeout)[0]
    return row if row["state"] else None
