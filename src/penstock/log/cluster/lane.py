"""Group commit for all shards of a node: one statement carries a batch of each shard that has one.

It runs on the event loop of the server, without threads. A shard has one batch on its way; what
comes meanwhile is its next. Records are bytes here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock.errors import NotOwner, PenstockError, StoreReadOnly
from penstock.log.cluster.database import Fenced, Session
from penstock.log.cluster.slots import Batch, Claim, Journal, Place, append_together
from penstock.log.disk.committer import COLLECT_TURNS_MAX, Committed, Entry

E = TypeVar("E", bound=Entry)

log = logging.getLogger("penstock.log")

ENTRY_S: Final = 13e-6
"""About what the event loop needs for an append, from its request to its answer."""
PATIENCE: Final = 0.25
"""Part of the duration of a transaction that the next one may wait for company."""
PATIENCE_S_MAX: Final = 0.0003
"""The longest such wait, however slow PostgreSQL is. The event loop turns meanwhile."""
SKIPPED_WAITS: Final = 4
"""Transactions that do not wait after one for which fewer than half of the missing came."""


class Lane:
    """The way of batches to PostgreSQL. Belongs to the event loop of the node."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._open_session = open_session
        self._place = Place(open_session)
        self._ready: list[LaneCommitter[Any]] = []
        self._carrying: asyncio.Task[None] | None = None
        self._company = 0  # entries that were on their way, or waited, at the last answer
        self._count_before = 0  # entries that were there when a wait began
        self._skipped_waits = 0
        self._transaction_s = 0.0  # that one has taken of late
        self._is_gathering = False
        self.transactions = 0
        self.batches = 0

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

    def _gather_soon(self, size: int) -> None:
        if not self._is_gathering and self._carrying is None:
            self._is_gathering = True
            asyncio.get_running_loop().call_soon(self._gather, size, COLLECT_TURNS_MAX, 0.0)

    def _gather(self, size: int, turns: int, until: float) -> None:
        """Send when an iteration of the event loop has added nothing, or there were enough of them:
        requests that arrive together are committed together. Who was answered just now may be about
        to append again, and is waited for a little, unless that was in vain of late: writers that
        have come apart would go on in two transactions by turns, each of which costs as much."""
        count = self._count()
        is_short = count < self._company
        loop = asyncio.get_running_loop()
        if count > size and (turns or is_short):
            loop.call_soon(self._gather, count, max(turns - 1, 0), until)
            return
        if is_short and not self._skipped_waits:
            now = time.perf_counter()
            if not until:
                until = now + min(PATIENCE * self._transaction_s, PATIENCE_S_MAX)
                self._count_before = count
            if now < until:
                loop.call_soon(self._gather, count, turns, until)
                return
        self._is_gathering = False
        if until:
            missing, came = self._company - self._count_before, count - self._count_before
            self._skipped_waits = SKIPPED_WAITS if 2 * came < missing else 0
        elif self._skipped_waits:
            self._skipped_waits -= 1
        self._send()

    def _send(self) -> None:
        if self._ready and self._carrying is None:
            committers, self._ready = self._ready, []
            for committer in committers:
                committer.take()
            self._carrying = asyncio.get_running_loop().create_task(self._carry(committers))

    # -- transactions

    async def _carry(self, committers: list[LaneCommitter[Any]]) -> None:
        """Write the batches that were taken, and let each committer know what became of its own."""
        started = time.perf_counter()
        writing = [each for each in committers if each.batch.records]
        failures = await self._write(writing)
        seconds = time.perf_counter() - started
        if writing:
            self._transaction_s += (seconds - self._transaction_s) / 8
        answered = sum([len(each.entries) for each in committers])
        answers = [each.finish(failures.get(each.journal), seconds) for each in committers]
        self._ready += [each for each in committers if not each.idle]
        self._carrying = None
        self._company = answered + self._count()
        if self._hides():
            self._send()
        # After the first step of what was sent: PostgreSQL works while these are answered.
        loop = asyncio.get_running_loop()
        for answer in answers:
            loop.call_soon(answer)
        if self._ready:
            self._gather_soon(self._count())

    def _hides(self) -> bool:
        """Whether the event loop is busy with half of the appends for longer than PostgreSQL with a
        transaction. Then one half is on its way while the other is answered; else all are best
        carried together, because a transaction costs much however little it carries."""
        return 2 * self._transaction_s < self._company * ENTRY_S

    async def _write(self, committers: list[LaneCommitter[Any]]) -> dict[Journal, PenstockError]:
        """Append the batches of committers in one transaction; return which failed, and why."""
        if not committers:
            return {}
        self.transactions += 1
        self.batches += len(committers)
        pairs = [(each.journal, each.batch) for each in committers]
        try:
            results = await append_together(self._place, pairs)
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
        if self._carrying is not None:
            await asyncio.wait((self._carrying,))
        self._place.drop()
        await asyncio.sleep(0)  # its transport is closed in the next turn


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
            try:
                self._on_failed(failed, failure)
            except Exception:  # other shards go on
                log.exception("A failed batch could not be taken back.")
        self._is_busy = bool(self.queue) and not self._is_stopped
        self._is_answering = True
        return partial(self._answer, committed)

    def _answer(self, committed: Committed[E] | None) -> None:
        self._is_answering = False
        if committed is not None:
            self._on_committed(committed)
        if not self._is_busy and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
