"""The parts of the blocking client that differ from an event loop: closing, pauses, and calls of
users' functions. `client/aio/runtime` has the same names for the asyncio client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

from penstock.client.http import Field

Value = str | Callable[[], str]
Items = Iterable[Any]


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


class Token:
    """The bearer token of a client.

    A function that returns one is called for every request. When the server has refused its token
    it is called again, once for all requests that were on their way.
    """

    __slots__ = ("_lock", "_renewed", "_source", "renewals")

    def __init__(self, source: Value | None) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._renewed = ""
        self.renewals = 0

    def current(self) -> str | None:
        return str(self._source()) if callable(self._source) else self._source

    def after(self, refused: str | None, renewals: int) -> str | None:
        """Return the token that replaces a refused one; None if there is no other.

        `renewals` is their number when the request began.
        """
        if refused is None or not callable(self._source):
            return None
        with self._lock:
            if self.renewals == renewals:
                self._renewed = str(self._source())
                self.renewals += 1
            return None if self._renewed == refused else self._renewed


def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, blocking: bool) -> Any:
    """Call a function in the caller's thread, `blocking` or not."""
    return function(*arguments)


def field_values(fields: Iterable[Field]) -> dict[str, str]:
    """Return headers or parameters by name; values that are callables are called."""
    return {field.name: field.value() if callable(field.value) else field.value for field in fields}


def each(items: Items) -> Generator[Any, None, None]:
    """Yield the items of a source; a generator is closed at the end, however that comes."""
    try:
        yield from items
    finally:
        if isinstance(items, Generator):
            items.close()
