"""Producing jobs. `db` is a connection of psycopg; within a transaction, the job belongs to it.

The attributes of a job have their names in the specification: queue, priority, delay, scheduled_at, expires_at,
timeout, retry, unique, meta, tags, deduplication_key and others (docs/how-to/producing.md of ojs); `options` is a dict
of others, which are stored as they are. A duration is a number of seconds, a timedelta, ISO 8601 such as "PT5M", or an
interval such as "5 minutes"."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union
from uuid import UUID

import psycopg

from .errors import OjsError, async_connection, query, query_async, sync_connection
from .names import check_attributes, check_names
from .trace import with_trace
from .values import Duration, dumps, interval, iso, text_of

_PUSH = "select ojs.push_job(%s::jsonb) as job"
_PUSH_MANY = """select index, id, status, error from ojs.push_many(
    %s::jsonb, %s, %s::interval, atomicity => %s, idempotency_key => %s)"""
_CANCEL = "select state from ojs.cancel(%s::uuid, idempotent => true)"
_INFO = "select ojs.info(%s::uuid) as job"
_WAIT = "select state, result, error from ojs.wait_result(%s::uuid, timeout => %s::interval)"
_Id = Union[UUID, str]
_Args = Union[Iterable[Any], Mapping[str, Any]]

_DURATIONS = ("delay", "timeout", "total_timeout", "grace_period", "heartbeat_timeout", "enqueue_ttl", "result_ttl",
              "deduplication_ttl", "visibility_timeout")
_DURATIONS_WITHIN = ("initial_interval", "max_interval", "period", "ttl")


def _list_of(args: Any) -> list[Any]:
    if isinstance(args, Mapping):
        return [args]  # a bare object is the one argument
    if isinstance(args, (str, bytes, bytearray)) or not isinstance(args, Iterable):
        kind = "a string" if isinstance(args, str) else type(args).__name__
        raise TypeError(f"args must be a list, not {kind}: wrap it in a list")
    return list(args)


def _with_durations(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: iso(member) if name in _DURATIONS_WITHIN else _with_durations(member)
            for name, member in value.items()}


def _envelope(job: Any) -> dict[str, Any]:
    if not isinstance(job, Mapping):
        raise TypeError(f"a job must be a dict such as {{'type': 'a.b', 'args': [1]}}, not {type(job).__name__}")
    check_attributes(job)
    options = job.get("options") or {}
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict, not {type(options).__name__}")
    present = {name: value for name, value in job.items() if value is not None and name != "options"}
    for name in present:
        if name in _DURATIONS:
            present[name] = iso(present[name])
        elif name in ("retry", "unique", "rate_limit"):
            present[name] = _with_durations(present[name])
    present["args"] = _list_of(present.get("args", ()))
    meta = present.get("meta") or {}
    if isinstance(meta, Mapping) and (meta := with_trace(dict(meta))):
        present["meta"] = meta
    return {**present, **options}


def _pushed(type: str, args: _Args, attributes: dict[str, Any]) -> str:
    return dumps(_envelope({**attributes, "type": type, "args": args}), "the job")


def push(db: psycopg.Connection[Any], type: str, args: _Args = (), **attributes: Any) -> dict[str, Any]:
    """Pushes a job, and returns its envelope. A dict as args is the job's one argument."""
    job: dict[str, Any] = query(sync_connection(db, "push_async()"), _PUSH, _pushed(type, args, attributes))[0]["job"]
    return job


async def push_async(db: psycopg.AsyncConnection[Any], type: str, args: _Args = (), **attributes: Any,
                     ) -> dict[str, Any]:
    rows = await query_async(async_connection(db, "push()"), _PUSH, _pushed(type, args, attributes))
    job: dict[str, Any] = rows[0]["job"]
    return job


def _batch(jobs: Iterable[Mapping[str, Any]], options: dict[str, Any]) -> tuple[Any, ...]:
    check_names(options, ("deduplication_key", "deduplication_ttl", "atomicity", "idempotency_key"), "a batch",
                " An attribute of a job goes into the job")
    if isinstance(jobs, (Mapping, str)) or not isinstance(jobs, Iterable):
        raise TypeError(f"jobs must be a list of dicts, not {type(jobs).__name__}")
    return (dumps([_envelope(job) for job in jobs], "jobs"), options.get("deduplication_key"),
            interval(options.get("deduplication_ttl"), "deduplication_ttl"), options.get("atomicity", "atomic"),
            options.get("idempotency_key"))


def push_many(db: psycopg.Connection[Any], jobs: Iterable[Mapping[str, Any]], **batch: Any) -> list[dict[str, Any]]:
    """Pushes many jobs at a small part of the cost; a dict with index, id, status and error for each. Of the whole
    batch: deduplication_key, deduplication_ttl, atomicity ("atomic" or "partial"), idempotency_key."""
    return query(sync_connection(db, "push_many_async()"), _PUSH_MANY, *_batch(jobs, batch))


async def push_many_async(db: psycopg.AsyncConnection[Any], jobs: Iterable[Mapping[str, Any]], **batch: Any,
                          ) -> list[dict[str, Any]]:
    return await query_async(async_connection(db, "push_many()"), _PUSH_MANY, *_batch(jobs, batch))


def _uuid(job_id: Any) -> str:
    if isinstance(job_id, UUID):
        return str(job_id)
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a UUID or its text, not {type(job_id).__name__}"
                        + (': pass job["id"]' if isinstance(job_id, Mapping) else ""))
    try:
        return str(UUID(job_id))
    except ValueError:
        raise OjsError(f"job {text_of(job_id, 100)!r} does not exist", code="NOT_FOUND", sqlstate="OJ300",
                       details={"resource_type": "job", "resource_id": text_of(job_id, 100)},
                       hint="The id of a job is a UUID, as push() returns it") from None


def cancel(db: psycopg.Connection[Any], job_id: _Id) -> str:
    """Ends an open job; the state that it has now is returned."""
    return str(query(sync_connection(db, "cancel_async()"), _CANCEL, _uuid(job_id))[0]["state"])


async def cancel_async(db: psycopg.AsyncConnection[Any], job_id: _Id) -> str:
    return str((await query_async(async_connection(db, "cancel()"), _CANCEL, _uuid(job_id)))[0]["state"])


def info(db: psycopg.Connection[Any], job_id: _Id) -> dict[str, Any]:
    """The job's envelope as it stands."""
    job: dict[str, Any] = query(sync_connection(db, "info_async()"), _INFO, _uuid(job_id))[0]["job"]
    return job


async def info_async(db: psycopg.AsyncConnection[Any], job_id: _Id) -> dict[str, Any]:
    job: dict[str, Any] = (await query_async(async_connection(db, "info()"), _INFO, _uuid(job_id)))[0]["job"]
    return job


def _ended(rows: list[dict[str, Any]]) -> Optional[dict[str, Any]]:
    return rows[0] if rows and rows[0]["state"] else None


def wait_result(db: psycopg.Connection[Any], job_id: _Id, timeout: Duration = 30) -> Optional[dict[str, Any]]:
    """state, result and error once the job has ended; None if it has not within that time, at most 30 seconds."""
    return _ended(query(sync_connection(db, "wait_result_async()"), _WAIT, _uuid(job_id), interval(timeout, "timeout")))


async def wait_result_async(db: psycopg.AsyncConnection[Any], job_id: _Id, timeout: Duration = 30,
                            ) -> Optional[dict[str, Any]]:
    return _ended(await query_async(async_connection(db, "wait_result()"), _WAIT, _uuid(job_id),
                                    interval(timeout, "timeout")))
