"""Signals to stop, for both transports: how long a stop may take, and the end of one that hangs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

log = logging.getLogger("penstock.http")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Of the time to stop: until when requests in flight may finish, and until when the last checkpoint
# may.
DRAIN_SHARE: Final = 0.6
CHECKPOINT_SHARE: Final = 0.9
# A checkpoint of a small store gets this time however short the setting is.
CHECKPOINT_MIN_S: Final = 1.0
# So does a stop before the process is ended.
EXIT_MIN_S: Final = 5.0


class StopClock:
    """The time that a stop may take, from the first signal on."""

    __slots__ = ("_started", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._started = time.monotonic()

    def drain_s(self) -> float:
        """Return how much longer requests in flight may take."""
        return self._left(DRAIN_SHARE)

    def checkpoint_s(self) -> float:
        """Return how much longer the store may take to close."""
        return max(self._left(CHECKPOINT_SHARE), CHECKPOINT_MIN_S)

    def exit_s(self) -> float:
        """Return how much longer the process may live."""
        return max(self._left(1.0), EXIT_MIN_S)

    def _left(self, share: float) -> float:
        return max(self._started + share * self._timeout_s - time.monotonic(), 0.0)


def exit_later(clock: StopClock, code: int) -> None:
    """End the process when its time is up, even if the event loop hangs.

    Everything acknowledged is durable: leaving then loses nothing but the checkpoint.
    """

    def leave() -> None:
        log.error("The server did not stop in time: the process ends now.")
        os._exit(code)

    timer = threading.Timer(clock.exit_s(), leave)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def signals_seen(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` for each signal to stop, before whoever handles it now. Does nothing outside
    of the main thread, where signals cannot be handled.

    `handle` runs between two steps of the interpreter, wherever that is: also while the event loop
    is busy.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def seen(number: int, frame: FrameType | None) -> None:
        handle(number)
        before = previous[number]
        if callable(before):
            before(number, frame)

    for number in SIGNALS:
        signal.signal(number, seen)
    try:
        yield
    finally:
        for number in SIGNALS:
            if signal.getsignal(number) is seen:
                signal.signal(number, previous[number])
