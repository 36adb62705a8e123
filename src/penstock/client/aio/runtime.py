"""The parts of the asyncio client that differ from threads: closing, pauses, and calls of users'
functions. `client/sync/runtime` has the same names for the blocking client."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from typing import Any

from penstock.client.http import Field

Value = str | Callable[[], str | Awaitable[str]]
Items = AsyncIterable[Any] | Iterable[Any]


class Lifetime:
    """Whether a client is closed, and the pauses of its flows."""

    __slots__ = ("is_closed",)

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Token:
    """The bearer token of a client.

    A function that returns one is called for every request. When the server has refused its token
    it is called again, once for all requests that were on their way.
    """

    __slots__ = ("_lock", "_renewed", "_source", "renewals")

    def __init__(self, source: Value | None) -> None:
        self._source = source
        self._lock = asyncio.Lock()
        self._renewed = ""
        self.renewals = 0

    async def current(self) -> str | None:
        return str(await _resolved(self._source())) if callable(self._source) else self._source

    async def after(self, refused: str | None, renewals: int) -> str | None:
        """Return the token that replaces a refused one; None if there is no other.

        `renewals` is their number when the request began.
        """
        if refused is None or not callable(self._source):
            return None
        async with self._lock:
            if self.renewals == renewals:
                self._renewed = str(await _resolved(self._source()))
                self.renewals += 1
            return None if self._renewed == refused else self._renewed


async def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, blocking: bool) -> Any:
    """Call a function, which may be async; a blocking one of ours runs in a thread."""
    if blocking:
        return await asyncio.to_thread(function, *arguments)
    return await _resolved(function(*arguments))


async def field_values(fields: Iterable[Field]) -> dict[str, str]:
    """Return headers or parameters by name; values that are callables are called."""
    return {
        field.name: await _resolved(field.value() if callable(field.value) else field.value)
        for field in fields
    }


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def each(items: Items) -> AsyncGenerator[Any, None]:
    """Yield the items of a source; a generator is closed at the end, however that comes."""
    try:
        if isinstance(items, AsyncIterable):
            async for item in items:
                yield item
        else:
            for item in items:
                yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
        elif isinstance(items, Generator):
            items.close()
