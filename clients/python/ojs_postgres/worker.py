"""Claims jobs and has them handled, each in a thread. One connection of the worker's own listens, claims and sends
heartbeats, so that handlers which use up the pool cannot cost the worker its leases. Everything else goes through the
pool."""
from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Optional, Union

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from .errors import OjsError, backoff, is_transient, query
from .job import Job, Pool
from .trace import span

Handler = Callable[[Job], Any]
_CLAIM = """
  select id, type, queue, args, meta, priority, attempt, max_attempts, deliveries, tags, created_at, scheduled_at,
    errors, extra, lease_id, extract(epoch from coalesce(timeout, '30 min'))::float8 as timeout_s,
    extract(epoch from lease_expires_at - clock_timestamp())::float8 as lease_s
  from ojs.claim(%s::text[], %s, max => %s, lease => %s::interval, missing_ok => true)"""
_LAST_WORDS = 1.0  # for handlers that were told to stop, in seconds
_log = logging.getLogger("ojs_postgres")


class JsonFormatter(logging.Formatter):
    """For log records as lines of JSON, with what they are about."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        return json.dumps({"time": at, "level": record.levelname.lower(), "message": record.getMessage(),
                           **getattr(record, "ojs", {})}, default=str)


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
            if not db.closed and not _readable([db.fileno()], 0):
                return db
            db.close()  # the server has ended it

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()


def _readable(files: list[int], seconds: float) -> list[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(max(0, seconds) * 1000)]


class Worker:
    def __init__(self, handlers: Optional[Mapping[str, Handler]] = None, *, queues: Sequence[str] = ("default",),
                 concurrency: int = 10, connection: Union[str, Mapping[str, Any]] = "", pool: Optional[Pool] = None,
                 lease: Optional[str] = None, grace: float = 25, poll: float = 5, heartbeat: float = 5,
                 name: Optional[str] = None, labels: Sequence[str] = ()) -> None:
        if isinstance(queues, str) or not queues:
            raise TypeError("queues must be a list of names")
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency must be 1 to 1000")
        self.handlers: dict[str, Handler] = dict(handlers or {})
        self.queues, self.concurrency, self.lease, self.labels = list(queues), concurrency, lease, list(labels)
        self.grace, self.poll, self.heartbeat = grace, poll, heartbeat
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._conninfo = {"conninfo": connection} if isinstance(connection, str) else dict(connection)
        self._own_pool = None if pool else _Connections(self._new_connection)
        self._pool: Pool = pool or self._own_pool  # type: ignore[assignment]
        self._control: Optional[psycopg.Connection[Any]] = None
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
        def register(function: Handler) -> Handler:
            self.handlers[type] = function
            return function
        return register

    def run(self, *, drain: bool = False) -> None:
        """Works until stop(), SIGTERM or SIGINT; with drain, until the queues have nothing to claim."""
        with self._signals():
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
                        self._say(logging.WARNING, "connecting again", error=str(error), pause=round(pause, 2))
                        self._disconnect()
                        self._sleep(time.monotonic() + pause)
            finally:
                self._end()

    def stop(self, grace: Optional[float] = None) -> None:
        """Claims nothing more, waits for handlers for `grace` seconds, then aborts them and gives their jobs back."""
        abort_at = time.monotonic() + (self.grace if grace is None else grace)
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
        for file in _readable(files, until - time.monotonic()):
            if file == self._alarm[0]:
                os.read(file, 4096)
            elif self._control:
                self._control.pgconn.consume_input()
                while notify := self._control.pgconn.notifies():
                    self._heard(notify.relname.decode(errors="replace"), notify.extra.decode(errors="replace"))

    def _heard(self, channel: str, payload: str) -> None:
        self._more = self._more or channel != "ojs" or payload in self.queues

    def _over(self) -> bool:
        return self._abort_at is not None and (not self._running or time.monotonic() >= self._abort_at + _LAST_WORDS)

    def _new_connection(self) -> psycopg.Connection[Any]:
        options = {"application_name": "ojs-postgres", "connect_timeout": 10, "keepalives_idle": 10,
                   "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15000}
        return psycopg.connect(**{**options, **self._conninfo}, autocommit=True, prepare_threshold=None)

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
        self._registered = self._more = True
        self._next_beat = 0.0

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
            free = self.concurrency - len(self._running)
            claims = free > 0 and not stopping and not self._quiet
            if claims and (self._more or now >= self._next_poll):
                self._claim(free)
            elif drain and not self._more and not self._running:
                self._abort_at = now
            else:
                until = [self._next_beat] + ([self._next_poll] if claims else [])
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
            job = Job(row, self._pool, sent_at)
            with self._lock:
                if old := self._running.get(job.id):
                    old.abort("lost")
                self._running[job.id] = job
            self._next_beat = min(self._next_beat, time.monotonic() + job.beat_within)
            threading.Thread(target=self._work, args=(job,), name=f"ojs {job.id}", daemon=True).start()

    def _work(self, job: Job) -> None:
        handler = self.handlers.get(job.type) or self.handlers.get("*")
        about = {"job": job.id, "type": job.type, "queue": job.queue, "attempt": job.attempt}
        begun = time.monotonic()
        self._say(logging.DEBUG, "job started", **about)
        if handler:
            with_span = handler

            def handled(it: Job) -> Any:
                with span(it):
                    return with_span(it)
            outcome, error = job.run(handled)
        else:
            outcome, error = job.run(lambda it: it.release("30 s"))
        with self._lock:
            if self._running.get(job.id) is job:
                del self._running[job.id]
        about.update(outcome=outcome, ms=round((time.monotonic() - begun) * 1000))
        if not handler:
            self._say(logging.WARNING, "nothing here handles this type: given back for 30 s", **about)
        elif error:
            self._say(logging.WARNING, f"job {outcome}", **about, error=str(error), error_type=type(error).__name__)
        else:
            self._say(logging.INFO, f"job {outcome}", **about)
        self._wake()

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
            self._say(logging.WARNING, "could not say goodbye: leases will run out", error=str(error))
        self._disconnect()
        if self._own_pool:
            self._own_pool.close()
        self._say(logging.INFO, "stopped")
