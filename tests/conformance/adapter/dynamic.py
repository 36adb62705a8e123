"""Header and parameter values that are made anew for each command."""

from __future__ import annotations

import time


class Dynamic:
    """A header or parameter whose value is made when a command first sends it."""

    def __init__(self, kind: str, token: str | None) -> None:
        self._kind = kind
        self._token = token or ""
        self._count = 0
        self.sent: str | None = None

    def __call__(self) -> str:
        if self.sent is None:
            if self._kind == "counter":
                self._count += 1
            values = {"counter": self._count, "timestamp": time.time_ns() // 1_000_000}
            self.sent = str(values.get(self._kind, self._token))
        return self.sent
