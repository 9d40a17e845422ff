"""A job in the hands of a handler."""
from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Optional, Protocol
from uuid import UUID

import psycopg

from .aio import Call, Loop
from .errors import (JobAborted, OjsError, Reason, async_connection, backoff, failure, is_transient, query, query_async,
                     sync_connection)
from .values import Duration, dumps, interval

_ACK = "select (ojs.ack(%s, nullif(%s, 'null')::jsonb, lease_id => %s)).id"
_CHECKPOINT = "select ojs.checkpoint(%s, %s::jsonb)"


class Pool(Protocol):
    """What lends connections: a ConnectionPool of psycopg_pool, or anything with its connection()."""

    def connection(self) -> Any: ...


class _Transaction:
    """with job.transaction() as db, or in a coroutine async with job.transaction() as db."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._context: Any = None

    def __enter__(self) -> psycopg.Connection[Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._context = self._job._transaction()
            db: psycopg.Connection[Any] = self._context.__enter__()
            return db
        raise TypeError("in a coroutine write: async with job.transaction() as db")

    def __exit__(self, *raised: Any) -> Any:
        return self._context.__exit__(*raised)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        self._context = self._job._transaction_async()
        db: psycopg.AsyncConnection[Any] = await self._context.__aenter__()
        return db

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._context.__aexit__(*raised)


class Job:
    """The attributes of the specification, and what a handler may do. Safe to use from several threads."""

    id: UUID
    type: str
    queue: str
    args: list[Any]
    meta: dict[str, Any]
    priority: int
    attempt: int
    max_attempts: int
    deliveries: int
    tags: Optional[list[str]]
    created_at: datetime
    scheduled_at: Optional[datetime]
    errors: Optional[list[Any]]
    extra: dict[str, Any]

    def __init__(self, row: dict[str, Any], pool: Pool, sent_at: float, loop: Loop, async_pool: Pool) -> None:
        self._lease_id: str = row.pop("lease_id")
        self.lease_s: float = row.pop("lease_s")
        timeout_s: float = row.pop("timeout_s")
        row["extra"] = row["extra"] or {}
        self.__dict__.update(row)
        self.checkpoint: Any = (self.extra.get("checkpoint") or {}).get("state")
        self.deadline = datetime.now(timezone.utc) + timedelta(seconds=min(timeout_s, 1e9))
        self.result: Any = None
        self.beat_within = min(self.lease_s, self.extra.get("heartbeat_timeout", 60)) / 3
        self._pool, self._loop, self._async_pool = pool, loop, async_pool
        self._lock = threading.RLock()
        self._call: Optional[Call] = None  # of a coroutine handler, while it runs
        self._over = False  # nobody waits for a report any more
        self._stop_at = time.monotonic() + timeout_s
        self._aborted = threading.Event()
        self._reason: Optional[Reason] = None
        self._settled: Optional[str] = None
        self.extended(sent_at)

    def extended(self, sent_at: float) -> None:
        """The server extended the lease, not before `sent_at`. Where it can no longer do so, the handler must stop."""
        self._lease_until = sent_at + self.lease_s

    def abort(self, reason: Reason) -> None:
        with self._lock:
            self._over = self._over or reason != "timeout"
            if self._reason is None:
                self._reason = reason
                self._aborted.set()
                if self._call:
                    self._call.cancel()

    @property
    def reason(self) -> Optional[Reason]:
        """Why the handler should stop: cancelled, lost, timeout or shutdown; None while it should go on."""
        now = time.monotonic()
        if self._reason is None and now >= self._stop_at:
            self.abort("timeout")
        elif self._reason is None and now >= self._lease_until:
            self.abort("lost")
        return self._reason

    @property
    def aborted(self) -> bool:
        return self.reason is not None

    def check(self) -> None:
        """Raises JobAborted if the handler should stop: call it now and then in a loop."""
        if reason := self.reason:
            raise JobAborted(reason)

    def wait(self, seconds: float) -> bool:
        """Sleeps; returns True, and at once, if the handler should stop."""
        end = time.monotonic() + seconds
        while not self.aborted and (rest := end - time.monotonic()) > 0:
            self._aborted.wait(min(rest, 0.001 + min(self._stop_at, self._lease_until) - time.monotonic()))
        return self.aborted

    def transaction(self) -> _Transaction:
        """A transaction for the job's effect. At its end the job is completed in it, with `result` as its result: both
        happen, once, or neither. A coroutine writes async with, and has an AsyncConnection."""
        return _Transaction(self)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._pool.connection() as db:
            with db.transaction():
                yield db
                self._ack(db, dumps(self.result, "the result"))
        self._settled = "completed"

    @asynccontextmanager
    async def _transaction_async(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._async_pool.connection() as db:
            async with db.transaction():
                yield db
                await query_async(db, _ACK, self.id, dumps(self.result, "the result"), self._lease_id)
        self._settled = "completed"

    def complete(self, db: psycopg.Connection[Any], result: Any = None) -> None:
        """Completes the job in a transaction of yours."""
        self._ack(sync_connection(db, "complete_async()"), dumps(result, "the result"))
        self._settled = "completed"

    async def complete_async(self, db: psycopg.AsyncConnection[Any], result: Any = None) -> None:
        await query_async(async_connection(db, "complete()"), _ACK, self.id, dumps(result, "the result"),
                          self._lease_id)
        self._settled = "completed"

    def release(self, delay: Optional[Duration] = None) -> None:
        """Gives the job back: it is available again after the delay, and the attempt does not count."""
        self._say("select (ojs.nack(%s, coalesce(%s::interval, '0'), lease_id => %s)).id", self.id,
                  interval(delay, "delay"), self._lease_id)
        self._settled = "released"

    async def release_async(self, delay: Optional[Duration] = None) -> None:
        await asyncio.to_thread(self.release, delay)

    def progress(self, progress: Optional[float], message: Optional[str] = None, data: Any = None) -> None:
        """How far the job is: from 0 to 1, a message for people, data for programs."""
        self._say("select ojs.progress(%s, %s::numeric, %s, %s::jsonb)", self.id, progress, message,
                  None if data is None else dumps(data, "data"))

    async def progress_async(self, progress: Optional[float], message: Optional[str] = None, data: Any = None) -> None:
        await asyncio.to_thread(self.progress, progress, message, data)

    def save_checkpoint(self, state: Any, db: Optional[psycopg.Connection[Any]] = None) -> None:
        """What the next attempt is to go on from, and finds in `checkpoint`; `db` may be in a transaction of yours."""
        values = self.id, dumps(state, "state")
        if db is None:
            self._say(_CHECKPOINT, *values)
        else:
            query(sync_connection(db, "save_checkpoint_async()"), _CHECKPOINT, *values)
        self.checkpoint = state

    async def save_checkpoint_async(self, state: Any, db: Optional[psycopg.AsyncConnection[Any]] = None) -> None:
        if db is None:
            await asyncio.to_thread(self.save_checkpoint, state)
        else:
            await query_async(async_connection(db, "save_checkpoint()"), _CHECKPOINT, self.id, dumps(state, "state"))
            self.checkpoint = state

    def _say(self, text: str, *values: Any) -> None:
        with self._pool.connection() as db:
            query(db, text, *values)

    def _ack(self, db: psycopg.Connection[Any], result: str) -> None:
        query(db, _ACK, self.id, result, self._lease_id)

    def _insist(self, report: Callable[[], None]) -> None:
        """Again and again while the server is away, as long as the job may be ours."""
        tries = 0
        while True:
            try:
                return report()
            except Exception as error:
                if tries and isinstance(error, OjsError) and error.code == "JOB_ALREADY_COMPLETED":
                    return None  # an earlier try was committed
                if not is_transient(error) or self._over or time.monotonic() >= self._lease_until:
                    raise
            time.sleep(backoff(tries))
            tries += 1

    def awaited(self, awaitable: Awaitable[Any]) -> Any:
        """Waits for a coroutine handler, which runs in the loop of all. It is cancelled when the job should stop."""
        with self._lock:
            self._call = call = self._loop.call(awaitable)
            if self.aborted:
                call.cancel()
        while not call.done.wait(None if self.aborted else
                                 max(0.001, min(self._stop_at, self._lease_until) - time.monotonic())):
            pass
        self._call = None
        if call.error:
            raise call.error
        return call.result

    def run(self, handler: Callable[[Job], Any]) -> tuple[str, Optional[BaseException]]:
        """Runs the handler and tells the server. The outcome: completed, released, failed, gone; and the error."""
        try:
            result = handler(self)
            if inspect.isawaitable(result):
                result = self.awaited(result)
            if self._settled is None:
                text = dumps(self.result if result is None else result, "the result")
                self._insist(lambda: self._acked(text))
            return self._settled or "completed", None
        except BaseException as error:
            try:
                return self._failed(error)
            except BaseException as refused:
                done = isinstance(refused, OjsError) and refused.code == "JOB_ALREADY_COMPLETED"
                return "completed" if done else "gone", refused

    def _acked(self, result: str) -> None:
        with self._pool.connection() as db:
            self._ack(db, result)

    def _failed(self, error: BaseException) -> tuple[str, Optional[BaseException]]:
        """The handler raised, or its result was refused. If the job is not ours any more, this is refused too."""
        reason = self.reason
        if reason in ("cancelled", "lost"):
            return "gone", JobAborted(reason)
        if reason == "shutdown":
            self.release()
            return "released", JobAborted(reason)
        if reason == "timeout":
            error = JobAborted(reason)
        for report, delay in failure(error):
            try:
                self._insist(lambda: self._say(
                    "select (ojs.fail(%s, %s::jsonb, lease_id => %s, delay => %s::interval)).id", self.id, report,
                    self._lease_id, delay))
                return "failed", error
            except Exception as refused:
                if not _of_report(refused):
                    raise
                last = refused
        raise last


def _of_report(refused: Exception) -> bool:
    """Whether it was the report that the server refused, and not the job."""
    if isinstance(refused, OjsError):
        return (refused.sqlstate or "").startswith("OJ1") and refused.code != "INVALID_STATE_TRANSITION"
    return isinstance(refused, psycopg.Error) and (refused.sqlstate or "")[:2] in ("22", "54")
