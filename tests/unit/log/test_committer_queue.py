"""Group commit by the kernel's queue: when it is used, when the thread takes over, what fails."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

from penstock.errors import DiskFull, PenstockError, StoreReadOnly
from penstock.http.native.server import new_event_loop
from penstock.log.disk import committer
from penstock.log.disk.committer import Committed, Committer
from penstock.log.disk.journal import JournalBroken
from tests.unit.log.test_committer import Item


class Queue:
    """Signals when a test says so; the result goes to `Writer.end` as it is."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.waits = 0

    def finish(self, result: int) -> None:
        os.eventfd_write(self.descriptor, result)

    def take(self) -> int | None:
        try:
            return os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return None

    def wait(self) -> int:
        self.waits += 1
        return DURABLE


DURABLE, AGAIN, BROKEN = 1, 2, 3


class Writer:
    """A journal that takes every batch for the queue, unless it is told not to."""

    def __init__(self) -> None:
        self.takes = True
        self.end_error: Exception = JournalBroken("the disk failed")
        self._staged: tuple[int, list[bytes]] = (0, [])
        self.begun: list[tuple[int, list[bytes]]] = []
        self.written: list[tuple[int, list[bytes]]] = []
        self.threads: list[threading.Thread] = []
        self.errors: list[Exception] = []

    def stage(self, first_lsn: int, parts: list[bytes]) -> bool:
        self._staged = (first_lsn, parts)
        return self.takes

    def submit(self) -> bool:
        self.begun.append(self._staged)
        return True

    def end(self, result: int) -> bool:
        if result == BROKEN:
            raise self.end_error
        return result == DURABLE

    def write(self, first_lsn: int, parts: list[bytes]) -> None:
        self.threads.append(threading.current_thread())
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((first_lsn, parts))


class Bench:
    def __init__(self) -> None:
        self.queue, self.writer = Queue(), Writer()
        self.calls: list[tuple[str, list[Item]]] = []
        self.failures: list[PenstockError] = []
        self._moved = asyncio.Event()
        self.committer: Committer[Item] = Committer(
            self.writer,
            next_lsn=100,
            batch_bytes_max=1000,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
            in_place_s_max=60.0,
            queue=self.queue,
            queue_writer=self.writer,
        )
        self.committer.start()

    def _on_committed(self, batch: Committed[Item]) -> None:
        self.calls.append(("committed", batch.entries))
        self._moved.set()

    def _on_failed(self, entries: list[Item], error: PenstockError) -> None:
        self.failures.append(error)
        self.calls.append(("failed", entries))
        self._moved.set()

    def submit(self, *records: bytes) -> list[Item]:
        items = [Item(record) for record in records]
        for item in items:
            self.committer.submit(item)
        return items

    async def until_begun(self, times: int) -> None:
        for _ in range(100):
            if len(self.writer.begun) >= times:
                return
            await asyncio.sleep(0)
        raise AssertionError("nothing was given to the queue")

    async def until_told(self, times: int) -> None:
        while len(self.calls) < times:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 10)


