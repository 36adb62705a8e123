"""Ctrl-C and SIGTERM, while a pipeline runs: it ends after the batch that it is at.

Also while Spark is being started: an interrupt there would leave a Java behind that nobody ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Whether somebody wants an end, and who is to be told of it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.asked = False
        self._tell = tell
        self._call: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def calls(self, call: Callable[[], None]) -> None:
        """Tell this one, from now on; an end that is wanted already comes now."""
        self.listen()  # Spark has put a handler of its own in our place, which knows no batches
        self._call = call
        if self.asked:
            raise KeyboardInterrupt

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # others have no signals
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._asked)
            self._before.setdefault(number, before)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._tell("stopping after this batch; once more stops at once")
        if self._call is not None:
            self._call()


@contextmanager
def stopped_by_signals(tell: Callable[[str], None]) -> Iterator[Stop]:
    """The first signal asks for an end, the second one ends at once."""
    stop = Stop(tell)
    stop.listen()
    try:
        yield stop
    finally:
        stop.close()
