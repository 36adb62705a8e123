"""SIGINT and SIGTERM while a pipeline runs: it ends after the current batch.

The handlers are also set while Spark starts: an interrupt there would leave a Java process behind.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Stop request flag and its callback."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.requested = False
        self._notify = notify
        self._callback: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_request(self, callback: Callable[[], None]) -> None:
        """Set the callback; a stop that was requested before interrupts now."""
        self.listen()  # Spark has replaced our handler by its own, which does not wait for a batch
        self._callback = callback
        if self.requested:
            raise KeyboardInterrupt

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # other threads cannot handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._notify("stopping after this batch; once more stops at once")
        if self._callback is not None:
            self._callback()


@contextmanager
def stopped_by_signals(notify: Callable[[str], None]) -> Iterator[Stop]:
    """A context in which the first signal requests a stop, and the second one interrupts."""
    stop = Stop(notify)
    stop.listen()
    try:
        yield stop
    finally:
        stop.close()
