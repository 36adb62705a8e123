"""Measures the turns of the event loop: how late it is, and what held it up.

A timer on the loop measures, at no cost for requests; a thread looks at the loop's stack while a
turn lasts, which is the only time when it shows who is at work.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, NamedTuple

from penstock.http.message import Request
from penstock.log.stats import Histogram

log = logging.getLogger("penstock.http")

TICK_S: Final = 0.05
LINE_INTERVAL_S: Final = 1.0
"""At most one line is logged in this time."""
PATH_CHARACTERS_MAX: Final = 200
REFERENTS_DEPTH: Final = 2
"""From a compiled coroutine to its variables, and from those to a request."""
LAG_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# Where the loop itself begins: frames above these belong to no turn.
_LOOP_FILES: Final = (
    "asyncio/base_events.py",
    "asyncio/events.py",
    "asyncio/runners.py",
    "asyncio/windows_events.py",
    "/selectors.py",
)


class Culprit(NamedTuple):
    """What a long turn was doing: the request, if it was for one, and the function."""

    request: str | None
    function: str

    def __str__(self) -> str:
        return self.function if self.request is None else f"{self.request} ({self.function})"


class LoopWatchdog:
    """The watchdog of one event loop. Turns of more than `stall_s` are logged; 0 logs none."""

    def __init__(self, *, stall_s: float) -> None:
        self._stall_s = stall_s
        self._due = 0.0
        self._cpu_s = 0.0
        self._logged_s = 0.0
        self._culprit: Culprit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self.lag_seconds = Histogram(LAG_SECONDS)
        self.lag_max_s = 0.0
        self.lag_recent_max_s = 0.0  # since `take_lag_max` was last called
        self.stalls = 0

    def start(self) -> None:
        """Begin to watch the running event loop, which is that of the current thread."""
        loop = asyncio.get_running_loop()
        self._expect(loop)
        if self._stall_s > 0:
            thread = threading.Thread(
                target=self._watch,
                args=(loop, threading.get_ident()),
                name="penstock-watchdog",
                daemon=True,
            )
            thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_lag_max(self) -> float:
        """Return the longest lag since the last call."""
        lag_s, self.lag_recent_max_s = self.lag_recent_max_s, 0.0
        return lag_s

    # -- on the event loop

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        self._culprit = None
        self._cpu_s = time.thread_time()
        self._due = time.monotonic() + TICK_S
        self._timer = loop.call_later(TICK_S, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        lag_s = max(now - self._due, 0.0)
        self.lag_seconds.add(lag_s)
        self.lag_max_s = max(self.lag_max_s, lag_s)
        self.lag_recent_max_s = max(self.lag_recent_max_s, lag_s)
        if 0 < self._stall_s <= lag_s:
            self.stalls += 1
            self._report(now, lag_s, time.thread_time() - self._cpu_s)
        self._expect(loop)

    def _report(self, now: float, lag_s: float, cpu_s: float) -> None:
        # Without a culprit it was not the loop that was busy, but another thread or the machine.
        if self._culprit is not None and now - self._logged_s >= LINE_INTERVAL_S:
            self._logged_s = now
            log.warning(
                "The event loop was held up for %.0f ms (%.0f ms of processor time) by %s",
                1000 * lag_s,
                1000 * cpu_s,
                self._culprit,
            )

    # -- on the thread

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        while not self._ended.wait(max(self._due + self._stall_s - time.monotonic(), TICK_S)):
            if self._culprit is None and time.monotonic() - self._due >= self._stall_s:
                frame = sys._current_frames().get(thread_id)
                culprit = None if frame is None else culprit_of(frame)
                if culprit is not None and culprit.request is None:
                    culprit = culprit._replace(request=_request_of(asyncio.current_task(loop)))
                if culprit is not None:
                    self._culprit = culprit


def culprit_of(frame: FrameType) -> Culprit | None:
    """Return what a stack is doing; None if it only waits for something to do."""
    function: str | None = None
    request: str | None = None
    current: FrameType | None = frame
    while current is not None and not _is_loop(current):
        module = current.f_globals.get("__name__", "?")
        if function is None or (
            module.startswith("penstock.") and not function.startswith("penstock.")
        ):
            function = f"{module}.{current.f_code.co_qualname}"
        value = current.f_locals.get("request")
        if isinstance(value, Request):
            request = _text(value)
        current = current.f_back
    return None if function is None else Culprit(request, function)


def _request_of(task: asyncio.Task[Any] | None) -> str | None:
    """Return the request that a task is for: compiled functions leave no frame on the stack, but
    their coroutines refer to what they work on."""
    referents: list[Any] = [] if task is None else [task.get_coro()]
    for _ in range(REFERENTS_DEPTH):
        referents = gc.get_referents(*referents)
        for each in referents:
            if isinstance(each, Request):
                return _text(each)
    return None


def _is_loop(frame: FrameType) -> bool:
    return frame.f_code.co_filename.replace("\\", "/").endswith(_LOOP_FILES)


def _text(request: Request) -> str:
    """Return a request without its query, which may hold secrets."""
    path = request.path.decode("ascii", "backslashreplace")[:PATH_CHARACTERS_MAX]
    return f"{request.method} {path!r}"
