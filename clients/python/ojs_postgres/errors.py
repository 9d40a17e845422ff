"""What the server refuses, what handlers raise, and what they are interrupted with."""
from __future__ import annotations

import json
import random
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, Literal, Optional, Union
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

Reason = Literal["cancelled", "lost", "timeout", "shutdown"]
Delay = Union[str, timedelta, None]


class OjsError(Exception):
    """An error that ojs raised: its code in the specification, its SQLSTATE, and whether trying again can help."""

    def __init__(self, error: psycopg.Error, detail: dict[str, Any]) -> None:
        super().__init__(error.diag.message_primary)
        self.code: str = detail["code"]
        self.sqlstate = error.sqlstate
        self.retryable: bool = detail.get("retryable", False)
        self.details: dict[str, Any] = detail.get("details") or {}
        self.hint = error.diag.message_hint


class JobError(Exception):
    """Raised by a handler to say more than that the attempt failed."""

    def __init__(self, message: str, *, type: str = "JobError", retryable: Optional[bool] = None, details: Any = None,
                 delay: Delay = None) -> None:
        super().__init__(message)
        self.type, self.retryable, self.details, self.delay = type, retryable, details, delay


class JobAborted(Exception):
    """Raised by Job.check(): the job was cancelled or lost, is over its timeout, or the worker stops."""

    def __init__(self, reason: Reason) -> None:
        super().__init__({"cancelled": "the job was cancelled", "lost": "the job is not this worker's any more",
                          "timeout": "the job has run for longer than its timeout",
                          "shutdown": "the worker stops"}[reason])
        self.reason = reason


@contextmanager
def translated() -> Iterator[None]:
    """What ojs raises becomes an OjsError; any other error stays as it is."""
    try:
        yield
    except psycopg.Error as error:
        detail = error.diag.message_detail or ""
        if re.match(r'\{.*"code"', detail):
            raise OjsError(error, json.loads(detail)) from error
        raise


def query(db: psycopg.Connection[Any], text: str, *values: Any) -> list[dict[str, Any]]:
    with translated():
        cursor = db.cursor(row_factory=dict_row).execute(text, values)
        return cursor.fetchall() if cursor.description else []


TRANSIENT = re.compile("08|53|57P0|40001|40P01|55P03")  # connection, resources, restart, serialization, deadlock, lock


PASSING = ("starting up", "shutting down", "in recovery", "too many", "remaining connection slots")


def is_transient(error: Exception) -> bool:
    """Whether the same statement may work later: the server was not reached, restarts, or was in somebody's way."""
    if isinstance(error, OjsError):
        return error.retryable
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return bool(TRANSIENT.match(error.sqlstate))
    # No connection. Where the server itself refused one, only its words say why.
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)) and (
        "FATAL" not in str(error) or any(words in str(error) for words in PASSING))


def backoff(tries: int) -> float:
    """Growing pauses, in seconds: no two workers come back at the same moment."""
    return float(min(10, 0.1 * 2 ** min(tries, 10)) * random.uniform(0.5, 1))


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON: {value!r}"[:500])


def dumps(value: Any) -> str:
    """JSON; times as ISO 8601, durations as seconds."""
    return json.dumps(value, default=_plain, allow_nan=False)


def _storable(text: str) -> str:
    return text.replace("\0", "").encode(errors="ignore").decode()


def failure(error: BaseException) -> str:
    """What a handler raised, as ojs.fail() takes it."""
    kind = error.type if isinstance(error, JobError) else error.reason if isinstance(error, JobAborted) else \
        error.code if isinstance(error, OjsError) else type(error).__name__
    backtrace = _storable("".join(traceback.format_tb(error.__traceback__))).splitlines()[-50:]
    report: dict[str, Any] = {"type": kind, "message": _storable(str(error)) or kind, "backtrace": backtrace}
    if isinstance(error, JobError):
        report.update(details=error.details, **({} if error.retryable is None else {"retryable": error.retryable}))
    return json.dumps(report, default=str)
