"""Group commit without timers: while one batch syncs, the next one collects.

The event loop gives a whole batch to the kernel's queue, or to a thread, and gets it back when it
is durable or failed, so that nothing here needs a lock. It knows records as bytes only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.errors import DiskFull, Overloaded, PenstockError, StoreReadOnly
from penstock.log.disk.files import is_disk_full
from penstock.log.disk.journal import JournalBroken

ALONE_BATCHES = 8
"""Quick batches of a single entry, one after the other, before the next one is written in place."""
SLOW_BATCHES = 64
"""Batches that are not written in place after one that was slow. Disks that are quick have such a
batch now and then; after each that follows another without a quick one between, twice as many."""
SLOW_BATCHES_MAX = 1024
SLOW_SUBMIT_BATCHES = 64
"""Batches that go to the thread after one that the kernel's queue was slow to take."""
AWAKE_S = 50e-6
"""So long the event loop stays awake after a batch in place: a writer that goes on at once would
wait as long for a processor that has gone to sleep."""
ASLEEP_BATCHES = 64
"""Batches in place without that after one whose writer did not go on in time."""
COLLECT_TURNS_MAX = 8
"""Iterations of the event loop in which a batch may grow; each costs about ten microseconds."""


class Entry(Protocol):
    """The part of a mutation that the committer uses."""

    record: bytes
    """Empty for a barrier, which has its turn in the order but writes nothing."""


E = TypeVar("E", bound=Entry)


class BatchWriter(Protocol):
    def write(self, first_lsn: int, parts: list[bytes]) -> None: ...


class QueueWriter(BatchWriter, Protocol):
    """A writer that can also give a batch to a queue, which writes and syncs it meanwhile."""

    def stage(self, first_lsn: int, parts: list[bytes]) -> bool: ...
    def submit(self) -> bool: ...
    def end(self, result: int) -> bool: ...


class Queue(Protocol):
    """See `kernel_queue.KernelQueue`."""

    descriptor: int

    def take(self) -> int | None: ...
    def wait(self) -> int: ...


class Committed(NamedTuple, Generic[E]):
    """A durable batch: its entries, the LSN of its first record, its bytes, and its duration."""

    entries: list[E]
    first_lsn: int
    bytes: int
    seconds: float


