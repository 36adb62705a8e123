"""The parts of the blocking client that differ from an event loop: closing, pauses, and calls of
users' functions. `client/aio/runtime` has the same names for the asyncio client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from penstock.client.http import Field

Value = str | Callable[[], str]


class Lifetime:
    """Whether a client is closed, and the pauses of its flows."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()

    def pause(self, seconds: float) -> None:
        """Wait, or until the client is closed."""
        self._closed.wait(seconds)


def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, blocking: bool) -> Any:
    """Call a function in the caller's thread, `blocking` or not."""
    return function(*arguments)


def field_values(fields: Iterable[Field]) -> dict[str, str]:
    """Return headers or parameters by name; values that are callables are called."""
    return {
        field.name: field.prefix + (field.value() if callable(field.value) else field.value)
        for field in fields
    }
