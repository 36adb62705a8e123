"""When a follower retries, waits or gives up. Rules without I/O, as flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.client.flow import Call, Flow, Pause
from penstock.client.retry import Retry
from penstock.errors import PenstockError, ProtocolError

OnOutage = Callable[[PenstockError | None], Any]

# A single failure is often the end of an idle connection, and over at the next attempt.
OUTAGE_FAILURES: Final = 2


class Endurance:
    """The failures and the silence since a follower last had news.

    If `limited`, the retry policy applies to every outage. Otherwise it applies until the first
    success, and later outages are waited out however long they last. `on_outage` is called with
    the failure when an outage begins, and with None when it is over.
    """

    def __init__(
        self,
        retry: Retry,
        *,
        limited: bool,
        protocol_errors_max: int,
        idle_timeout_s: float | None,
        now_s: Callable[[], float],
        on_outage: OnOutage | None = None,
    ) -> None:
        self._retry = retry
        self._limited = limited
        self._protocol_errors_max = protocol_errors_max
        self._idle_timeout_s = idle_timeout_s
        self._now_s = now_s
        self._on_outage = on_outage
        self._unanswered = 0  # attempts since the last answer
        self.connected = False
        self.failures = 0
        self.broken = 0
        self.heard()

    def heard(self) -> None:
        """Restart the idle timeout: there was news, or the consumer has processed it."""
        self._heard_s = self._now_s()

    def failed(self, error: PenstockError, *, hopeful: bool = False) -> Flow[None]:
        """Wait before the next attempt, or give up."""
        if isinstance(error, ProtocolError):
            self.broken += 1
            if self.broken > self._protocol_errors_max:
                raise error
        elif not (hopeful or self._retry.applies(error, repeatable=True)):
            raise error
        self.failures += 1
        limited = self._limited or not self.connected
        if limited and self._retry.exhausted(self.failures):
            raise error
        self._unanswered += 1
        if self.connected and self._unanswered == OUTAGE_FAILURES and self._on_outage is not None:
            yield Call(self._on_outage, (error,))
        yield from self.wait(self._retry.pause_s(self.failures, error))

    def answered(self) -> Flow[None]:
        """Note that the server has answered."""
        self.connected = True
        was_outage = self._unanswered >= OUTAGE_FAILURES
        self._unanswered = 0
        if was_outage and self._on_outage is not None:
            yield Call(self._on_outage, (None,))

    def short(self) -> Flow[None]:
        """Wait after a live answer that was empty and came at once."""
        self.failures += 1
        yield from self.wait(self._retry.pause_s(self.failures))

    def wait(self, pause_s: float) -> Flow[None]:
        """Pause, but not beyond the idle timeout."""
        patience_s = self.patience_s()
        yield Pause(pause_s if patience_s is None else min(pause_s, patience_s))

    def patience_s(self) -> float | None:
        """Return the seconds until the idle timeout; None if there is none."""
        if self._idle_timeout_s is None:
            return None
        return max(0.0, self._heard_s + self._idle_timeout_s - self._now_s())

    def is_idle(self) -> bool:
        return self.patience_s() == 0.0
