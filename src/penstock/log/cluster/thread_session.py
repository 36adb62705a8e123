"""A session of PostgreSQL for a thread that waits for it: the commit, checkpoint and look-up
threads each have an event loop of their own, so that none waits for the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.log.cluster.database import Fenced, Refused, Session

T = TypeVar("T")


class ThreadLoop:
    """The event loop of one thread, made when it is first used there."""

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
    """A thread's loop with one session, which is opened again after its outcome was unknown."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._loop = ThreadLoop()
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

        return self._loop.run(run)

    def close(self) -> None:
        async def end() -> None:
            if self._session is not None:
                self._session.abort()
                await asyncio.sleep(0)  # its transport is closed in the next turn

        if self._session is not None:
            self._loop.run(end)
        self._loop.close()
