"""Clocks. A clock is passed in, so that a test can use one that it controls."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in microseconds since the Unix epoch."""

    def now_us(self) -> int: ...


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """A clock that advances only by `advance`."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        self._now_us += int(seconds * 1_000_000)


SYSTEM_CLOCK = SystemClock()
