"""Claims jobs and has them handled, each in a thread; coroutine handlers run in one event loop. One connection of the
worker's own listens, claims and sends heartbeats, so that handlers which use up the pool cannot cost the worker its
leases. Everything else goes through the pool."""
from __future__ import annotations

import inspect
import json
import logging
import os
import queue
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NoReturn, Optional, Union

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from .aio import AsyncConnections, Loop, readable
from .errors import OjsError, backoff, error_type, is_transient, query
from .job import Job, Pool
from .names import check_names
from .trace import span
from .values import Duration, interval, seconds, text_of

Handler = Callable[[Job], Any]
_CLAIM = """
  select id, type, queue, args, meta, priority, attempt, max_attempts, deliveries, tags, created_at, scheduled_at,
    errors, extra, lease_id, extract(epoch from coalesce(timeout, '30 min'))::float8 as timeout_s,
    extract(epoch from lease_expires_at - clock_timestamp())::float8 as lease_s
  from ojs.claim(%s::text[], %s, max => %s, lease => %s::interval, missing_ok => true)"""
_LAST_WORDS = 1.0  # for handlers that were told to stop, in seconds
_ECHO_WITHIN = 2.0  # for a notification to oneself, in seconds
_OPTIONS = ("handlers", "queues", "concurrency", "connection", "pool", "async_pool", "lease", "grace", "poll",
            "heartbeat", "name", "labels")
_log = logging.getLogger("ojs_postgres")


class JsonFormatter(logging.Formatter):
    """For log records as lines of JSON, with what they are about."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        return json.dumps({"time": at, "level": record.levelname.lower(), "message": record.getMessage(),
                           **getattr(record, "ojs", {})}, default=str)


@contextmanager
def _logging() -> Iterator[None]:
    """Lines of JSON on standard error, while the program has not set up logging."""
    if _log.hasHandlers():
        yield
        return
    level, handler = _log.level, logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


class _Connections:
    """A pool as small as it can be: as many connections as are used at once."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._idle: queue.LifoQueue[psycopg.Connection[Any]] = queue.LifoQueue()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        db = self._take() or self._connect()
        try:
            yield db
        finally:
            if db.closed or db.info.transaction_status != TransactionStatus.IDLE:
                db.close()
            else:
                self._idle.put(db)

    def _take(self) -> Optional[psycopg.Connection[Any]]:
        while True:
            try:
                db = self._idle.get_nowait()
            except queue.Empty:
                return None
            if not db.closed and not readable([db.fileno()], 0):
                return db
            db.close()  # the server has ended it

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()


def _check_type(type: Any) -> None:
    if callable(type):
        raise TypeError('a handler needs the type of its jobs: write @worker.handler("email.send")')
    if not isinstance(type, str) or not type:
        raise TypeError(f"the type of a handler must be a text, not {type!r}"[:300])


def _check_handler(type: Any, function: Any) -> None:
    _check_type(type)
    if not callable(function):
        raise TypeError(f'the handler of "{type}" must be a function, not {function!r}'[:300])


def _check_pool(pool: Any, name: str, is_async: bool) -> None:
    if pool is None:
        return
    if not hasattr(pool, "connection"):
        raise TypeError(f"{name} must be a pool with connection(), not {type(pool).__name__}")
    if type(pool).__name__.startswith("Async") != is_async and type(pool).__module__.startswith("psycopg_pool"):
        raise TypeError(f"a pool of {'synchronous' if is_async else 'asynchronous'} connections is given as "
                        f"{'pool' if is_async else 'async_pool'}")


