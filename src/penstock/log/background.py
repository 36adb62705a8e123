"""Work in the background: on a thread of its own, at a set pace, until it is called off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

T = TypeVar("T")


class CalledOff(Exception):
    """The work was called off."""


class Pace:
    """Bounds the bytes a second that a thread reads; `rate` None or 0 means no bound."""

    def __init__(
        self, rate_bytes_s: float | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate_bytes_s
        self._monotonic = monotonic
        self._due_s = monotonic()
        self._off = threading.Event()

    def call_off(self) -> None:
        """Let the next `take` raise CalledOff. Called from any thread."""
        self._off.set()

    def take(self, size: int = 0) -> None:
        """Wait until `size` more bytes may be read."""
        wait_s = 0.0
        if self._rate:
            # Time that was not used is not saved up: the disk would be busy all at once then.
            self._due_s = max(self._due_s, self._monotonic()) + size / self._rate
            wait_s = self._due_s - self._monotonic()
        if self._off.wait(wait_s) if wait_s > 0 else self._off.is_set():
            raise CalledOff


async def on_thread(function: Callable[[], T], name: str) -> T:
    """Return the result of a function that runs on a thread of its own. The thread is no reason for
    the process to stay: what it does may be given up at any moment."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - raised again where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
