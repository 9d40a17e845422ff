"""What the server refuses, what handlers raise, and what they are interrupted with."""
from __future__ import annotations

import json
import random
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Optional

import psycopg
from psycopg.rows import dict_row

from .values import Duration, interval, reportable, storable, text_of

Reason = Literal["cancelled", "lost", "timeout", "shutdown"]


class OjsError(Exception):
    """An error that ojs raised: its code in the specification, its SQLSTATE, and whether trying again can help."""

    def __init__(self, message: str, *, code: str, sqlstate: Optional[str], retryable: bool = False,
                 details: Optional[dict[str, Any]] = None, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.code, self.sqlstate, self.retryable, self.hint = code, sqlstate, retryable, hint
        self.details: dict[str, Any] = details or {}


class JobError(Exception):
    """Raised by a handler to say more than that the attempt failed."""

    def __init__(self, message: str, *, type: str = "JobError", retryable: Optional[bool] = None, details: Any = None,
                 delay: Optional[Duration] = None) -> None:
        super().__init__(message)
        self.type, self.retryable, self.details, self.delay = type, retryable, details, delay


class JobAborted(Exception):
    """Raised by Job.check(): the job was cancelled or lost, is over its timeout, or the worker stops."""

    def __init__(self, reason: Reason) -> None:
        super().__init__({"cancelled": "the job was cancelled", "lost": "the job is not this worker's any more",
                          "timeout": "the job has run for longer than its timeout",
                          "shutdown": "the worker stops"}[reason])
        self.reason = reason


# PostgreSQL's own errors of a role or a database that has not been set up.
_NOT_ALLOWED, _NO_EXTENSION, _OTHER_VERSION = "42501", "3F000", "42883"
_PRODUCING = re.compile(r"ojs\.(push_job|push_many|cancel|info|wait_result)\(")


def _translated(error: psycopg.Error, info: psycopg.ConnectionInfo, text: str) -> Optional[OjsError]:
    detail, message = error.diag.message_detail or "", error.diag.message_primary or str(error)
    if re.match(r'\{.*"code"', detail):
        about = json.loads(detail)
        return OjsError(message, code=about["code"], sqlstate=error.sqlstate,
                        retryable=about.get("retryable", False), details=about.get("details"),
                        hint=error.diag.message_hint)
    if error.sqlstate == _NOT_ALLOWED:
        role = "ojs_producer" if _PRODUCING.search(text) else "ojs_worker"
        return OjsError(message, code="PERMISSION_DENIED", sqlstate=error.sqlstate,
                        hint=f"Have an administrator run: grant {role} to {info.user}")
    if error.sqlstate == _NO_EXTENSION and '"ojs"' in message:
        return OjsError(f'database "{info.dbname}" does not have the extension ojs', code="UNAVAILABLE",
                        sqlstate=error.sqlstate,
                        hint="Have an administrator run, in that database: create extension ojs")
    if error.sqlstate == _OTHER_VERSION and "ojs." in message:
        return OjsError(message, code="UNAVAILABLE", sqlstate=error.sqlstate,
                        hint="The extension is of another version than the library: alter extension ojs update")
    return None


@contextmanager
def translated(db: Any, text: str) -> Iterator[None]:
    """What ojs raises becomes an OjsError, and what says that it was not set up; any other error stays as it is."""
    try:
        yield
    except psycopg.Error as error:
        if found := _translated(error, db.info, text):
            raise found from error
        raise


def _other_driver(db: Any) -> str:
    if type(db).__module__.startswith("psycopg2"):
        return "db is a connection of psycopg 2: the library needs one of psycopg 3"
    if hasattr(db, "getconn"):
        return "db is a pool: give a connection of it, as in with pool.connection() as db"
    return f"db must be a connection of psycopg 3, not {type(db).__name__}"


def sync_connection(db: Any, instead: str) -> psycopg.Connection[Any]:
    db = getattr(db, "driver_connection", db)  # of SQLAlchemy
    if isinstance(db, psycopg.Connection):
        return db
    raise TypeError(f"db is an AsyncConnection: use {instead}" if isinstance(db, psycopg.AsyncConnection)
                    else _other_driver(db))


def async_connection(db: Any, instead: str) -> psycopg.AsyncConnection[Any]:
    db = getattr(db, "driver_connection", db)
    if isinstance(db, psycopg.AsyncConnection):
        return db
    raise TypeError(f"db is a Connection and not an AsyncConnection: use {instead}"
                    if isinstance(db, psycopg.Connection) else _other_driver(db))


def query(db: psycopg.Connection[Any], text: str, *values: Any) -> list[dict[str, Any]]:
    with translated(db, text):
        cursor = db.cursor(row_factory=dict_row).execute(text, values)
        return cursor.fetchall() if cursor.description else []


async def query_async(db: psycopg.AsyncConnection[Any], text: str, *values: Any) -> list[dict[str, Any]]:
    with translated(db, text):
        cursor = await db.cursor(row_factory=dict_row).execute(text, values)
        return await cursor.fetchall() if cursor.description else []


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


def _raised_within(error: BaseException) -> list[BaseException]:
    """The errors of an ExceptionGroup, without the groups; of any other error, that one."""
    members = getattr(error, "exceptions", None)
    if not (isinstance(members, tuple) and members and all(isinstance(one, BaseException) for one in members)):
        return [error]
    return [leaf for member in members[:100] for leaf in _raised_within(member)]


def error_type(error: BaseException) -> str:
    """What kind of error this is, as the job's history has it."""
    kind = error.type if isinstance(error, JobError) else error.reason if isinstance(error, JobAborted) else \
        error.code if isinstance(error, OjsError) else type(error).__name__
    return text_of(kind, 200).strip() or type(error).__name__


def _described(error: BaseException) -> dict[str, Any]:
    kind = error_type(error)
    return {"type": kind, "message": text_of(error) or kind}


def failure(error: BaseException) -> Iterator[tuple[str, Optional[str]]]:
    """What a handler raised, as ojs.fail() takes it: the report and a delay. Where the server refuses the first one, a
    shorter one follows, and then one that it always takes."""
    leaves = _raised_within(error)
    chosen = next((one for one in leaves if isinstance(one, JobError) and one.retryable is False), leaves[0])
    if len(leaves) == 1:
        error = chosen
    report = _described(error)
    known: dict[str, Any] = {"type": report["type"], "message": report["message"][:1000]}
    delay = None
    if isinstance(chosen, JobError):
        if chosen.retryable is not None:
            report["retryable"] = known["retryable"] = bool(chosen.retryable)
        report["details"] = reportable(chosen.details)
        try:
            delay = interval(chosen.delay, "delay")
        except Exception as wrong:
            report["message"] += f" ({text_of(wrong)})"
    if len(leaves) > 1:
        report["details"] = {"errors": [_described(one) for one in leaves], "details": report.get("details")}
    try:
        backtrace = storable("".join(traceback.format_tb(error.__traceback__))).splitlines()[-50:]
    except Exception:
        backtrace = []
    yield json.dumps({**report, "backtrace": backtrace}), delay
    yield json.dumps(known), delay
    known.update(type="Error", message="the handler failed, and its error could not be stored")
    yield json.dumps(known), None
