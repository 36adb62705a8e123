"""Group commit: what is collected, in which order it is told, and what fails together."""

from __future__ import annotations

import asyncio
import errno
import selectors
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import DiskFull, PenstockError, StoreReadOnly
from penstock.log.disk import committer
from penstock.log.disk.committer import ALONE_BATCHES, Committed, Committer
from penstock.log.disk.journal import JournalBroken


class Item:
    def __init__(self, record: bytes) -> None:
        self.record = record


class Gate:
    """A journal that waits until it is let through, and fails when it is told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []
        self.errors: list[Exception | None] = []
        self.begun = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    def write(self, first_lsn: int, parts: list[bytes]) -> None:
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.open.acquire(timeout=10)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.batches.append((first_lsn, parts))

    async def writing(self) -> None:
        """Return when a batch has reached the journal."""
        await asyncio.to_thread(self.begun.acquire, timeout=10)


class Bench:
    def __init__(self, batch_bytes_max: int = 1000, in_place_s_max: float = 0.0) -> None:
        self.gate = Gate()
        self.calls: list[tuple[str, list[Item]]] = []
        self.committed: list[Committed[Item]] = []
        self.failures: list[PenstockError] = []
        self._moved = asyncio.Event()
        self.committer: Committer[Item] = Committer(
            self.gate,
            next_lsn=100,
            batch_bytes_max=batch_bytes_max,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
            in_place_s_max=in_place_s_max,
        )
        self.committer.start()

    def _on_committed(self, batch: Committed[Item]) -> None:
        self.committed.append(batch)
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

    async def until_told(self, times: int) -> None:
        while len(self.calls) < times:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 10)


def with_bench(
    batch_bytes_max: int = 1000,
    in_place_s_max: float = 0.0,
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[], None]]:
    def decorate(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                bench = Bench(batch_bytes_max, in_place_s_max)
                try:
                    await test(bench)
                finally:
                    for _ in range(20):
                        bench.gate.open.release()
                    bench.committer.stop()

            asyncio.run(main())

        run.__name__ = getattr(test, "__name__", "test")
        return run

    return decorate


@with_bench()
async def test_what_is_submitted_in_one_turn_is_one_batch(bench: Bench) -> None:
    items = bench.submit(b"a", b"b", b"c")
    bench.gate.open.release()
    await bench.until_told(1)
    assert bench.calls == [("committed", items)]
    assert bench.gate.batches == [(100, [b"a", b"b", b"c"])]


@with_bench()
async def test_while_one_batch_is_written_the_next_collects(bench: Bench) -> None:
    first = bench.submit(b"a")
    await bench.gate.writing()
    second = bench.submit(b"b")
    await asyncio.sleep(0)
    third = bench.submit(b"c")
    bench.gate.open.release()
    bench.gate.open.release()
    await bench.until_told(2)
    assert bench.calls == [("committed", first), ("committed", second + third)]
    assert bench.gate.batches == [(100, [b"a"]), (101, [b"b", b"c"])]


@with_bench(batch_bytes_max=10)
async def test_a_batch_is_closed_when_it_is_large_enough(bench: Bench) -> None:
    bench.submit(b"1234", b"5678", b"90", b"x", b"y" * 50, b"z")
    for _ in range(3):
        bench.gate.open.release()
    await bench.until_told(3)
    assert [parts for _, parts in bench.gate.batches] == [
        [b"1234", b"5678", b"90"],
        [b"x", b"y" * 50],
        [b"z"],
    ]
    assert [lsn for lsn, _ in bench.gate.batches] == [100, 103, 105]


@with_bench()
async def test_a_barrier_keeps_its_place_and_takes_no_lsn(bench: Bench) -> None:
    items = bench.submit(b"a", b"", b"b")
    bench.gate.open.release()
    await bench.until_told(1)
    bench.submit(b"c")
    bench.gate.open.release()
    await bench.until_told(2)
    assert bench.calls[0] == ("committed", items)
    assert bench.gate.batches == [(100, [b"a", b"b"]), (102, [b"c"])]


@with_bench()
async def test_a_barrier_alone_passes_without_a_write(bench: Bench) -> None:
    items = bench.submit(b"")
    await bench.until_told(1)
    assert bench.calls == [("committed", items)]
    assert bench.gate.batches == []


@with_bench()
async def test_a_barrier_behind_a_batch_waits_for_it(bench: Bench) -> None:
    bench.submit(b"a")
    await bench.gate.writing()
    bench.submit(b"")
    await asyncio.sleep(0)
    assert bench.calls == []
    bench.gate.open.release()
    await bench.until_told(2)
    assert [len(entries) for _, entries in bench.calls] == [1, 1]


@with_bench()
async def test_a_failed_batch_takes_everything_queued_behind_it_along(bench: Bench) -> None:
    bench.gate.errors = [OSError(errno.ENOSPC, "full")]
    first = bench.submit(b"a")
    await bench.gate.writing()
    second = bench.submit(b"b", b"", b"c")
    bench.gate.open.release()
    await bench.until_told(1)
    assert bench.calls == [("failed", first + second)]
    assert isinstance(bench.failures[0], DiskFull)
    assert bench.gate.batches == []
    assert bench.committer.queued_bytes == 0


@with_bench()
async def test_after_a_full_disk_the_same_lsn_is_used_again(bench: Bench) -> None:
    bench.gate.errors = [OSError(errno.ENOSPC, "full")]
    bench.submit(b"a")
    bench.gate.open.release()
    await bench.until_told(1)
    later = bench.submit(b"b")
    bench.gate.open.release()
    await bench.until_told(2)
    assert bench.calls[1] == ("committed", later)
    assert bench.gate.batches == [(100, [b"b"])]


@with_bench()
async def test_a_broken_journal_is_reported_as_read_only(bench: Bench) -> None:
    bench.gate.errors = [JournalBroken("sync failed")]
    bench.submit(b"a")
    bench.gate.open.release()
    await bench.until_told(1)
    assert isinstance(bench.failures[0], StoreReadOnly)
    assert "sync failed" in bench.failures[0].detail


@with_bench()
async def test_what_a_failure_handler_submits_is_written(bench: Bench) -> None:
    bench.gate.errors = [OSError(errno.ENOSPC, "full")]
    bench.submit(b"a")
    fail = bench.committer._on_failed

    def and_again(entries: list[Item], error: PenstockError) -> None:
        fail(entries, error)
        bench.submit(b"again")

    bench.committer._on_failed = and_again
    bench.gate.open.release()
    bench.gate.open.release()
    await bench.until_told(2)
    assert bench.gate.batches == [(100, [b"again"])]


@with_bench()
async def test_queued_bytes_are_those_not_yet_durable(bench: Bench) -> None:
    bench.submit(b"four", b"")
    assert bench.committer.queued_bytes == 4
    await bench.gate.writing()
    bench.submit(b"more!")
    assert bench.committer.queued_bytes == 9
    bench.gate.open.release()
    await bench.until_told(1)
    assert bench.committer.queued_bytes == 5
    bench.gate.open.release()
    await bench.until_told(2)
    assert bench.committer.queued_bytes == 0


@with_bench()
async def test_draining_waits_until_everything_was_told(bench: Bench) -> None:
    await asyncio.wait_for(bench.committer.drain(), 10)
    bench.submit(b"a")
    await bench.gate.writing()
    bench.submit(b"b")
    drain = asyncio.create_task(bench.committer.drain())
    await asyncio.sleep(0)
    assert not drain.done()
    bench.gate.open.release()
    bench.gate.open.release()
    await asyncio.wait_for(drain, 10)
    assert [len(entries) for _, entries in bench.calls] == [1, 1]
    assert bench.committer.idle


@with_bench()
async def test_a_committed_batch_says_what_it_cost(bench: Bench) -> None:
    bench.submit(b"four", b"", b"!")
    bench.gate.open.release()
    await bench.until_told(1)
    (batch,) = bench.committed
    assert (batch.first_lsn, batch.bytes) == (100, 5)
    assert batch.seconds >= 0


def test_a_thread_that_was_stopped_is_gone() -> None:
    async def main() -> None:
        bench = Bench()
        bench.committer.stop()
        assert not bench.committer._committing.is_alive()

    asyncio.run(main())


async def alone(bench: Bench) -> None:
    """Commit entries one by one until the next one would be written in place."""
    for number in range(ALONE_BATCHES):
        bench.gate.open.release()
        bench.submit(b"alone")
        await bench.until_told(number + 1)


@with_bench(in_place_s_max=60.0)
async def test_a_lone_writer_needs_no_thread(bench: Bench) -> None:
    await alone(bench)
    bench.gate.open.release()
    items = bench.submit(b"in place")
    await bench.until_told(ALONE_BATCHES + 1)
    here = threading.current_thread()
    assert [thread is here for thread in bench.gate.threads] == [False] * ALONE_BATCHES + [True]
    assert bench.calls[-1] == ("committed", items)
    assert bench.gate.batches[-1] == (100 + ALONE_BATCHES, [b"in place"])
    assert bench.committer.idle
    assert bench.committer.queued_bytes == 0


@with_bench(in_place_s_max=60.0)
async def test_several_writers_go_to_the_thread_again(bench: Bench) -> None:
    await alone(bench)
    bench.gate.open.release()
    bench.submit(b"1", b"2")
    await bench.until_told(ALONE_BATCHES + 1)
    bench.gate.open.release()
    bench.submit(b"3")
    await bench.until_told(ALONE_BATCHES + 2)
    assert threading.current_thread() not in bench.gate.threads


@with_bench(in_place_s_max=60.0)
async def test_a_slow_disk_sends_a_lone_writer_back_to_the_thread(bench: Bench) -> None:
    await alone(bench)
    bench.committer._in_place_s_max = -1.0  # everything is slow now
    for number in range(3):
        bench.gate.open.release()
        bench.submit(b"slow")
        await bench.until_told(ALONE_BATCHES + number + 1)
    here = threading.current_thread()
    assert [thread is here for thread in bench.gate.threads[ALONE_BATCHES:]] == [True, False, False]


def test_a_disk_that_stays_slow_is_tried_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SLOW_BATCHES", 2)
    monkeypatch.setattr(committer, "SLOW_BATCHES_MAX", 4)

    @with_bench(in_place_s_max=60.0)
    async def run(bench: Bench) -> None:
        written = 0

        async def batches_until_in_place(in_place_s_max: float) -> int:
            """Return how many batches the thread writes before the next one in place."""
            nonlocal written
            before = written
            bench.committer._in_place_s_max = 60.0
            while bench.committer._alone < ALONE_BATCHES:
                await one()
            bench.committer._in_place_s_max = in_place_s_max
            await one()
            assert bench.gate.threads[-1] is threading.current_thread()
            return written - 1 - before

        async def one() -> None:
            nonlocal written
            bench.gate.open.release()
            bench.submit(b"alone")
            written += 1
            await bench.until_told(written)

        slow, quick = -1.0, 60.0
        counts = [await batches_until_in_place(each) for each in (slow, slow, slow, slow, quick)]
        assert [count - ALONE_BATCHES for count in counts] == [0, 2, 4, 4, 4]
        counts = [await batches_until_in_place(each) for each in (quick, slow, slow)]
        assert counts == [0, 0, ALONE_BATCHES + 2]

    run()


@with_bench(in_place_s_max=60.0)
async def test_a_failure_in_place_takes_what_is_queued_along(bench: Bench) -> None:
    await alone(bench)
    bench.gate.errors.append(OSError(errno.ENOSPC, "full"))
    bench.gate.open.release()
    items = bench.submit(b"in place")
    await bench.until_told(ALONE_BATCHES + 1)
    assert bench.calls[-1] == ("failed", items)
    assert isinstance(bench.failures[0], DiskFull)
    bench.gate.open.release()
    bench.submit(b"again")
    await bench.until_told(ALONE_BATCHES + 2)
    assert bench.gate.batches[-1] == (100 + ALONE_BATCHES, [b"again"])


class Sleeps(selectors.DefaultSelector):
    """Counts how often the event loop has gone to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.count += timeout is None or timeout > 0
        return super().select(timeout)


