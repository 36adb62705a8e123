"""Cursors: numbers that grow with time so that caches never serve a live answer for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from penstock.limits import INTEGER_MAX

EPOCH: Final = datetime(2024, 10, 9, tzinfo=UTC)
INTERVAL_S: Final = 20
JITTER_S_MIN: Final = 1
JITTER_S_MAX: Final = 3600

_EPOCH_S = int(EPOCH.timestamp())
_DIGITS_MAX = len(str(INTEGER_MAX))


def next_cursor(now_s: float, client: str | None, jitter: Callable[[int, int], int]) -> str:
    """Return the cursor of a live answer, always greater than the one the client sent.

    `jitter(low, high)` gives a whole number of seconds in that range. A client's cursor that is
    no number, or one no server could have sent, is ignored.
    """
    # A clock set before the epoch must not produce a negative cursor.
    current = max(0, int(now_s - _EPOCH_S) // INTERVAL_S)
    if client is None or len(client) > _DIGITS_MAX:
        return str(current)
    if not (client.isascii() and client.isdigit()):
        return str(current)
    sent = int(client)
    if sent < current or sent > INTEGER_MAX:
        return str(current)
    return str(sent + max(1, jitter(JITTER_S_MIN, JITTER_S_MAX) // INTERVAL_S))
