"""Group commit for all shards of a node: one statement carries a batch of each shard that has one.

It runs on the event loop of the server, without threads. A shard has one batch on its way; what
comes meanwhile is its next. Records are bytes here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.errors import NotOwner, PenstockError, StoreReadOnly
from penstock.log.cluster.database import Fenced, Session
from penstock.log.cluster.slots import Batch, Claim, Journal, Place, append_together
from penstock.log.disk.committer import COLLECT_TURNS_MAX, Committed, Entry

E = TypeVar("E", bound=Entry)

TRANSACTIONS_MAX: Final = 2
"""Transactions of a node at a time, each with shards of its own."""
ENTRY_S: Final = 25e-6
"""About what the event loop needs for an append, from its request to its answer."""
PATIENCE: Final = 0.125
"""Part of the duration of a transaction that the next one may wait for company."""
PATIENCE_S_MAX: Final = 0.0002
"""The longest such wait, however slow PostgreSQL is."""


class Lane:
    """The way of batches to PostgreSQL. Belongs to the event loop of the node."""

    def __init__(
        self,
        open_session: Callable[[], Awaitable[Session]],
        *,
        transactions_max: int = TRANSACTIONS_MAX,
    ) -> None:
        self._open_session = open_session
        self._places = [Place(open_session) for _ in range(transactions_max)]
        self._idle = list(self._places)
        self._ready: list[LaneCommitter[Any]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._entries = 0  # that are on their way
        self._answered = 0  # by the last transaction
        self._transaction_s = 0.0  # that one has taken of late
        self._is_gathering = False
        self.transactions = 0
        self.batches = 0

    @property
    def transactions_under_way(self) -> int:
        return len(self._places) - len(self._idle)

    def journal(self, claim: Claim) -> Journal:
        """Return the journal of a shard, which is written here."""
        return Journal(self._open_session, claim)

    # -- what is sent when

    def ready(self, committer: LaneCommitter[Any]) -> None:
        """Take the batch of a committer soon. It is neither ready already nor on its way."""
        self._ready.append(committer)
        self._gather_soon(1)

    def forget(self, committer: LaneCommitter[Any]) -> None:
        """Let go of what a committer has that is not on its way."""
        if committer in self._ready:
            self._ready.remove(committer)

    def _count(self) -> int:
        return sum([len(committer.queue) for committer in self._ready])

    def _overlaps(self) -> bool:
        """Whether the event loop needs longer for all appends that it has than PostgreSQL for a
        transaction. Then one is on its way while the appends of another are answered; else few
        transactions with many appends each are best."""
        return self._transaction_s < (self._entries + self._count()) * ENTRY_S

    def _may_send(self) -> bool:
        return bool(self._idle) and (not self.transactions_under_way or self._overlaps())

    def _gather_soon(self, size: int) -> None:
        if not self._is_gathering and self._may_send():
            self._is_gathering = True
            asyncio.get_running_loop().call_soon(self._gather, size, COLLECT_TURNS_MAX, 0.0)

    def _gather(self, size: int, turns: int, until: float) -> None:
        """Send when an iteration of the event loop has added nothing, or there were enough of them:
        requests that arrive together are committed together. Who was answered just now is about to
        append again, and is waited for a little."""
        count = self._count()
        if turns and count > size:
            asyncio.get_running_loop().call_soon(self._gather, count, turns - 1, 0.0)
            return
        if turns and count < self._answered:
            now = time.perf_counter()
            until = until or now + min(PATIENCE * self._transaction_s, PATIENCE_S_MAX)
            if now < until:
                asyncio.get_running_loop().call_soon(self._gather, count, turns, until)
                return
        self._is_gathering = False
        self._send()

    def _send(self) -> None:
        if self._ready and self._may_send():
            committers, self._ready = self._ready, []
            self._entries += sum([committer.take() for committer in committers])
            carrying = self._carry(self._idle.pop(), committers)
            task = asyncio.get_running_loop().create_task(carrying)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    # -- transactions

    async def _carry(self, place: Place, committers: list[LaneCommitter[Any]]) -> None:
        """Write the batches that were taken, and let each committer know what became of its own."""
        started = time.perf_counter()
        writing = [each for each in committers if each.batch.records]
        failures = await self._write(place, writing)
        now = time.perf_counter()
        self._idle.append(place)
        if writing:
            self._transaction_s += (now - started - self._transaction_s) / 8
        overlaps = self._overlaps()
        size = sum([len(each.entries) for each in committers])
        self._entries -= size
        self._answered = size
        loop = asyncio.get_running_loop()
        answers = [each.finish(failures.get(each.journal), now - started) for each in committers]
        self._ready += [each for each in committers if not each.idle]
        if overlaps:
            self._send()
        # After the first step of what was sent: PostgreSQL works while these are answered.
        for answer in answers:
            loop.call_soon(answer)
        if self._ready:
            self._gather_soon(self._count())

    async def _write(
        self, place: Place, committers: list[LaneCommitter[Any]]
    ) -> dict[Journal, PenstockError]:
        """Append the batches of committers in one transaction; return which failed, and why."""
        if not committers:
            return {}
        self.transactions += 1
        self.batches += len(committers)
        pairs = [(each.journal, each.batch) for each in committers]
        try:
            results = await append_together(place, pairs)
        except Exception as error:  # noqa: BLE001 - nobody waits for ever
            results = [error] * len(pairs)
            await asyncio.sleep(0)  # the batches before these are answered first
        return {
            journal: _failure(error)
            for (journal, _), error in zip(pairs, results, strict=True)
            if error is not None
        }

    async def close(self) -> None:
        """Called when no journal is written any more."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        for place in self._places:
            place.drop()
        await asyncio.sleep(0)  # their transports are closed in the next turn


