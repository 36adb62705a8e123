"""Following a State URL, as a flow without I/O.

Servers may keep the response open or answer at once; the latter are polled. No row is emitted
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.client.endurance import Endurance
from penstock.client.flow import Call, Close, Emit, Flow
from penstock.client.retry import Retry
from penstock.errors import Gone, PenstockError, StreamRecreated
from penstock.stp.client.reading import Reception, Source
from penstock.stp.rows import Row

if TYPE_CHECKING:
    from penstock.client.checkpoint import Checkpoint

OnReset = Literal["raise", "restart"] | Callable[[Gone], Any]

LIVE_SHORT_S: Final = 1.0  # an empty answer that took less did not wait for news
POLL_FIRST_S: Final = 0.1
READ_TIMEOUT_MIN_S: Final = 0.001


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `Table.follow`."""

    since_id: int = 0
    checkpoint: Checkpoint | None = None
    checkpoint_key: str | None = None
    on_reset: OnReset = "raise"
    poll_s: float = 5.0
    idle_timeout_s: float | None = None
    retry: Retry | None = None
    protocol_errors_max: int = 3


class Follower:
    """One run of `follow`: its position, and its recent failures."""

    def __init__(
        self,
        source: Source,
        options: FollowOptions,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not options.poll_s > 0:
            raise ValueError("poll_s must be above 0.")
        self.reception = Reception(source, options.since_id)
        self._options = options
        self._endurance = Endurance(
            options.retry or source.retry,
            limited=options.retry is not None,
            protocol_errors_max=options.protocol_errors_max,
            idle_timeout_s=options.idle_timeout_s,
            now_s=now_s,
        )
        self._poll = Retry(
            first_s=min(POLL_FIRST_S, options.poll_s), max_s=options.poll_s, attempts_max=None
        )
        self._now_s = now_s
        self._is_confirmed = False  # whether the table is known to have had the position
        self._done = False
        self._empty = 0

    def flow(self) -> Flow[None]:
        checkpoint = self._options.checkpoint
        if checkpoint is not None:
            saved = yield Call(checkpoint.load, (self._key(),), blocking=True)
            if saved is not None:
                self.reception.restart(int(saved))
                self._is_confirmed = True
        while not (self._done or self._endurance.is_idle()):
            try:
                yield from self._turn()
            except Gone as error:
                yield Close()
                yield from self._reset(error)
            except PenstockError as error:
                yield Close()
                if self._endurance.is_idle():
                    return
                yield from self._endurance.failed(error)

    def _turn(self) -> Flow[None]:
        """One response, and a pause if it was empty and came at once."""
        started_s = self._now_s()
        outcome = yield from self.reception.once(
            self._deliver,
            immediate=False,
            read_timeout_s=self._patience_s(),
        )
        self._endurance.connected = True
        self._endurance.failures = 0
        self._check_position()
        # Penstock says whether the stream is closed.
        self._done = self.reception.closed and self.reception.is_complete
        if (
            self._done
            or outcome.rows
            or (not outcome.cut and self._now_s() - started_s >= LIVE_SHORT_S)
        ):
            self._endurance.broken = self._empty = 0
            return
        self._empty += 1
        yield from self._endurance.wait(self._poll.pause_s(self._empty))

    def _deliver(self, rows: list[Row]) -> Flow[None]:
        self._endurance.failures = self._endurance.broken = self._empty = 0
        self._endurance.connected = self._is_confirmed = True
        yield Emit(rows)
        self._endurance.heard()
        checkpoint = self._options.checkpoint
        if checkpoint is not None:
            yield Call(checkpoint.save, (self._key(), str(rows[-1].seqno)), blocking=True)

    def _check_position(self) -> None:
        """Raise StreamRecreated if the table ends before a SeqNo that it once had."""
        last, position = self.reception.last_seqno, self.reception.deduplicator.position
        if self._is_confirmed and last is not None and last < position:
            raise StreamRecreated(
                f"{self.reception.source.url} ends at SeqNo {last}, but {position} was read. "
                "It was recreated, or restored from an older copy: read it from 0."
            )

    def _reset(self, error: Gone) -> Flow[None]:
        """Apply `on_reset`: the next rows were trimmed, or the table was recreated."""
        policy = self._options.on_reset
        if policy == "raise":
            raise error
        if policy == "restart":
            if self.reception.since_id == 0:
                raise error
        elif (yield Call(policy, (error,))) is False:
            raise error
        self.reception.restart()
        self._is_confirmed = False

    def _patience_s(self) -> float | None:
        patience_s = self._endurance.patience_s()
        return None if patience_s is None else max(READ_TIMEOUT_MIN_S, patience_s)

    def _key(self) -> str:
        return self._options.checkpoint_key or self.reception.source.url
