"""Decisions on pending state: answers wait for what they rest on, and failures undo it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from penstock.errors import (
    DiskFull,
    ShuttingDown,
    StoreReadOnly,
    StreamExists,
    StreamNotFound,
    TailMoved,
    TooManyProducers,
)
from penstock.log.disk.journal import JournalBroken
from penstock.log.requests import Append
from penstock.protocol.headers import Producer
from tests.unit.log.bench import JSON, Bench, Recorder, with_bench


class Journal:
    """Stands before the journal's write: holds every batch until it is let through."""

    def __init__(self, bench: Bench) -> None:
        self._journal = cast("Any", bench.store._journal)
        self._real: Callable[[int, Sequence[bytes]], None] = self._journal.write
        self._journal.write = self
        self._stage: Callable[[int, Sequence[bytes]], bool] = self._journal.stage
        self._journal.stage = lambda *_: False  # all takes `write`
        self.errors: list[Exception] = []
        self.begun = threading.Semaphore(0)
        self.open = threading.Semaphore(0)

    def __call__(self, first_lsn: int, parts: Sequence[bytes]) -> None:
        self.begun.release()
        assert self.open.acquire(timeout=10)
        if self.errors:
            raise self.errors.pop(0)
        self._real(first_lsn, parts)

    async def reached(self) -> None:
        await asyncio.to_thread(self.begun.acquire, timeout=10)

    def let_go(self) -> None:
        self._journal.write = self._real
        self._journal.stage = self._stage
        for _ in range(100):
            self.open.release()


async def settled(futures: Sequence[asyncio.Future[Any]]) -> list[Any]:
    return await asyncio.gather(*futures, return_exceptions=True)


