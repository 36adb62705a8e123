"""Both live states behind one blocking face, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from penstock import Retry
from penstock.state import AsyncLiveState, AsyncTransaction, LiveState

QUICK = Retry(first_s=0.001, max_s=0.01, attempts_max=4)
WAIT_S = 20.0  # for what comes at once; only a failing test waits that long


class Recorder:
    """A callback that records its calls, and can be waited for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._called = threading.Condition()

    def __call__(self, *arguments: Any) -> None:
        with self._called:
            self.calls.append(arguments)
            self._called.notify_all()

    def until(self, first: Any) -> list[tuple[Any, ...]]:
        """All calls, once one with that first argument has come."""
        with self._called:
            came = self._called.wait_for(
                lambda: any(call[0] == first for call in self.calls), WAIT_S
            )
            assert came, self.calls
            return list(self.calls)


class Face:
    """An object of the asyncio shell, used as if it were one of the blocking shell."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._wrapped(value) if inspect.ismethod(value) else value

    def __enter__(self) -> Any:
        self._run(self._target.__aenter__())
        return self

    def __exit__(self, *failure: object) -> None:
        self._run(self._target.__aexit__(*failure))

    def _wrapped(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            value = method(*arguments, **options)
            if inspect.isawaitable(value):
                return self._run(value)
            return Face(value, self._loop) if isinstance(value, AsyncTransaction) else value

        return call

    def _run(self, awaitable: Any) -> Any:
        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


class Lives:
    """Makes live states of one kind."""

    def __init__(self, kind: str, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self._url = url
        self._loop = loop

    def client(self, transport: Any = None) -> Any:
        if self.kind == "sync":
            return penstock.Client(self._url, retry=QUICK, transport=transport)
        return Face(penstock.AsyncClient(self._url, retry=QUICK, transport=transport), self._loop)

    @contextmanager
    def __call__(self, name: str, *, transport: Any = None, **options: Any) -> Iterator[Any]:
        """A live state that follows the stream of that name."""
        with self.client(transport) as client, self.not_started(client, name, **options) as state:
            yield state

    def not_started(self, client: Any, name: str, **options: Any) -> Any:
        if self.kind == "sync":
            return LiveState(client.stream(name), **options)
        stream = client._target.stream(name)

        async def make() -> AsyncLiveState:
            return AsyncLiveState(stream, **options)

        state = asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        return Face(state, self._loop)


@contextmanager
def shells(kind: str, url: str) -> Iterator[Lives]:
    """A maker of live states, with a loop in a thread for those that need one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield Lives(kind, url, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
