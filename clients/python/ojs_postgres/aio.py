"""The event loop in which all coroutine handlers of a worker run: one, so that they can share clients and pools."""
from __future__ import annotations

import asyncio
import logging
import select
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Optional

import psycopg
from psycopg.pq import TransactionStatus

_log = logging.getLogger("ojs_postgres")


def readable(files: list[int], within: float) -> list[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(max(0, within) * 1000)]


class Call:
    """One awaitable in the loop. `done` is set once it has ended, with a result or an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any]) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: Optional[BaseException] = None
        self._loop = loop
        self._task: Optional[asyncio.Task[None]] = None
        loop.call_soon_threadsafe(self._begin, awaitable)  # with the context variables of this thread

    def _begin(self, awaitable: Awaitable[Any]) -> None:
        self._task = self._loop.create_task(self._main(awaitable))
        self._task.add_done_callback(self._ended)

    async def _main(self, awaitable: Awaitable[Any]) -> None:
        try:
            self.result = await awaitable
        except BaseException as error:  # SystemExit would end the loop
            self.error = error

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began
            self.error = asyncio.CancelledError()
        self.done.set()

    def cancel(self) -> None:
        def cancel_task() -> None:
            if self._task:
                self._task.cancel()
        try:
            self._loop.call_soon_threadsafe(cancel_task)
        except RuntimeError:
            pass  # the loop is closed


class Loop:
    """An event loop in a thread of its own, from the first call on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._closing = False

    def call(self, awaitable: Awaitable[Any]) -> Call:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="ojs loop", daemon=True)
                self._thread.start()
            return Call(self._loop, awaitable)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._closing:
            try:
                loop.run_forever()
            except BaseException:  # SystemExit of a task that a handler has made
                _log.exception("a task in the event loop of the handlers raised; the loop goes on")

    def close(self, last: Callable[[], Awaitable[Any]], within: float) -> None:
        """Cancels what still runs in the loop, then runs `last` in it, and ends it."""
        if self._loop is None or self._thread is None:
            return

        async def end() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=within / 2)
            await last()
        self.call(end()).done.wait(within)
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within)


class AsyncConnections:
    """A pool as small as it can be, for the loop: as many connections as are used at once."""

    def __init__(self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]) -> None:
        self._connect = connect
        self._idle: list[psycopg.AsyncConnection[Any]] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        db = await self._take() or await self._connect()
        try:
            yield db
        finally:
            if db.closed or db.info.transaction_status != TransactionStatus.IDLE:
                await db.close()
            else:
                self._idle.append(db)

    async def _take(self) -> Optional[psycopg.AsyncConnection[Any]]:
        while self._idle:
            db = self._idle.pop()
            if not db.closed and not readable([db.fileno()], 0):
                return db
            await db.close()  # the server has ended it
        return None

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()
