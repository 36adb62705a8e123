"""Both clients behind one blocking face, so that each test is written once.

The asyncio client and everything it gives is wrapped: awaitables are waited for, asynchronous
iterators become plain ones.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from penstock.client.aio.producer import AsyncProducer
from penstock.client.aio.stream import AsyncFollow, AsyncStream


class Blocking:
    """An object of the asyncio client, used as if it were one of the blocking client."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target = target
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._target, name))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def following() -> Any:
            try:
                return True, await anext(self._target)
            except StopAsyncIteration:
                return False, None

        more, value = self._runner.run(following())
        if not more:
            raise StopIteration
        return value

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        async def leave() -> None:
            await self._target.close()

        self._runner.run(leave())

    def _wrap(self, value: Any) -> Any:
        if callable(value):
            return lambda *args, **options: self._call(value, *args, **options)
        return value

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        value = function(*args, **options)
        if inspect.isawaitable(value):
            value = self._runner.run(_awaited(value))
        if isinstance(value, AsyncStream | AsyncFollow | AsyncProducer | AsyncIterator):
            return Blocking(value, self._runner)
        return value


async def _awaited(value: Any) -> Any:
    return await value


Connect = Callable[..., Any]


@contextmanager
def connecting(shell: str) -> Iterator[Connect]:
    """A function that makes clients of the given kind; they are closed at the end."""
    clients: list[Any] = []
    with asyncio.Runner() as runner:

        def connect(url: str, **options: Any) -> Any:
            client: Any = (
                penstock.Client(url, **options)
                if shell == "sync"
                else Blocking(penstock.AsyncClient(url, **options), runner)
            )
            clients.append(client)
            return client

        try:
            yield connect
        finally:
            for client in clients:
                client.close()