class Worker:
    def __init__(self, handlers: Optional[Mapping[str, Handler]] = None, *, queues: Sequence[str] = ("default",),
                 concurrency: int = 10, connection: Union[str, Mapping[str, Any]] = "", pool: Optional[Pool] = None,
                 async_pool: Optional[Pool] = None, lease: Optional[Duration] = None, grace: Duration = 25,
                 poll: Duration = 5, heartbeat: Duration = 5, name: Optional[str] = None, labels: Sequence[str] = (),
                 **unknown: NoReturn) -> None:
        check_names(unknown, _OPTIONS, "a worker")
        if isinstance(queues, str) or not queues:
            raise TypeError("queues must be a list of names")
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency must be 1 to 1000")
        for type, function in (handlers or {}).items():
            _check_handler(type, function)
        _check_pool(pool, "pool", False)
        _check_pool(async_pool, "async_pool", True)
        self.handlers: dict[str, Handler] = dict(handlers or {})
        self.queues, self.concurrency, self.labels = list(queues), concurrency, list(labels)
        self.lease = interval(lease, "lease")
        self.grace, self.poll = seconds(grace, "grace"), seconds(poll, "poll")
        self.heartbeat = seconds(heartbeat, "heartbeat")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._conninfo = {"conninfo": connection} if isinstance(connection, str) else dict(connection)
        self._own_pool = None if pool else _Connections(self._new_connection)
        self._pool: Pool = pool or self._own_pool  # type: ignore[assignment]
        self._loop = Loop()
        self._own_async_pool = AsyncConnections(self._new_async_connection)
        self._async_pool: Pool = async_pool or self._own_async_pool
        self._control: Optional[psycopg.Connection[Any]] = None
        self._echo: Optional[tuple[str, float]] = None  # the channel of a notification to oneself, and when it is late
        self._running: dict[uuid.UUID, Job] = {}
        self._lock = threading.Lock()
        self._alarm = os.pipe()
        os.set_blocking(self._alarm[0], False)
        os.set_blocking(self._alarm[1], False)
        self._more = True  # there may be jobs to claim
        self._next_poll = self._next_beat = 0.0
        self._quiet = self._registered = False
        self._welcome = False  # a claim has succeeded: what fails from now on is tried again
        self._failures = 0  # since then
        self._abort_at: Optional[float] = None  # once the worker stops

    def handler(self, type: str) -> Callable[[Handler], Handler]:
        """@worker.handler("email.send"); "*" is for all types that have no other."""
        _check_type(type)

        def register(function: Handler) -> Handler:
            _check_handler(type, function)
            self.handlers[type] = function
            return function
        return register

    def run(self, *, drain: bool = False) -> None:
        """Works until stop(), SIGTERM or SIGINT; with drain, until the queues have nothing to claim."""
        if not self.handlers:
            raise ValueError('the worker has no handlers: add one with @worker.handler("email.send")')
        with _logging(), self._signals():
            try:
                while not self._over():
                    try:
                        self._connect()
                        self._serve(drain)
                        break
                    except (psycopg.Error, OjsError, OSError) as error:
                        if not self._welcome and not is_transient(error):
                            raise  # wrong password, no extension, no such queue
                        pause = backoff(self._failures)
                        self._failures += 1
                        self._say(logging.WARNING, "connecting again", error=text_of(error), pause=round(pause, 2))
                        self._disconnect()
                        self._sleep(time.monotonic() + pause)
            finally:
                self._end()

    def stop(self, grace: Optional[Duration] = None) -> None:
        """Claims nothing more, waits `grace` for handlers, then aborts them and gives their jobs back."""
        abort_at = time.monotonic() + (self.grace if grace is None else seconds(grace, "grace"))
        self._abort_at = abort_at if self._abort_at is None else min(abort_at, self._abort_at)
        self._next_beat = 0.0
        self._wake()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(*_: object) -> None:
            self.stop(None if self._abort_at is None else 0)  # the second one hurries
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, was in before.items():
                signal.signal(number, was)

    def _say(self, level: int, message: str, **about: Any) -> None:
        _log.log(level, message, extra={"ojs": {"worker": self.name, **about}})

    def _wake(self) -> None:
        try:
            os.write(self._alarm[1], b"!")
        except BlockingIOError:
            pass  # it rings already

    def _sleep(self, until: float) -> None:
        files = [self._alarm[0]] + ([self._control.fileno()] if self._control and not self._control.closed else [])
        for file in readable(files, until - time.monotonic()):
            if file == self._alarm[0]:
                os.read(file, 4096)
            elif self._control:
                self._control.pgconn.consume_input()
                while notify := self._control.pgconn.notifies():
                    self._heard(notify.relname.decode(errors="replace"), notify.extra.decode(errors="replace"))

    def _heard(self, channel: str, payload: str) -> None:
        if self._echo and channel == self._echo[0]:
            self._echo = None
        else:
            self._more = self._more or channel != "ojs" or payload in self.queues

    def _over(self) -> bool:
        return self._abort_at is not None and (not self._running or time.monotonic() >= self._abort_at + _LAST_WORDS)

    def _connect_options(self) -> dict[str, Any]:
        options = {"application_name": "ojs-postgres", "connect_timeout": 10, "keepalives_idle": 10,
                   "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15000}
        return {**options, **self._conninfo, "autocommit": True, "prepare_threshold": None}

    def _new_connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(**self._connect_options())

    async def _new_async_connection(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(**self._connect_options())

    def _connect(self) -> None:
        self._control = db = self._new_connection()
        db.add_notify_handler(lambda notify: self._heard(notify.channel, notify.payload))
        for name in self.queues:  # a name of PostgreSQL has 63 bytes; the channel of all queues serves the others
            channel = f"ojs.{name}" if len(name.encode()) <= 59 else "ojs"
            db.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        if not self._registered:
            about = {"hostname": socket.gethostname(), "pid": os.getpid(), "queues": self.queues, "labels": self.labels,
                     "concurrency": self.concurrency, "library": "ojs-postgres/python"}
            query(db, "select ojs.register_worker(%s, %s::jsonb)", self.name, json.dumps(about))
            self._say(logging.INFO, "started", queues=self.queues, concurrency=self.concurrency)
            self._call_oneself(db)
        self._registered = self._more = True
        self._next_beat = 0.0

    def _call_oneself(self, db: psycopg.Connection[Any]) -> None:
        """A pooler has a process id of its own. One that lends connections by the transaction never passes on a
        notification, and raises nothing: so the worker sends itself one."""
        if query(db, "select pg_backend_pid() as pid")[0]["pid"] == db.info.backend_pid:
            return
        channel = f"ojs_echo_{uuid.uuid4().hex}"
        db.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._echo = channel, time.monotonic() + _ECHO_WITHIN
        with self._new_connection() as other:
            other.execute("select pg_notify(%s, '')", (channel,))

    def _disconnect(self) -> None:
        if self._control:
            self._control.close()
        self._control = None

    def _serve(self, drain: bool) -> None:
        stopping = False
        while True:
            now = time.monotonic()
            if self._abort_at is not None:
                if not stopping:
                    self._say(logging.INFO, "stopping", running=len(self._running),
                        grace=round(self._abort_at - now, 1))
                stopping = True
                for job in list(self._running.values()) if now >= self._abort_at else ():
                    job.abort("shutdown")
            if now >= self._next_beat:
                self._beat(stopping)
            if self._over():
                return
            if self._echo and now >= self._echo[1]:
                self._echo = None
                self._say(logging.WARNING, "hears no notifications: `connection` leads through a pooler in transaction "
                          f"mode, so each job waits for a look every {self.poll:g} s; connect to the server itself")
            free = self.concurrency - len(self._running)
            claims = free > 0 and not stopping and not self._quiet
            if claims and (self._more or now >= self._next_poll):
                self._claim(free)
            elif drain and not self._more and not self._running:
                self._abort_at = now
            else:
                until = [self._next_beat] + ([self._next_poll] if claims else [])
                if self._echo:
                    until.append(self._echo[1])
                if self._abort_at is not None:
                    until.append(self._abort_at if now < self._abort_at else self._abort_at + _LAST_WORDS)
                self._sleep(min(until))

    def _claim(self, free: int) -> None:
        sent_at = time.monotonic()
        self._more = False  # a notification may set it meanwhile
        self._next_poll = sent_at + self.poll
        assert self._control
        try:
            rows = query(self._control, _CLAIM, self.queues, self.name, free, self.lease)
        except OjsError as error:
            if error.code != "RATE_LIMITED":
                raise
            self._next_poll = sent_at + error.details.get("retry_after_ms", self.poll * 1000) / 1000
            return
        self._welcome = True
        self._failures = 0
        self._more = self._more or len(rows) == free
        for row in rows:
            job = Job(row, self._pool, sent_at, self._loop, self._async_pool)
            with self._lock:
                if old := self._running.get(job.id):
                    old.abort("lost")
                self._running[job.id] = job
            self._next_beat = min(self._next_beat, time.monotonic() + job.beat_within)
            try:
                threading.Thread(target=self._work, args=(job,), name=f"ojs {job.id}", daemon=True).start()
            except RuntimeError as error:  # the process may have no more threads: the lease runs out
                self._forget(job)
                self._next_poll, self._more = time.monotonic() + self.poll, False
                self._say(logging.ERROR, "no thread for a job", job=job.id, error=text_of(error))

    def _forget(self, job: Job) -> None:
        with self._lock:
            if self._running.get(job.id) is job:
                del self._running[job.id]

    def _work(self, job: Job) -> None:
        handler = self.handlers.get(job.type) or self.handlers.get("*")
        about = {"job": job.id, "type": job.type, "queue": job.queue, "attempt": job.attempt}
        begun = time.monotonic()
        self._say(logging.DEBUG, "job started", **about)
        try:
            outcome, error = job.run(self._traced(handler) if handler else lambda it: it.release(30))
            self._forget(job)
            self._say_end(bool(handler), outcome, error, begun, about)
        finally:  # whatever a log handler raises
            self._forget(job)
            self._wake()

    def _say_end(self, known: bool, outcome: str, error: Optional[BaseException], begun: float,
                 about: dict[str, Any]) -> None:
        about.update(outcome=outcome, ms=round((time.monotonic() - begun) * 1000))
        if not known:
            self._say(logging.WARNING, "nothing here handles this type: given back for 30 s", **about)
        elif error:
            self._say(logging.WARNING, f"job {outcome}", **about, error=text_of(error), error_type=error_type(error))
        else:
            self._say(logging.INFO, f"job {outcome}", **about)

    def _traced(self, handler: Handler) -> Handler:
        def handled(job: Job) -> Any:
            with span(job):
                result = handler(job)
                return job.awaited(result) if inspect.isawaitable(result) else result
        return handled

    def _beat(self, stopping: bool) -> None:
        with self._lock:
            jobs = dict(self._running)
        sent_at = time.monotonic()
        soonest = min([self.heartbeat, *(job.beat_within for job in jobs.values())])
        self._next_beat = sent_at + max(0.05, soonest)
        assert self._control
        answer = query(self._control, "select directive, extended, cancelled, lost from ojs.beat(%s, %s::uuid[], %s)",
                       self.name, list(jobs), "terminate" if stopping else "running")[0]
        for job_id in answer["extended"]:
            jobs[job_id].extended(sent_at)
        for job_id in answer["cancelled"]:
            jobs[job_id].abort("cancelled")
        for job_id in answer["lost"]:
            jobs[job_id].abort("lost")
        self._quiet = answer["directive"] != "running"
        if answer["directive"] == "terminate" and not stopping:
            self.stop()

    def _end(self) -> None:
        try:
            if self._registered and self._control:
                query(self._control, "select ojs.deregister_worker(%s, release => true)", self.name)
        except (psycopg.Error, OjsError) as error:
            self._say(logging.WARNING, "could not say goodbye: leases will run out",
                      error=text_of(error))
        self._disconnect()
        self._loop.close(self._own_async_pool.close, _LAST_WORDS)
        if self._own_pool:
            self._own_pool.close()
        self._say(logging.INFO, "stopped")