def _failure(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, Fenced):
        return NotOwner(f"Another node owns the streams: {error}", Retry_After="1")
    return StoreReadOnly(f"The journal failed ({error!r}). Restart the server.")


_NOTHING: Final = Batch(0, 0, b"")


class LaneCommitter(Generic[E]):
    """Collects the records of one shard, and tells what became of them, in their order."""

    def __init__(
        self,
        lane: Lane,
        claim: Claim,
        *,
        next_lsn: int,
        batch_bytes_max: int,
        on_committed: Callable[[Committed[E]], None],
        on_failed: Callable[[list[E], PenstockError], None],
    ) -> None:
        self._lane = lane
        self.journal = lane.journal(claim)
        self._next_lsn = next_lsn
        self._batch_bytes_max = batch_bytes_max
        self._on_committed = on_committed
        self._on_failed = on_failed
        self.queue: list[E] = []
        self.queued_bytes = 0
        self.entries: list[E] = []
        """What is on its way."""
        self.batch = _NOTHING
        """The records of `entries`."""
        self._is_busy = False  # ready, or on its way
        self._is_answering = False
        self._is_stopped = False
        self._drained: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        return not self._is_busy

    def submit(self, entry: E) -> None:
        self.queue.append(entry)
        self.queued_bytes += len(entry.record)
        if not self._is_busy:
            self._is_busy = True
            self._lane.ready(self)

    async def drain(self) -> None:
        """Return when everything submitted so far is answered."""
        if self._is_busy or self._is_answering:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def stop(self) -> None:
        """Send nothing more, and return when nothing is on its way."""
        self._is_stopped = True
        self._lane.forget(self)
        if self.entries or self._is_answering:
            await self.drain()

    def take(self) -> int:
        """Let what is queued be on its way; return how many entries that are."""
        entries, size = self.queue, 0
        self.queue = []
        for index, entry in enumerate(entries):
            size += len(entry.record)
            if size >= self._batch_bytes_max and index + 1 < len(entries):
                entries, self.queue = entries[: index + 1], entries[index + 1 :]
                break
        # An entry without a record has its turn, and writes nothing.
        records = [entry.record for entry in entries if entry.record]
        self.entries = entries
        self.batch = Batch(self._next_lsn, len(records), b"".join(records))
        return len(entries)

    def finish(self, failure: PenstockError | None, seconds: float) -> Callable[[], None]:
        """Take a batch back; return what answers it. It is not idle if there is another."""
        entries, batch = self.entries, self.batch
        self.entries, self.batch = [], _NOTHING
        committed: Committed[E] | None = None
        if failure is None:
            self.queued_bytes -= len(batch.body)
            self._next_lsn = batch.first_lsn + batch.records
            committed = Committed(entries, batch.first_lsn, len(batch.body), seconds)
        else:
            # What was queued behind was decided on state that never became durable.
            failed = entries + self.queue
            self.queue = []
            self.queued_bytes = 0
            self._on_failed(failed, failure)
        self._is_busy = bool(self.queue) and not self._is_stopped
        self._is_answering = True
        return partial(self._answer, committed)

    def _answer(self, committed: Committed[E] | None) -> None:
        self._is_answering = False
        if committed is not None:
            self._on_committed(committed)
        if not self._is_busy and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
