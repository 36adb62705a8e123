"""The exponential backoff with jitter that every retry uses. Pure: randomness is passed in."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait after failures in a row.

    The wait grows from `base_s` by `factor` with every failure, up to `cap_s`. `jitter` is the part
    of it that is random, from 0 to 1: with 0.2 a wait of 10 s is one between 8 s and 10 s. Jitter
    only shortens, so that no wait is longer than `cap_s`.
    """

    base_s: float
    cap_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def bounds_s(self, attempt: int) -> tuple[float, float]:
        """Return the shortest and the longest wait after failure number `attempt` (from 1)."""
        try:
            grown_s = self.base_s * self.factor ** (attempt - 1)
        except OverflowError:
            grown_s = self.cap_s
        longest_s = min(grown_s, self.cap_s)
        return longest_s * (1 - self.jitter), longest_s

    def wait_s(self, attempt: int, chance: float) -> float:
        """Return the wait after failure number `attempt`; `chance` is random from 0 to 1."""
        shortest_s, longest_s = self.bounds_s(attempt)
        return shortest_s + chance * (longest_s - shortest_s)
