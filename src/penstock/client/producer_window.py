"""The rules of producers: what is sent next, and what each outcome means. No I/O, no clock.

A `Window` holds the messages of one producer from `add` until they are stored or given up. The two
shells send the batches that `take` returns and report the outcome; they decide nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Literal, NamedTuple

from penstock import limits
from penstock.client.producer_options import ProducerOptions
from penstock.client.retry import REFUSED_STATUSES
from penstock.errors import (
    ClientClosed,
    ConnectionFailed,
    PenstockError,
    SequenceGap,
    StaleEpoch,
)

# Memory of a queued message besides its bytes, so that tiny messages are bounded as well.
MESSAGE_OVERHEAD_BYTES: Final = 48
# Two producers that claim the same id from each other store nothing: they give up after so many.
CLAIMS_MAX: Final = 10

QUIET: Final = 0  # added; there is nothing to do
WAKE: Final = 1  # added; there is something new to take, or to wait for
FULL: Final = 2  # not added: wait until a batch is settled and try again
Added = Literal[0, 1, 2]


class AppendBatch:
    """Messages that are stored together, under one sequence number."""

    __slots__ = (
        "attempts", "close", "doomed", "epoch", "head_seq", "in_flight",
        "messages", "seq", "settled", "stored", "uncertain", "waits_for", "weight",
    )  # fmt: skip

    def __init__(self, messages: list[bytes], weight: int, seq: int, *, close: bool) -> None:
        self.messages = messages
        self.weight = weight
        self.seq = seq
        self.epoch = 0  # of the last sending
        self.close = close
        self.attempts = 0
        self.in_flight = False
        self.settled = False
        self.stored = False
        self.doomed = False  # an earlier batch has failed: this one is not sent again
        self.uncertain = False  # it may be stored although no answer says so
        self.head_seq = seq  # the oldest unsettled sequence number when it was sent
        self.waits_for: int | None = (
            None  # it came too early: not sent again before this is settled
        )


class Failed(NamedTuple):
    """Messages that are given up, and why, for the error callback."""

    error: Exception
    messages: list[bytes]


class Window:
    """The messages of one producer: an open batch that grows, and sealed ones in order.

    Every method is called by one thread at a time. `clock` returns monotonic seconds.
    """

    def __init__(self, options: ProducerOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._items_max = min(
            options.batch_items_max or limits.MESSAGES_PER_APPEND_MAX,
            limits.MESSAGES_PER_APPEND_MAX,
        )
        self._linger_s = options.linger_ms / 1000
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._due_at = 0.0  # when the open batch is sent even if it is small
        self._unsettled: deque[AppendBatch] = deque()
        self._established = False  # the server has accepted this epoch
        self._is_ours = False  # the server has stored something new under this epoch
        self._sent_seq = -1  # the highest sequence number sent under this epoch
        self._writing: AppendBatch | None = None  # one at a time, so that they stay in order
        self._width = float(options.in_flight_max)  # how many may be in flight: see `_narrow`
        self._narrowed_seq = -1
        self._resume_at = 0.0
        self._fenced_by: StaleEpoch | None = None
        self._claims = 0
        self._closing: str | None = None
        self._queued_bytes = 0
        self._in_flight = 0
        self._settled_count = 0
        self.stored_count = 0  # before the first message that was given up
        self._added_count = 0  # without those of the open batch
        self._next_seq = 0
        self.separator_bytes = 0  # between the messages of a body, and one more around them
        self.epoch = options.epoch
        self.error: Exception | None = None  # the first failure; nothing is added after it

    @property
    def next_seq(self) -> int:
        return self._next_seq

    @property
    def in_flight_count(self) -> int:
        return self._in_flight

    @property
    def added_count(self) -> int:
        """The number of messages added so far."""
        return self._added_count + len(self._open)

    @property
    def settled_count(self) -> int:
        """The number of messages, in order, that are stored or given up."""
        return self._settled_count

    @property
    def pending_count(self) -> int:
        return self.added_count - self._settled_count

    @property
    def is_settled(self) -> bool:
        return not self._unsettled and not self._open

    # -- what comes in

    def add(self, data: bytes) -> Added:
        """Add a message; raise the error that stopped the producer."""
        size = len(data) + self.separator_bytes
        weight = len(data) + MESSAGE_OVERHEAD_BYTES
        if self.error is not None or self._closing is not None:
            self.check()
        if self._queued_bytes and self._queued_bytes + weight > self._options.queue_bytes_max:
            self._due_at = 0.0
            return FULL
        messages = self._open
        bytes_max = self._options.batch_bytes_max
        if messages and self._open_bytes + size > bytes_max:
            self._seal()
            messages = self._open
        self._queued_bytes += weight
        messages.append(data)
        count = len(messages)
        if count == 1:
            # The brackets of an array count as one more separator.
            self._open_bytes = size + self.separator_bytes
            self._due_at = self._clock() + self._linger_s
        else:
            self._open_bytes += size
        if self._open_bytes >= bytes_max or count >= self._items_max:
            self._seal()
            return WAKE
        return WAKE if count == 1 else QUIET

    def extend(self, messages: list[bytes]) -> bool:
        """Add several messages if that neither begins nor ends a batch; else return false."""
        data_bytes, count = sum(map(len, messages)), len(messages)
        weight = data_bytes + MESSAGE_OVERHEAD_BYTES * count
        open_bytes = self._open_bytes + data_bytes + self.separator_bytes * count
        if (
            not self.is_growing
            or open_bytes >= self._options.batch_bytes_max
            or len(self._open) + count >= self._items_max
            or self._queued_bytes + weight > self._options.queue_bytes_max
        ):
            return False
        self._open.extend(messages)
        self._open_bytes = open_bytes
        self._queued_bytes += weight
        return True

    @property
    def is_stopped(self) -> bool:
        """Whether no more messages are accepted."""
        return self.error is not None or self._closing is not None

    @property
    def is_growing(self) -> bool:
        """Whether there is an open batch that accepts messages."""
        return bool(self._open) and not self.is_stopped

    def check(self) -> None:
        """Raise the error that stopped the producer, if there is one."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._closing is not None:
            raise ClientClosed(self._closing)

    def flush(self) -> int:
        """Make the open batch due; return the `settled_count` to wait for."""
        self._due_at = 0.0
        return self.added_count

    def refuse(self, reason: str) -> None:
        """Accept no more messages."""
        self._closing = self._closing or reason

    def close_stream(self, final: bytes | None) -> AppendBatch:
        """Queue the request that closes the stream, behind everything else."""
        if self.error is not None:
            self.check()
        self._seal()
        if final is None:
            return self._push([], 0, close=True)
        self._queued_bytes += len(final)
        return self._push([final], len(final), close=True)

    def abandon(self) -> int:
        """Drop everything that is not stored; return the number of messages."""
        count = self.pending_count
        self._seal()
        for batch in self._unsettled:
            batch.settled = True
        self._unsettled.clear()
        self._queued_bytes = 0
        self._settled_count = self._added_count
        return count

    def restart(self) -> None:
        """Begin the next epoch, which clears a failure. Nothing may be unsettled."""
        assert self.is_settled
        assert not self._in_flight
        epoch = self.epoch
        if isinstance(self.error, StaleEpoch):
            epoch = max(epoch, self.error.epoch or 0)
        self.error = None
        self._begin_epoch(epoch + 1)

    # -- what goes out

    def take(self) -> AppendBatch | float | None:
        """Return the batch to send now, or the time to call again, or None until an outcome comes.

        Batches leave in order. Only one is in flight until the server has accepted the epoch, since
        a new epoch has to begin with sequence number 0; and after a failure, until the server
        answers again.
        """
        if self._fenced_by is not None or self.is_settled or not self._has_slot():
            return None
        batch = self._candidate()
        if batch is None:
            if not self._open:
                return None
            if self._due_at > self._clock():
                return max(self._due_at, self._resume_at)
        if self._resume_at > self._clock():
            return self._resume_at
        if batch is None:
            batch = self._seal()
            assert batch is not None
        head = self._unsettled[0]
        if batch is not head and (
            batch.close or (batch.waits_for is not None and head.seq <= batch.waits_for)
        ):
            return None
        batch.waits_for = None
        batch.head_seq = head.seq
        batch.epoch = self.epoch
        batch.in_flight = True
        self._sent_seq = max(self._sent_seq, batch.seq)
        self._in_flight += 1
        self._writing = batch
        return batch

    def written(self, batch: AppendBatch) -> None:
        """The request is written, so the next may follow. Requests that are written at the same
        time on different connections could overtake each other."""
        if self._writing is batch:
            self._writing = None

    @property
    def has_more(self) -> bool:
        """Whether there is work for another sender, now or at a known time."""
        return bool(self._open or len(self._unsettled) > self._in_flight) and self._has_slot()

    def accepted(
        self, batch: AppendBatch, *, duplicate: bool = False, last_seq: int | None = None
    ) -> list[Failed]:
        """The batch is stored, now or (a duplicate) before; `last_seq` is the server's newest.

        A duplicate of a batch that was never sent means that an earlier run of the producer has
        used the same id, epoch and number, and that the server has dropped our messages.
        """
        self._landed(batch)
        if batch.settled:
            return []
        unknown = last_seq is not None and last_seq > self._sent_seq
        if duplicate and (unknown or not (self._is_ours or batch.uncertain)):
            return self._decide(batch, _used_epoch(batch)) + self._claim()
        self._established = self._is_ours = True
        self._claims = 0
        self._width = min(self._width + 1 / self._width, self._options.in_flight_max)
        batch.stored = True
        self._settle(batch)
        return self._claim()

    def failed(self, batch: AppendBatch, error: Exception) -> list[Failed]:
        """The batch was not accepted: repeat it, or give up it and all that follow."""
        self._landed(batch)
        if batch.settled:
            return []
        return self._decide(batch, error) + self._claim()

    # -- how

    def _decide(self, batch: AppendBatch, error: Exception) -> list[Failed]:
        if batch.doomed or isinstance(error, ClientClosed) or not isinstance(error, PenstockError):
            return self._give_up(batch, error)
        if isinstance(error, SequenceGap):
            if not _came_too_early(batch, error):
                return self._give_up(batch, error)
            self._narrow(batch)
            head = self._unsettled[0]
            batch.waits_for = None if head is batch else head.seq
            return []
        if isinstance(error, StaleEpoch):
            if not self._may_claim():
                return self._give_up(batch, error)
            self._fenced_by = error
            return []
        batch.uncertain |= _may_be_stored(error)
        batch.attempts += 1
        retry = self._options.retry
        if retry.exhausted(batch.attempts) or not retry.applies(error, repeatable=True):
            return self._give_up(batch, error)
        self._established = False
        pause_s = retry.pause_s(batch.attempts, error)
        self._resume_at = max(self._resume_at, self._clock() + pause_s)
        return []

    def _may_claim(self) -> bool:
        """Whether to take the id back from a producer with a higher epoch."""
        claims = self._options.auto_claim
        if claims == "start" and self.stored_count:
            return False
        return bool(claims) and self._claims < CLAIMS_MAX

    def _has_slot(self) -> bool:
        if self._writing is not None:
            return False
        return self._in_flight < (int(self._width) if self._established else 1)

    def _narrow(self, batch: AppendBatch) -> None:
        """Allow fewer batches in flight, because batches overtake each other and are sent twice.

        The width is halved once for all batches that were in flight together; each stored batch
        widens it again, by one per round.
        """
        if batch.seq > self._narrowed_seq:
            self._width = max(1.0, self._width / 2)
            self._narrowed_seq = self._sent_seq

    def _candidate(self) -> AppendBatch | None:
        """Return the first batch that is not in flight: a later one would be refused before it."""
        for batch in self._unsettled:
            if not batch.in_flight and not batch.settled:
                return batch
        return None

    def _seal(self) -> AppendBatch | None:
        """Seal the open batch and queue it."""
        messages = self._open
        if not messages:
            return None
        self._open = []
        count = len(messages)
        data_bytes = self._open_bytes - self.separator_bytes * (count + 1)
        return self._push(messages, data_bytes + MESSAGE_OVERHEAD_BYTES * count, close=False)

    def _push(self, messages: list[bytes], weight: int, *, close: bool) -> AppendBatch:
        batch = AppendBatch(messages, weight, self._next_seq, close=close)
        self._added_count += len(messages)
        self._next_seq += 1
        self._unsettled.append(batch)
        return batch

    def _landed(self, batch: AppendBatch) -> None:
        self.written(batch)
        batch.in_flight = False
        self._in_flight -= 1

    def _settle(self, batch: AppendBatch) -> None:
        if batch.settled:
            return
        batch.settled = True
        self._queued_bytes -= batch.weight
        while self._unsettled and self._unsettled[0].settled:
            first = self._unsettled.popleft()
            if first.stored and self.stored_count == self._settled_count:
                self.stored_count += len(first.messages)
            self._settled_count += len(first.messages)

    def _claim(self) -> list[Failed]:
        """Claim the id back from another producer, once nothing is in flight: each of the others
        was stored under the old epoch, or is refused like the first."""
        error = self._fenced_by
        if error is None or self._in_flight:
            return []
        self._fenced_by = None
        if any(batch.uncertain for batch in self._unsettled):
            # It may be stored under the old epoch, and would be stored twice.
            return self._give_up(self._unsettled[0], error)
        self._claims += 1
        self._begin_epoch(max(self.epoch, error.epoch or 0) + 1)
        return []

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._established = self._is_ours = False
        self._sent_seq = self._narrowed_seq = -1
        self._next_seq = 0
        for batch in self._unsettled:
            batch.seq = self._next_seq
            batch.waits_for = None
            self._next_seq += 1

    def _give_up(self, batch: AppendBatch, error: Exception) -> list[Failed]:
        """Fail this batch and all that follow, to keep the order; return their messages. Earlier
        batches may still succeed. For a batch in flight its own outcome counts."""
        self.error = self.error or error
        self._seal()
        failures: list[Failed] = []
        following = list(islice(self._unsettled, self._unsettled.index(batch), None))
        if any(later.uncertain for later in following):
            error.add_note("An answer was lost: some of the messages may be stored.")
        for later in following:
            later.doomed = True
            if not later.in_flight and not later.settled:
                failures.append(Failed(error, later.messages))
                self._settle(later)
        return failures


def _may_be_stored(error: PenstockError) -> bool:
    """Whether the server may have stored a batch despite the failure."""
    if isinstance(error, ConnectionFailed):
        return error.sent
    return error.status >= 500 and error.status not in REFUSED_STATUSES


def _used_epoch(batch: AppendBatch) -> StaleEpoch:
    return StaleEpoch(
        f"Epoch {batch.epoch} of this producer id was used by an earlier run, so that the server "
        "took the messages for duplicates and did not store them. Use a higher epoch, or "
        "auto_claim=True.",
        Producer_Epoch=str(batch.epoch),
    )


def _came_too_early(batch: AppendBatch, gap: SequenceGap) -> bool:
    """Whether a batch has only overtaken an earlier one that was in flight too.

    Otherwise the server has lost a batch that it confirmed, and a retry cannot help.
    """
    expected = batch.head_seq if gap.expected is None else gap.expected
    return batch.head_seq <= expected < batch.seq
