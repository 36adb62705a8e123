"""A session of PostgreSQL for threads that wait for it: commits, checkpoints and look-ups each have
an event loop of their own, so that none waits for the server's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.log.cluster.database import Fenced, Refused, Session

T = TypeVar("T")


class ThreadLoop:
    """An event loop beside that of the server, made when it is first used."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end, blocking the thread."""
        if self._runner is None:
            # Not the loop of the server: one that is quick to begin and end.
            self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        # Not `Runner.run`, which takes three times as long: a commit is one call.
        return self._runner.get_loop().run_until_complete(work())

    def close(self) -> None:
        """Close the loop, in its thread or after that has ended."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


class ThreadSession:
    """A loop with one session, which is opened again after its outcome was unknown. Threads use it
    one at a time."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._loop = ThreadLoop()
        self._lock = threading.Lock()
        self._open = open_session
        self._session: Session | None = None

    def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run `work` with the session, blocking the thread. What it raises is raised."""

        async def run() -> T:
            session = self._session
            if session is None or session.is_closed:
                session = self._session = await self._open()
            try:
                return await work(session)
            except (Refused, Fenced):
                raise
            except BaseException:
                session.abort()
                self._session = None
                raise

        with self._lock:
            return self._loop.run(run)

    def close(self) -> None:
        """Called after the last run, on no thread that runs one."""

        async def end() -> None:
            if self._session is not None:
                self._session.abort()
                await asyncio.sleep(0)  # its transport is closed in the next turn

        if self._session is not None:
            self._loop.run(end)
        self._loop.close()