class Committer(Generic[E]):
    def __init__(
        self,
        writer: BatchWriter,
        *,
        next_lsn: int,
        batch_bytes_max: int,
        on_committed: Callable[[Committed[E]], None],
        on_failed: Callable[[list[E], PenstockError], None],
        in_place_s_max: float = 0.0,
        queue: Queue | None = None,
        queue_writer: QueueWriter | None = None,
    ) -> None:
        self._writer = writer
        self._kernel_queue = queue
        self._queue_writer = queue_writer
        self._queued: list[E] = []  # the batch that the kernel's queue has
        self._queued_s = 0.0  # when it got it
        self._skipped = 0  # batches that go to the thread before the kernel's queue is used again
        self._is_stopping = False
        self._next_lsn = next_lsn
        self._batch_bytes_max = batch_bytes_max
        self._in_place_s_max = in_place_s_max
        self._alone = 0  # quick batches of one entry so far, one after the other
        self._slow_batches = SLOW_BATCHES  # after the next one in place that is slow
        self._asleep = 0  # batches in place after which the event loop may go to sleep
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._queue: list[E] = []
        self.queued_bytes = 0
        self._busy = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: SimpleQueue[tuple[list[E], int] | None] = SimpleQueue()
        self._committing = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._drained: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._committing.start()
        if self._kernel_queue is not None:
            self._loop.add_reader(self._kernel_queue.descriptor, self._queue_is_ready)

    @property
    def idle(self) -> bool:
        return not self._busy and not self._queue

    def submit(self, entry: E) -> None:
        self._queue.append(entry)
        self.queued_bytes += len(entry.record)
        if not self._busy:
            self._busy = True
            assert self._loop is not None
            self._loop.call_soon(self._gather, 1, COLLECT_TURNS_MAX)

    async def drain(self) -> None:
        """Return when everything submitted so far is durable or has failed."""
        if not self.idle:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def stop(self) -> None:
        """End when the batch that is being written is durable or has failed."""
        self._is_stopping = True
        if self._kernel_queue is not None:
            # uvloop returns None, against the types, which compiled code would notice.
            loop: Any = self._loop
            loop.remove_reader(self._kernel_queue.descriptor)
            if self._queued:
                self._take_back(self._kernel_queue.wait())
        self._inbox.put(None)
        self._committing.join()

    def _gather(self, size: int, turns: int) -> None:
        """Hand the queue over when an iteration of the event loop has added nothing, or there were
        enough iterations: requests that arrive together, after the answers to the last batch, are
        synced together."""
        assert self._loop is not None
        if turns and len(self._queue) > size:
            self._loop.call_soon(self._gather, len(self._queue), turns - 1)
        elif self._alone >= ALONE_BATCHES and len(self._queue) == 1:
            self._commit_in_place()
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if not self._queue:
            self._busy = False
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(None)
            return
        batch, size = self._queue, 0
        for index, entry in enumerate(batch):
            size += len(entry.record)
            if size >= self._batch_bytes_max and index + 1 < len(batch):
                batch, self._queue = batch[: index + 1], batch[index + 1 :]
                break
        else:
            self._queue = []
        if self._queue_writer is None or not self._enqueue(self._queue_writer, batch):
            self._inbox.put((batch, self._next_lsn))

    def _enqueue(self, writer: QueueWriter, batch: list[E]) -> bool:
        """Give a batch to the kernel's queue; False if the thread has to write it."""
        if self._skipped > 0:
            self._skipped -= 1
            return False
        parts = [entry.record for entry in batch if entry.record]
        if not parts or self._is_stopping or not writer.stage(self._next_lsn, parts):
            return False
        started = time.perf_counter()
        is_queued = writer.submit()
        if time.perf_counter() - started > self._in_place_s_max:
            self._skipped = SLOW_SUBMIT_BATCHES  # the event loop must not wait there
        if is_queued:
            self._queued, self._queued_s = batch, started
        return is_queued

    def _queue_is_ready(self) -> None:
        queue = self._kernel_queue
        assert queue is not None
        result = queue.take()
        if result is not None and self._queued:
            self._take_back(result)

    def _take_back(self, result: int) -> None:
        """Take a batch back from the kernel's queue."""
        batch, self._queued = self._queued, []
        seconds = time.perf_counter() - self._queued_s
        writer = self._queue_writer
        assert writer is not None
        failure: PenstockError | None = None
        try:
            is_durable = writer.end(result)
        except JournalBroken as error:
            failure = _broken(error)
        except Exception as error:  # noqa: BLE001 - else every writer would wait for ever
            failure = StoreReadOnly(f"The journal failed ({error!r}). Restart the server.")
        else:
            if not is_durable:
                self._inbox.put((batch, self._next_lsn))
                return
        self._came_back(batch, self._next_lsn, seconds, failure)

    def _commit_in_place(self) -> None:
        """Write and sync the queue here: a lone writer would wait longer for two hand-overs between
        threads than for the disk."""
        batch, self._queue = self._queue, []
        started = time.perf_counter()
        failure = self._write(batch, self._next_lsn)
        seconds = time.perf_counter() - started
        if seconds > self._in_place_s_max:
            self._alone = -self._slow_batches
            self._slow_batches = min(2 * self._slow_batches, SLOW_BATCHES_MAX)
        else:
            self._slow_batches = SLOW_BATCHES
        self._done(batch, self._next_lsn, seconds, failure)
        if self._asleep > 0:
            self._asleep -= 1
        elif failure is None:
            self._stay_awake(time.perf_counter() + AWAKE_S)

    def _stay_awake(self, until: float) -> None:
        """Turn the event loop until the next entry is there."""
        if self._busy or self._is_stopping:
            return
        if time.perf_counter() < until:
            assert self._loop is not None
            self._loop.call_soon(self._stay_awake, until)
        else:
            self._asleep = ASLEEP_BATCHES

    def _run(self) -> None:
        assert self._loop is not None
        while (job := self._inbox.get()) is not None:
            entries, first_lsn = job
            started = time.perf_counter()
            failure = self._write(entries, first_lsn)
            seconds = time.perf_counter() - started
            self._loop.call_soon_threadsafe(self._came_back, entries, first_lsn, seconds, failure)

    def _write(self, entries: list[E], first_lsn: int) -> PenstockError | None:
        """Write and sync a batch; return why that failed."""
        parts = [entry.record for entry in entries if entry.record]
        try:
            if parts:
                self._writer.write(first_lsn, parts)
        except JournalBroken as error:
            return _broken(error)
        except PenstockError as error:
            return error
        except OSError as error:
            return _passing(error)
        except Exception as error:  # noqa: BLE001 - a dead thread would hang every writer
            return StoreReadOnly(f"The journal failed ({error!r}). Restart the server.")
        return None

    def _came_back(
        self, entries: list[E], first_lsn: int, seconds: float, failure: PenstockError | None
    ) -> None:
        """Take a batch back that was not written in place."""
        if self._alone < 0 or (
            seconds <= self._in_place_s_max and len(entries) == 1 and not self._queue
        ):
            self._alone += 1
        else:
            self._alone = 0
        self._done(entries, first_lsn, seconds, failure)

    def _done(
        self, entries: list[E], first_lsn: int, seconds: float, failure: PenstockError | None
    ) -> None:
        if failure is not None:
            # What was queued behind was decided on state that never became durable.
            failed = entries + self._queue
            self._queue = []
            self.queued_bytes = 0
            self._on_failed(failed, failure)
            self._hand_over()
            return
        size = sum([len(entry.record) for entry in entries])
        self.queued_bytes -= size
        self._next_lsn = first_lsn + sum([1 for entry in entries if entry.record])
        # The disk writes the next batch while the event loop answers this one.
        self._hand_over()
        self._on_committed(Committed(entries, first_lsn, size, seconds))


def _broken(error: JournalBroken) -> PenstockError:
    return StoreReadOnly(f"The journal failed ({error}). Restart the server.")


def _passing(error: OSError) -> PenstockError:
    """Return the error for a full disk or the like: the same append can succeed later."""
    if is_disk_full(error):
        return DiskFull(f"The journal cannot grow ({error.strerror}). Free some space.")
    return Overloaded(f"The journal cannot grow ({error.strerror}). Try again.")