@with_bench()
async def test_no_answer_that_rests_on_an_append_is_given_before_it_is_durable(
    bench: Bench,
) -> None:
    await bench.create("a")
    journal = Journal(bench)
    first = bench.append("a", b"1", Producer("p", 0, 0))
    await journal.reached()
    waiting = [
        first,
        bench.append("a", b"1", Producer("p", 0, 0)),  # a duplicate
        bench.append("a", b"9", Producer("p", 0, 5)),  # a gap
        bench.engine.create("a", JSON, b"", closed=False),  # an existing stream
        bench.engine.create("a", JSON, b"", closed=True),  # a conflict
        bench.engine.append("a", Append(b"2", JSON.content_type, False, None, None, "old")),
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [future.done() for future in waiting] == [False] * len(waiting)
    assert bench.engine.find("a", touch=False).tail == 0, "readers see durable bytes only"
    journal.let_go()
    answers = await settled(waiting)
    assert [getattr(answer, "duplicate", None) for answer in answers[:2]] == [False, True]
    assert answers[2].headers["Producer-Expected-Seq"] == "1"
    assert (answers[3].created, answers[3].offset) == (False, answers[0].offset)
    assert isinstance(answers[4], StreamExists)
    assert isinstance(answers[5], TailMoved)


@with_bench()
async def test_no_answer_that_rests_on_a_close_or_delete_is_given_before_it_is_durable(
    bench: Bench,
) -> None:
    await bench.create("closing")
    await bench.create("deleting")
    journal = Journal(bench)
    closing = Append(b"", None, True, None, None, None)
    first: list[asyncio.Future[Any]] = [
        bench.engine.append("closing", closing),
        bench.engine.delete("deleting"),
    ]
    await journal.reached()
    waiting = [
        bench.engine.append("closing", closing),
        bench.append("closing", b"1"),
        bench.append("deleting", b"1"),
        bench.engine.delete("deleting"),
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(future.done() for future in [*first, *waiting])
    assert not bench.engine.find("closing", touch=False).closed
    assert not bench.engine.find("deleting", touch=False).deleted
    journal.let_go()
    assert [getattr(each, "code", "ok") for each in await settled([*first, *waiting])] == [
        "ok",
        "ok",
        "ok",
        "stream-closed",
        "stream-not-found",
        "stream-not-found",
    ]


@with_bench()
async def test_a_repeat_of_a_close_that_is_not_durable_yet_is_a_duplicate(bench: Bench) -> None:
    await bench.create("a")
    close = Append(b"1", JSON.content_type, True, Producer("p", 0, 0), None, None)
    futures = [bench.engine.append("a", close), bench.engine.append("a", close)]
    other = bench.append("a", b"1", Producer("q", 0, 0))
    first, second, refused = await settled([*futures, other])
    assert [first.duplicate, second.duplicate] == [False, True]
    assert first.offset == second.offset
    assert first.closed
    assert second.closed
    assert refused.code == "stream-closed"


@with_bench()
async def test_when_a_batch_fails_everything_decided_on_it_fails_too(bench: Bench) -> None:
    await bench.create("a", b"[0]")
    before = bench.engine.find("a", touch=False)
    journal = Journal(bench)
    journal.errors = [OSError(errno.ENOSPC, "full")]
    waiting = [bench.append("a", b"1", Producer("p", 0, 0))]
    await journal.reached()
    waiting += [
        bench.append("a", b"1", Producer("p", 0, 0)),
        bench.append("a", b"2", Producer("p", 0, 1)),
        bench.engine.append("a", Append(b"", None, True, None, None, None)),
        bench.engine.create("b", JSON, b"", closed=False),
        bench.engine.delete("a"),
        bench.engine.create("a", JSON, b"[9]", closed=False),
        bench.append("a", b"10"),
    ]
    journal.let_go()
    assert all(isinstance(answer, DiskFull) for answer in await settled(waiting))
    stream = bench.engine.find("a", touch=False)
    assert stream is before
    assert (stream.tail, stream.pending_tail, stream.in_flight) == (3, 3, 0)
    assert not stream.pending_closed
    with pytest.raises(StreamNotFound):
        bench.engine.find("b", touch=False)
    accepted = await bench.append("a", b"1", Producer("p", 0, 0))
    assert not accepted.duplicate
    assert await bench.content("a") == b"0,\n1,\n"


@with_bench()
async def test_an_expired_stream_whose_replacement_failed_is_still_expired(bench: Bench) -> None:
    await bench.create("a", b"[1]", JSON._replace(ttl_s=10))
    bench.clock.advance(10)
    journal = Journal(bench)
    journal.errors = [OSError(errno.ENOSPC, "full")]
    creating = bench.engine.create("a", JSON, b"[2]", closed=False)
    await journal.reached()
    journal.let_go()
    with pytest.raises(DiskFull):
        await creating
    with pytest.raises(StreamNotFound):
        bench.engine.find("a", touch=False)
    await bench.create("a", b"[3]")
    assert await bench.content("a") == b"3,\n"


@with_bench()
async def test_a_store_that_went_read_only_takes_no_delete_either(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    real = bench.store._journal._write
    calls: list[int] = []

    def break_once(first_lsn: int, parts: Sequence[bytes]) -> None:
        calls.append(first_lsn)
        if len(calls) == 1:
            raise JournalBroken("sync failed")
        real(first_lsn, parts)

    bench.store._journal._write = break_once  # type: ignore[method-assign]
    with pytest.raises(StoreReadOnly):
        await bench.append("a", b"2")
    with pytest.raises(StoreReadOnly):
        await bench.engine.delete("a")
    assert len(calls) == 1
    assert await bench.content("a") == b"1,\n"


@with_bench(producers_per_stream_max=3)
async def test_producers_that_are_known_are_not_counted_again_while_they_write(
    bench: Bench,
) -> None:
    await bench.create("a")
    for name in ("p", "q"):
        await bench.append("a", b"1", Producer(name, 0, 0))
    futures = [bench.append("a", b"2", Producer(name, 0, 1)) for name in ("p", "q")]
    futures.append(bench.append("a", b"1", Producer("r", 0, 0)))
    futures.append(bench.append("a", b"1", Producer("s", 0, 0)))
    *accepted, refused = await settled(futures)
    assert [answer.duplicate for answer in accepted] == [False] * 3
    assert isinstance(refused, TooManyProducers)
    with pytest.raises(TooManyProducers):
        await bench.append("a", b"1", Producer("s", 0, 0))
    await bench.append("a", b"3", Producer("p", 0, 2))


@with_bench()
async def test_while_stopping_queued_writes_are_finished_and_new_ones_refused(
    bench: Bench,
) -> None:
    await bench.create("a")
    queued = bench.append("a", b"1")
    stop = asyncio.create_task(bench.engine.stop())
    await asyncio.sleep(0)
    for ask in (
        lambda: bench.append("a", b"2"),
        lambda: bench.engine.create("b", JSON, b"", closed=False),
        lambda: bench.engine.delete("a"),
    ):
        with pytest.raises(ShuttingDown):
            await ask()
    await stop
    assert not (await queued).duplicate
    with pytest.raises(ShuttingDown):
        await bench.engine.delete("a")
    await bench.open()
    assert await bench.content("a") == b"1,\n"


@with_bench()
async def test_watchers_are_told_once_a_batch_with_all_its_bytes(bench: Bench) -> None:
    await bench.create("a", b"[0]")
    watcher = Recorder()
    bench.engine.watch(bench.engine.find("a", touch=False), watcher)
    close = Append(b"3", JSON.content_type, True, None, None, None)
    await settled(
        [bench.append("a", b"1"), bench.append("a", b"2"), bench.engine.append("a", close)]
    )
    assert watcher.seen == [(3, 12, b"1,\n2,\n3,\n", True)]
    await bench.engine.delete("a")
    assert watcher.seen[1:] == ["ended"]


@with_bench()
async def test_a_bare_close_is_told_without_bytes(bench: Bench) -> None:
    await bench.create("a", b"[0]")
    watcher = Recorder()
    bench.engine.watch(bench.engine.find("a", touch=False), watcher)
    await bench.engine.append("a", Append(b"", None, True, None, None, None))
    assert watcher.seen == [(3, 3, b"", True)]


@with_bench()
async def test_a_waiter_returns_for_data_for_a_close_for_a_delete_and_in_time(
    bench: Bench,
) -> None:
    await bench.create("a")
    stream = bench.engine.find("a", touch=False)
    await bench.engine.wait(stream, 0, 0.001)
    waiter = asyncio.create_task(bench.engine.wait(stream, 0, 100))
    await asyncio.sleep(0)
    await bench.append("a", b"1")
    await waiter
    await bench.engine.wait(stream, 0, 100)
    waiter = asyncio.create_task(bench.engine.wait(stream, 3, 100))
    await asyncio.sleep(0)
    await bench.engine.delete("a")
    await waiter
    assert bench.engine.stats.watchers == 0
