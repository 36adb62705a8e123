"""The retry policy: which failures are retried, and the pause before each retry. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from penstock.backoff import Backoff
from penstock.errors import (
    ClientClosed,
    ConnectionFailed,
    PenstockError,
    QuotaExceeded,
    TooManyTokens,
)

STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# The server has done nothing, so that even a plain append may be sent again.
REFUSED_STATUSES: Final = frozenset({408, 425, 429, 503})
LASTING: Final = (ClientClosed, QuotaExceeded, TooManyTokens)
"""Errors that time alone does not mend, whatever their status."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy for failures that may pass: exponential backoff with full jitter.

    Each pause is uniform between 0 and `first_s * factor ** (attempt - 1)`, at most `max_s`; a
    `Retry-After` of the server replaces it, also at most `max_s`.

    A plain append with an unknown outcome (the connection broke after it was sent, or the status is
    500, 502 or 504) is not sent again, because it might be stored twice; `resend_appends` allows
    it. Appends of a producer are always safe to repeat.
    """

    attempts_max: int | None = 6
    first_s: float = 0.1
    factor: float = 2.0
    max_s: float = 10.0
    statuses: frozenset[int] = STATUSES
    resend_appends: bool = False

    def __post_init__(self) -> None:
        if self.attempts_max is not None and self.attempts_max < 1:
            raise ValueError("attempts_max must be at least 1, or None for no limit.")
        if not self.first_s > 0:
            raise ValueError("first_s must be above 0, because pauses grow from it.")
        if not self.max_s >= self.first_s:
            raise ValueError("max_s must be at least first_s.")
        if not self.factor >= 1:
            raise ValueError("factor must be at least 1.")

    def applies(self, error: PenstockError, *, repeatable: bool) -> bool:
        """Whether to retry: the failure may pass, and nothing can happen twice."""
        if isinstance(error, ConnectionFailed):
            return error.passing and (repeatable or not error.sent or self.resend_appends)
        if error.status not in self.statuses or isinstance(error, LASTING):
            return False
        return repeatable or error.status in REFUSED_STATUSES or self.resend_appends

    def pause_s(
        self,
        attempt: int,
        error: PenstockError | None = None,
        *,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> float:
        """How long to wait after the given attempt (1 is the first) has failed."""
        asked = None if error is None else retry_after_s(header(error, "Retry-After"))
        if asked is not None:
            return min(asked, self.max_s)
        # Full jitter: clients that failed together come back spread out.
        backoff = Backoff(base_s=self.first_s, cap_s=self.max_s, factor=self.factor, jitter=1)
        return jitter(*backoff.bounds_s(attempt))

    def exhausted(self, attempt: int) -> bool:
        """Whether an attempt was the last one."""
        return self.attempts_max is not None and attempt >= self.attempts_max


NO_RETRY: Final = Retry(attempts_max=1)


def retry_after_s(text: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text[:16])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def header(error: PenstockError, name: str) -> str | None:
    return error.headers.get(name)
