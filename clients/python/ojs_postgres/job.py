"""A job in the hands of a handler."""
from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Optional, Protocol
from uuid import UUID

import psycopg

from .errors import Delay, JobAborted, JobError, OjsError, Reason, backoff, dumps, failure, is_transient, query


class Pool(Protocol):
    """What lends connections: a ConnectionPool of psycopg_pool, or anything with its connection()."""

    def connection(self) -> Any: ...


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

    def __init__(self, row: dict[str, Any], pool: Pool, sent_at: float) -> None:
        self._lease_id: str = row.pop("lease_id")
        self.lease_s: float = row.pop("lease_s")
        timeout_s: float = row.pop("timeout_s")
        row["extra"] = row["extra"] or {}
        self.__dict__.update(row)
        self.checkpoint: Any = (self.extra.get("checkpoint") or {}).get("state")
        self.deadline = datetime.now(timezone.utc) + timedelta(seconds=min(timeout_s, 1e9))
        self.result: Any = None
        self.beat_within = min(self.lease_s, self.extra.get("heartbeat_timeout", 60)) / 3
        self._pool = pool
        self._stop_at = time.monotonic() + timeout_s
        self._aborted = threading.Event()
        self._reason: Optional[Reason] = None
        self._settled: Optional[str] = None
        self.extended(sent_at)

    def extended(self, sent_at: float) -> None:
        """The server extended the lease, not before `sent_at`. Where it can no longer do so, the handler must stop."""
        self._lease_until = sent_at + self.lease_s

    def abort(self, reason: Reason) -> None:
        self._reason = self._reason or reason
        self._aborted.set()

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

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction for the job's effect. At its end the job is completed in it, with `result` as its result: both
        happen, once, or neither."""
        with self._pool.connection() as db:
            with db.transaction():
                yield db
                self._ack(db, dumps(self.result))
        self._settled = "completed"

    def complete(self, db: psycopg.Connection[Any], result: Any = None) -> None:
        """Completes the job in a transaction of yours."""
        self._ack(db, dumps(result))
        self._settled = "completed"

    def release(self, delay: Delay = None) -> None:
        """Gives the job back: it is available again after the delay, and the attempt does not count."""
        self._say("select (ojs.nack(%s, coalesce(%s::interval, '0'), lease_id => %s)).id", self.id, delay,
            self._lease_id)
        self._settled = "released"

    def progress(self, progress: Optional[float], message: Optional[str] = None, data: Any = None) -> None:
        """How far the job is: from 0 to 1, a message for people, data for programs."""
        self._say("select ojs.progress(%s, %s, %s, %s::jsonb)", self.id, progress, message,
                  None if data is None else dumps(data))

    def save_checkpoint(self, state: Any, db: Optional[psycopg.Connection[Any]] = None) -> None:
        """What the next attempt is to go on from, and finds in `checkpoint`; `db` may be in a transaction of yours."""
        text, values = "select ojs.checkpoint(%s, %s::jsonb)", (self.id, dumps(state))
        query(db, text, *values) if db else self._say(text, *values)
        self.checkpoint = state

    def _say(self, text: str, *values: Any) -> None:
        with self._pool.connection() as db:
            query(db, text, *values)

    def _ack(self, db: psycopg.Connection[Any], result: str) -> None:
        query(db, "select (ojs.ack(%s, nullif(%s, 'null')::jsonb, lease_id => %s)).id", self.id, result, self._lease_id)

    def _insist(self, report: Callable[[], None]) -> None:
        """Again and again while the server is away, as long as the job may be ours."""
        tries = 0
        while True:
            try:
                return report()
            except Exception as error:
                if tries and isinstance(error, OjsError) and error.code == "JOB_ALREADY_COMPLETED":
                    return None  # an earlier try was committed
                if not is_transient(error) or self.reason in ("lost", "cancelled", "shutdown"):
                    raise
            time.sleep(backoff(tries))
            tries += 1

    def run(self, handler: Callable[[Job], Any]) -> tuple[str, Optional[BaseException]]:
        """Runs the handler and tells the server. The outcome: completed, released, failed, gone; and the error."""
        try:
            result = handler(self)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            if self._settled is None:
                text = dumps(self.result if result is None else result)
                self._insist(lambda: self._acked(text))
            return self._settled or "completed", None
        except BaseException as error:
            try:
                return self._failed(error)
            except Exception as refused:
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
        self._insist(lambda: self._say("select (ojs.fail(%s, %s::jsonb, lease_id => %s, delay => %s::interval)).id",
            self.id,
                                       failure(error), self._lease_id, error.delay if isinstance(error,
                                           JobError) else None))
        return "failed", error


async def _awaited(result: Any) -> Any:
    return await result
