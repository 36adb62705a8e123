"""The rules of producers: what is sent next, and what each outcome means; no I/O and no clock.

A `Window` holds the messages of one producer from `add` until they are stored or given up. The two
shells send what `take` gives them and report how it went; they decide nothing.
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

# Memory that a queued message takes besides its bytes, so that tiny ones are bounded as well.
MESSAGE_OVERHEAD_BYTES: Final = 48
# Producers that take the id from each other for ever are stopped: nothing is stored meanwhile.
CLAIMS_MAX: Final = 10

QUIET: Final = 0  # added; nothing has to be done
WAKE: Final = 1  # added; there is something new to take, or to wait for
FULL: Final = 2  # not added: wait until something is settled and ask again
Added = Literal[0, 1, 2]


class AppendBatch:
    """Messages that are stored together, under one sequence number."""

    __slots__ = (
        "attempts", "close", "doomed", "epoch", "head_seq", "in_flight",
        "messages", "seq", "settled", "uncertain", "waits_for", "weight",
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
        self.doomed = False  # an earlier batch has failed: this one is not sent again
        self.uncertain = False  # it may be stored although no answer says so
        self.head_seq = seq  # the oldest unsettled sequence number when it was sent
        self.waits_for: int | None = None  # it came too early: not again before this is settled


class Failed(NamedTuple):
    """Messages that are given up, for the error callback."""

    error: Exception
    messages: list[bytes]


class Window:
    """All that one producer holds: an open batch that grows, and closed ones in their order.

    Every method is called by one thread at a time. `clock` gives monotonic seconds.
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
        self._established = False  # the server has accepted this epoch, and answers
        self._is_ours = False  # the server has stored something new under this epoch
        self._sent_seq = -1  # the highest sequence number sent under this epoch
        self._writing: AppendBatch | None = None  # one after the other, so that they keep in order
        self._width = float(options.in_flight_max)  # how many may be in flight: see `_narrow`
        self._narrowed_seq = -1
        self._resume_at = 0.0
        self._fenced_by: StaleEpoch | None = None
        self._claims = 0
        self._closing: str | None = None
        self._queued_bytes = 0
        self._in_flight = 0
        self._settled_count = 0
        self._added_count = 0  # without those of the open batch
        self._next_seq = 0
        self.separator_bytes = 0  # between the messages of a body, and one more around them
        self.epoch = options.epoch
        self.error: Exception | None = None  # the first failure, after which nothing is added

    @property
    def next_seq(self) -> int:
        return self._next_seq

    @property
    def in_flight_count(self) -> int:
        return self._in_flight

    @property
    def added_count(self) -> int:
        """Messages added so far."""
        return self._added_count + len(self._open)

    @property
    def settled_count(self) -> int:
        """Of the messages added, in their order, how many are stored or given up."""
        return self._settled_count

    @property
    def pending_count(self) -> int:
        return self.added_count - self._settled_count

    @property
    def is_settled(self) -> bool:
        return not self._unsettled and not self._open

    # -- what comes in

    def add(self, data: bytes) -> Added:
        """Take a message in; raises what stopped the producer."""
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
            # The brackets of an array are one separator more than lies between its messages.
            self._open_bytes = size + self.separator_bytes
            self._due_at = self._clock() + self._linger_s
        else:
            self._open_bytes += size
        if self._open_bytes >= bytes_max or count >= self._items_max:
            self._seal()
            return WAKE
        return WAKE if count == 1 else QUIET

    def extend(self, messages: list[bytes]) -> bool:
        """Take several messages in, if that neither begins nor ends a batch; else do nothing."""
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
        """Whether nothing more is taken in."""
        return self.error is not None or self._closing is not None

    @property
    def is_growing(self) -> bool:
        """Whether there is an open batch, which takes more in."""
        return bool(self._open) and not self.is_stopped

    def check(self) -> None:
        """Raise what stopped the producer, if anything did."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._closing is not None:
            raise ClientClosed(self._closing)

    def flush(self) -> int:
        """Wait no longer for the open batch to grow; `settled_count` then has to reach this."""
        self._due_at = 0.0
        return self.added_count

    def refuse(self, reason: str) -> None:
        """Take in no more."""
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
        """Forget what is not stored; how many messages that were."""
        count = self.pending_count
        self._seal()
        for batch in self._unsettled:
            batch.settled = True
        self._unsettled.clear()
        self._queued_bytes = 0
        self._settled_count = self._added_count
        return count

    def restart(self) -> None:
        """Begin the next epoch, which also forgets a failure. Nothing may be unsettled."""
        assert self.is_settled
        assert not self._in_flight
        known = self.epoch
        if isinstance(self.error, StaleEpoch):
            known = max(known, self.error.epoch or 0)
        self.error = None
        self._begin_epoch(known + 1)

    # -- what goes out

    def take(self) -> AppendBatch | float | None:
        """The batch to send now; else the moment to ask again; else None: something has to happen.

        Batches leave in their order. Only one is in flight until the server has accepted the epoch,
        since a new epoch has to begin with sequence number 0, and after a failure, until the
        server answers again.
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
        """The request has left, so the next may follow it: on other connections they would
        overtake each other if they left at the same time."""
        if self._writing is batch:
            self._writing = None

    @property
    def has_more(self) -> bool:
        """Whether another sender may find something to do, or to wait for."""
        return bool(self._open or len(self._unsettled) > self._in_flight) and self._has_slot()

    def accepted(
        self, batch: AppendBatch, *, duplicate: bool = False, last_seq: int | None = None
    ) -> list[Failed]:
        """The batch is stored, now or (a duplicate) before; `last_seq` is the server's newest.

        A duplicate of what was never sent is none: an earlier run of the producer has used the
        same id, epoch and number for something else, and the server has dropped our messages.
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
        self._settle(batch)
        return self._claim()

    def failed(self, batch: AppendBatch, error: Exception) -> list[Failed]:
        """The batch was not accepted: repeat it, or give up it and what comes after it."""
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
            if not self._options.auto_claim or self._claims >= CLAIMS_MAX:
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

    def _has_slot(self) -> bool:
        if self._writing is not None:
            return False
        return self._in_flight < (int(self._width) if self._established else 1)

    def _narrow(self, batch: AppendBatch) -> None:
        """Batches overtake each other, and those that do are sent twice: fewer at a time.

        Half as many, once for all that were on their way together; each batch that is stored
        widens it again, by one for as many as are in flight.
        """
        if batch.seq > self._narrowed_seq:
            self._width = max(1.0, self._width / 2)
            self._narrowed_seq = self._sent_seq

    def _candidate(self) -> AppendBatch | None:
        """The first batch that is not on its way: sending a later one before it is useless."""
        for batch in self._unsettled:
            if not batch.in_flight and not batch.settled:
                return batch
        return None

    def _seal(self) -> AppendBatch | None:
        """Let the open batch grow no more."""
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
            self._settled_count += len(self._unsettled.popleft().messages)

    def _claim(self) -> list[Failed]:
        """Take back an id that another producer has taken, once nothing is in flight: each of the
        others was stored under the old epoch, or is refused like the first."""
        error = self._fenced_by
        if error is None or self._in_flight:
            return []
        self._fenced_by = None
        if any(batch.uncertain for batch in self._unsettled):
            # Under the next epoch it would be stored twice.
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
        """Everything from this batch on fails, since order would be lost; what is before it may
        still succeed. What is in flight is waited for: its own outcome counts."""
        self.error = self.error or error
        self._seal()
        found: list[Failed] = []
        following = list(islice(self._unsettled, self._unsettled.index(batch), None))
        if any(later.uncertain for later in following):
            error.add_note("An answer was lost: some of the messages may be stored all the same.")
        for later in following:
            later.doomed = True
            if not later.in_flight and not later.settled:
                found.append(Failed(error, later.messages))
                self._settle(later)
        return found


def _may_be_stored(error: PenstockError) -> bool:
    """Whether a failure leaves open what the server has done."""
    if isinstance(error, ConnectionFailed):
        return error.sent
    return error.status >= 500 and error.status not in REFUSED_STATUSES


def _used_epoch(batch: AppendBatch) -> StaleEpoch:
    return StaleEpoch(
        f"Epoch {batch.epoch} of this producer id was used before, by an earlier run: the server "
        f"took the messages for ones that it has, and did not store them. Use a higher epoch, or "
        f"auto_claim=True.",
        Producer_Epoch=str(batch.epoch),
    )


def _came_too_early(batch: AppendBatch, gap: SequenceGap) -> bool:
    """Whether a batch was only faster than an earlier one, which was on its way too.

    Otherwise the server misses what it has confirmed before: repeating cannot help.
    """
    expected = batch.head_seq if gap.expected is None else gap.expected
    return batch.head_seq <= expected < batch.seq
