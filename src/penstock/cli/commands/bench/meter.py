"""The meter of `penstock bench`: when a run ends, its latencies, and the result as text."""

from __future__ import annotations

import time
from typing import Any, Final

from penstock.cli.text import aligned, size

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Meter:
    """Collects latencies until a number of requests has begun or a duration has passed."""

    def __init__(self, *, count: int | None, duration_s: float) -> None:
        self._remaining = count
        self._duration_s = duration_s
        self._latencies_s: list[float] = []
        self._messages = 0
        self._bytes = 0
        self._started_s = time.perf_counter()
        self._ended_s = self._started_s

    def start(self) -> None:
        """Start the clock. Preparation before this call is not measured."""
        self._started_s = self._ended_s = time.perf_counter()

    def begin(self) -> bool:
        """Count one more request as begun, or return False if the run is over."""
        if self._remaining is None:
            return time.perf_counter() - self._started_s < self._duration_s
        self._remaining -= 1
        return self._remaining >= 0

    def add(self, begun_s: float, *, messages: int, bytes: int) -> None:
        """Record a request that began at `begun_s` (of time.perf_counter) and ends now."""
        self._ended_s = time.perf_counter()
        self._latencies_s.append(self._ended_s - begun_s)
        self._messages += messages
        self._bytes += bytes

    def line(self) -> str:
        """Return the text of a progress line."""
        passed_s = max(time.perf_counter() - self._started_s, 1e-3)
        recent = sorted(self._latencies_s[-1000:])
        if not recent:
            return f"{passed_s:4.1f} s"
        middle, high = _percentile(recent, 50) * 1000, _percentile(recent, 99) * 1000
        rate = self._messages / passed_s
        return f"{passed_s:4.1f} s  {rate:,.0f} messages/s  p50 {middle:.2f} ms  p99 {high:.2f} ms"

    def result(self) -> dict[str, Any]:
        latencies_s = sorted(self._latencies_s)
        passed_s = max(self._ended_s - self._started_s, 1e-9)
        latency = {f"p{level:g}": _percentile(latencies_s, level) * 1000 for level in PERCENTILES}
        return {
            "seconds": passed_s,
            "count": len(latencies_s),
            "per_s": len(latencies_s) / passed_s,
            "messages_per_s": self._messages / passed_s,
            "bytes_per_s": self._bytes / passed_s,
            "latency_ms": {**latency, "max": (latencies_s[-1] if latencies_s else 0.0) * 1000},
        }


def as_text(result: dict[str, Any], unit: str) -> str:
    """Return a result as a table."""
    rows = [
        (
            unit,
            f"{result['count']:,} in {result['seconds']:.2f} s, {result['per_s']:,.0f} per second",
        ),
        ("messages", f"{result['messages_per_s']:,.0f} per second"),
        ("data", f"{size(int(result['bytes_per_s']))} per second"),
        ("latency", "  ".join(f"{k} {v:.2f} ms" for k, v in result["latency_ms"].items())),
    ]
    return "\n".join(aligned(rows))


def _percentile(ordered: list[float], level: float) -> float:
    """Return the smallest value that at least `level` percent of the values do not exceed."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * level // 100)  # rounded up
    return ordered[max(int(rank) - 1, 0)]