def with_bench(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            bench = Bench()
            try:
                await test(bench)
            finally:
                bench.committer.stop()
                os.close(bench.queue.descriptor)

        with asyncio.Runner(loop_factory=new_event_loop) as runner:  # that of the server
            runner.run(main())

    run.__name__ = getattr(test, "__name__", "test")
    return run


@with_bench
async def test_a_batch_is_answered_when_the_queue_has_written_it(bench: Bench) -> None:
    first = bench.submit(b"a", b"b")
    await bench.until_begun(1)
    second = bench.submit(b"c")
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.calls == []
    assert bench.writer.begun == [(100, [b"a", b"b"])], "one batch at a time"
    bench.queue.finish(DURABLE)
    await bench.until_told(1)
    assert bench.calls == [("committed", first)]
    assert bench.writer.begun[1:] == [(102, [b"c"])]
    bench.queue.finish(DURABLE)
    await bench.until_told(2)
    assert bench.calls[1:] == [("committed", second)]
    assert bench.committer.idle
    assert bench.committer.queued_bytes == 0
    assert bench.writer.threads == []


@with_bench
async def test_what_the_queue_does_not_take_goes_to_the_thread(bench: Bench) -> None:
    bench.writer.takes = False
    first = bench.submit(b"a")
    await bench.until_told(1)
    bench.writer.takes = True
    second = bench.submit(b"b")
    await bench.until_begun(1)
    bench.queue.finish(DURABLE)
    await bench.until_told(2)
    assert bench.calls == [("committed", first), ("committed", second)]
    assert bench.writer.written == [(100, [b"a"])]
    assert bench.writer.begun == [(101, [b"b"])]
    assert threading.current_thread() not in bench.writer.threads


@with_bench
async def test_what_the_queue_did_not_write_is_written_by_the_thread(bench: Bench) -> None:
    first = bench.submit(b"a")
    await bench.until_begun(1)
    second = bench.submit(b"b")
    bench.queue.finish(AGAIN)
    await bench.until_told(1)
    bench.queue.finish(DURABLE)
    await bench.until_told(2)
    assert bench.calls == [("committed", first), ("committed", second)]
    assert bench.writer.written == [(100, [b"a"])]
    assert bench.writer.begun == [(100, [b"a"]), (101, [b"b"])]


@with_bench
async def test_a_disk_that_is_full_for_the_thread_too_fails_the_batch(bench: Bench) -> None:
    bench.writer.errors = [OSError(28, "full")]
    items = bench.submit(b"a")
    await bench.until_begun(1)
    more = bench.submit(b"b")
    bench.queue.finish(AGAIN)
    await bench.until_told(1)
    assert bench.calls == [("failed", items + more)]
    assert isinstance(bench.failures[0], DiskFull)
    bench.submit(b"again")
    await bench.until_begun(2)
    assert bench.writer.begun[1] == (100, [b"again"])
    bench.queue.finish(DURABLE)
    await bench.until_told(2)


@with_bench
async def test_an_error_of_the_disk_fails_all_that_is_queued(bench: Bench) -> None:
    first = bench.submit(b"a")
    await bench.until_begun(1)
    second = bench.submit(b"b")
    bench.queue.finish(BROKEN)
    await bench.until_told(1)
    assert bench.calls == [("failed", first + second)]
    assert isinstance(bench.failures[0], StoreReadOnly)
    assert bench.committer.idle
    assert bench.committer.queued_bytes == 0


@with_bench
async def test_an_error_that_nobody_expects_fails_the_batch_too(bench: Bench) -> None:
    bench.writer.end_error = ValueError("no such result")
    items = bench.submit(b"a")
    await bench.until_begun(1)
    bench.queue.finish(BROKEN)
    await bench.until_told(1)
    assert bench.calls == [("failed", items)]
    assert isinstance(bench.failures[0], StoreReadOnly)


@with_bench
async def test_a_barrier_alone_is_not_written(bench: Bench) -> None:
    bench.submit(b"")
    await bench.until_told(1)
    assert bench.writer.begun == []
    assert bench.writer.written == []


@with_bench
async def test_a_queue_that_holds_up_the_loop_is_left_alone_for_a_while(bench: Bench) -> None:
    bench.committer._in_place_s_max = -1.0  # everything is slow now
    bench.submit(b"a")
    await bench.until_begun(1)
    bench.queue.finish(DURABLE)
    await bench.until_told(1)
    for number in range(3):
        bench.submit(b"b")
        await bench.until_told(2 + number)
    assert len(bench.writer.begun) == 1
    assert len(bench.writer.written) == 3
    assert threading.current_thread() not in bench.writer.threads
    bench.committer._skipped = 0
    bench.submit(b"c")
    await bench.until_begun(2)
    bench.queue.finish(DURABLE)
    await bench.until_told(5)
    assert committer.SLOW_SUBMIT_BATCHES > 3


@with_bench
async def test_a_signal_without_a_batch_is_nothing(bench: Bench) -> None:
    bench.queue.finish(DURABLE)
    for _ in range(20):
        await asyncio.sleep(0)
    items = bench.submit(b"a")
    await bench.until_begun(1)
    assert bench.calls == []
    bench.queue.finish(DURABLE)
    await bench.until_told(1)
    assert bench.calls == [("committed", items)]


@with_bench
async def test_a_stop_waits_for_the_batch_on_its_way(bench: Bench) -> None:
    items = bench.submit(b"a")
    await bench.until_begun(1)
    bench.submit(b"behind it")
    bench.committer.stop()
    assert bench.queue.waits == 1
    assert bench.calls == [("committed", items)]
    assert len(bench.writer.begun) == 1, "a stopped committer gives the queue nothing more"