@pytest.mark.parametrize(("awake_s", "is_awake"), [(60.0, True), (0.0, False)])
def test_a_lone_writer_finds_the_event_loop_awake(
    monkeypatch: pytest.MonkeyPatch, awake_s: float, is_awake: bool
) -> None:
    sleeps = Sleeps()

    async def turn_until_told(bench: Bench, times: int) -> int:
        """Return how often the loop has slept until a while after a batch in place."""
        bench.gate.open.release()
        before = sleeps.count
        bench.submit(b"in place")
        while len(bench.calls) < times:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # the loop turns meanwhile, or sleeps
        return sleeps.count - before

    async def main() -> None:
        bench = Bench(in_place_s_max=60.0)
        try:
            await alone(bench)
            monkeypatch.setattr(committer, "AWAKE_S", awake_s)
            first = await turn_until_told(bench, ALONE_BATCHES + 1)
            assert (first == 0) is is_awake
            monkeypatch.setattr(committer, "AWAKE_S", 60.0)
            # Whoever did not go on in time last time is not waited for.
            second = await turn_until_told(bench, ALONE_BATCHES + 2)
            assert (second == 0) is is_awake
        finally:
            bench.committer.stop()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(sleeps)) as runner:
        runner.run(main())


@with_bench()
async def test_without_the_setting_every_batch_goes_to_the_thread(bench: Bench) -> None:
    await alone(bench)
    bench.gate.open.release()
    bench.submit(b"next")
    await bench.until_told(ALONE_BATCHES + 1)
    assert threading.current_thread() not in bench.gate.threads
