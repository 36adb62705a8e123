"""The parts of the asyncio client that differ from threads: closing, pauses, and calls of users'
functions. `client/sync/runtime` has the same names for the blocking client."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.client.http import Field

Value = str | Callable[[], str | Awaitable[str]]


class Lifetime:
    """Whether a client is closed, and the pauses of its flows."""

    __slots__ = ("is_closed",)

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, blocking: bool) -> Any:
    """Call a function, which may be async; a blocking one of ours runs in a thread."""
    if blocking:
        return await asyncio.to_thread(function, *arguments)
    return await _resolved(function(*arguments))


async def field_values(fields: Iterable[Field]) -> dict[str, str]:
    """Return headers or parameters by name; values that are callables are called."""
    return {
        field.name: field.prefix
        + await _resolved(field.value() if callable(field.value) else field.value)
        for field in fields
    }


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
