"""Checkpoints: what they cover, what happens beside them, and what a failed one leaves behind."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DiskFull, StoreReadOnly, StreamNotFound
from penstock.log.disk import checkpoint_schedule
from penstock.log.disk.catalog import Changes
from penstock.protocol.headers import Producer
from tests.unit.log.bench import JSON, Bench, with_bench

LARGE = b'"%s"' % (b"x" * 300)
FULL = sqlite3.OperationalError("database or disk is full")


class Commit:
    """Stands before the catalog's commit: holds it, or fails it, as often as told."""

    def __init__(self, bench: Bench) -> None:
        self._real: Callable[[Changes], None] = bench.store._catalog.commit
        catalog: Any = bench.store._catalog
        catalog.commit = self
        self.errors: list[Exception] = []
        self.changes: list[Changes] = []
        self.begun = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, changes: Changes) -> None:
        self.begun.set()
        assert self.open.wait(10)
        self.changes.append(changes)
        if self.errors:
            raise self.errors.pop(0)
        self._real(changes)

    def hold(self) -> None:
        self.begun.clear()
        self.open.clear()

    async def reached(self) -> None:
        await asyncio.to_thread(self.begun.wait, 10)


async def saved(bench: Bench, path: str) -> bytes:
    """What a restart finds at `path`."""
    await bench.crash()
    return await bench.content(path)


@with_bench()
async def test_a_checkpoint_covers_what_changed_since_the_last_one_only(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a")
    await bench.create("b")
    await bench.checkpoint()
    await bench.append("b", b"1", Producer("p", 0, 0))
    await bench.checkpoint()
    await bench.checkpoint()
    assert [[row.path for row in each.rows] for each in commit.changes] == [["a", "b"], ["b"], []]
    assert [len(each.producers) for each in commit.changes] == [0, 1, 0]


@with_bench()
async def test_after_a_failed_checkpoint_everything_it_covered_is_dirty_again(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("small")
    await bench.create("large", LARGE)
    await bench.create("gone", LARGE)
    await bench.checkpoint()
    await bench.append("small", b"1", Producer("p", 0, 0))
    await bench.append("large", LARGE)
    await bench.engine.delete("gone")
    stream = bench.engine.find("large", touch=False)
    before = stream.segments, stream.memory.start
    commit.errors = [FULL]
    assert not await bench.store.checkpoint()
    assert (stream.segments, stream.memory.start) == before
    assert not bench.store.release(stream)
    assert bench.store.stats.checkpoint_failures == 1
    await bench.checkpoint()
    failed, repeated = commit.changes[-2:]
    assert {row.path for row in repeated.rows} == {row.path for row in failed.rows}
    assert repeated.producers == failed.producers
    assert repeated.deleted == failed.deleted
    assert repeated.segments == failed.segments
    assert stream.memory.start == stream.tail
    assert await saved(bench, "large") == (LARGE + b",\n") * 2


@with_bench()
async def test_a_failed_checkpoint_releases_no_journal(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a")
    for _ in range(30):
        await bench.append("a", LARGE)
    names = bench.files.list_folder(bench.folder / "journal")
    commit.errors = [FULL]
    assert not await bench.store.checkpoint()
    assert bench.files.list_folder(bench.folder / "journal") == names
    assert len(names) > 2
    assert await saved(bench, "a") == (LARGE + b",\n") * 30


@with_bench()
async def test_what_is_appended_while_a_checkpoint_runs_is_covered_by_the_next(
    bench: Bench,
) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE)
    commit.hold()
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    await bench.append("a", b"1", Producer("p", 0, 0))
    await bench.append("a", LARGE)
    commit.open.set()
    assert await checkpoint
    stream = bench.engine.find("a", touch=False)
    assert not bench.store.release(stream)
    assert stream.memory.start == len(LARGE) + 2
    assert await bench.content("a") == LARGE + b",\n1,\n" + LARGE + b",\n"
    assert not bench.store.release(stream)
    await bench.checkpoint()
    assert commit.changes[-1].producers == [(stream.id, "p", (0, 0))]
    assert stream.memory.chunks == []
    assert await saved(bench, "a") == LARGE + b",\n1,\n" + LARGE + b",\n"


class Paused:
    """asyncio as a checkpoint's plan sees it: its first pause lasts until something happened."""

    def __init__(self, happen: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._happen: Callable[[], Coroutine[Any, Any, None]] | None = happen

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        happen, self._happen = self._happen, None
        if happen is not None:
            await happen()


@with_bench()
async def test_streams_that_change_while_a_checkpoint_is_planned_are_saved_once(
    bench: Bench,
) -> None:
    """The first is described before its append, the second after, the third is gone by then."""
    for path in ("first", "second", "third"):
        await bench.create(path, LARGE)

    async def happen() -> None:
        await bench.append("first", b"1")
        await bench.append("second", b"2", Producer("p", 0, 0))
        await bench.engine.delete("third")
        await bench.create("third", b"[3]")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_schedule, "PLAN_SLICE", 1)
        patch.setattr(checkpoint_schedule, "asyncio", Paused(happen))
        await bench.checkpoint()
    for _ in range(2):
        assert await saved(bench, "first") == LARGE + b",\n1,\n"
        assert await bench.content("second") == LARGE + b",\n2,\n"
        assert await bench.content("third") == b"3,\n"
        assert (await bench.append("second", b"2", Producer("p", 0, 0))).duplicate
        await bench.checkpoint()


@with_bench()
async def test_what_is_appended_while_a_checkpoint_fails_is_not_lost(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE)
    commit.hold()
    commit.errors = [FULL]
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    await bench.append("a", b"1")
    commit.open.set()
    assert not await checkpoint
    await bench.checkpoint()
    assert await saved(bench, "a") == LARGE + b",\n1,\n"


@with_bench()
async def test_a_checkpoint_keeps_the_journal_of_what_came_while_it_ran(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a")
    commit.hold()
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    assert not bench.store.release(bench.engine.find("a", touch=False))
    last = b'"%s"' % (b"x" * 3500)  # one fills a journal file
    for _ in range(3):
        await bench.append("a", last)
    commit.open.set()
    assert await checkpoint
    assert await saved(bench, "a") == (last + b",\n") * 3


@with_bench()
async def test_a_stream_is_gone_while_the_checkpoint_that_removes_it_runs(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE)
    await bench.checkpoint()
    assert await bench.content("a") == LARGE + b",\n"
    await bench.engine.delete("a")
    commit.hold()
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    assert bench.store.load("a") is None
    assert await bench.store.list_streams("", "", 9) == []
    assert bench.store._segments._open == {}, "its files are closed"
    commit.open.set()
    assert await checkpoint
    assert bench.store.load("a") is None


@with_bench()
async def test_a_stream_deleted_while_its_checkpoint_runs_leaves_nothing(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE)
    commit.hold()
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    await bench.engine.delete("a")
    await bench.create("a", b"[2]")
    commit.open.set()
    assert await checkpoint
    assert await bench.content("a") == b"2,\n"
    await bench.checkpoint()
    assert [path for path in (bench.folder / "segments").rglob("*") if path.is_file()] == []
    assert await saved(bench, "a") == b"2,\n"


@with_bench()
async def test_a_stream_deleted_while_its_checkpoint_fails_stays_deleted(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE)
    await bench.checkpoint()
    await bench.append("a", LARGE)
    commit.hold()
    commit.errors = [FULL]
    checkpoint = asyncio.create_task(bench.store.checkpoint())
    await commit.reached()
    await bench.engine.delete("a")
    commit.open.set()
    assert not await checkpoint
    assert bench.store.load("a") is None
    await bench.checkpoint()
    assert commit.changes[-1].rows == []
    await bench.crash()
    with pytest.raises(StreamNotFound):
        bench.engine.find("a", touch=False)


@with_bench()
async def test_a_stream_read_while_its_files_are_removed_is_not_found_not_damaged(
    bench: Bench,
) -> None:
    await bench.create("a", LARGE)
    await bench.checkpoint()
    stream = bench.engine.find("a", touch=False)
    await bench.engine.delete("a")
    await bench.checkpoint()
    with pytest.raises(StreamNotFound):
        await bench.engine.read(stream, 0, stream.tail)


@with_bench()
async def test_a_checkpoint_that_cannot_clear_up_is_in_force_all_the_same(bench: Bench) -> None:
    """Were it called a failure, the next one would begin its segment files anew, in place."""
    await bench.create("a", LARGE)
    await bench.create("gone", LARGE)
    await bench.checkpoint()
    for _ in range(30):
        await bench.append("a", LARGE)
    await bench.engine.delete("gone")
    rename, remove = bench.files.rename, bench.files.remove

    def refuse(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    bench.files.rename = bench.files.remove = refuse  # type: ignore[method-assign, assignment]
    await bench.checkpoint()
    bench.files.rename, bench.files.remove = rename, remove  # type: ignore[method-assign]
    stream = bench.engine.find("a", touch=False)
    assert stream.memory.start == stream.tail
    assert bench.store.release(stream)
    await bench.append("a", b"1")
    await bench.checkpoint()
    journals = bench.files.list_folder(bench.folder / "journal")
    assert sum(name.endswith(".journal") for name in journals) == 1
    segments = [path.name for path in (bench.folder / "segments").rglob("*.segment")]
    assert all(name.startswith(f"{stream.id:016x}-") for name in segments)
    assert await saved(bench, "a") == (LARGE + b",\n") * 31 + b"1,\n"


@with_bench()
async def test_a_checkpoint_with_a_failing_disk_makes_the_store_read_only(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", b"[1]")
    commit.errors = [sqlite3.OperationalError("disk I/O error")]
    assert not await bench.store.checkpoint()
    assert not bench.engine.health().writable
    with pytest.raises(StoreReadOnly):
        await bench.append("a", b"2")
    assert await bench.content("a") == b"1,\n"
    assert not await bench.store.checkpoint(), "it is not tried again"


@with_bench()
async def test_a_full_disk_refuses_appends_and_allows_deletes(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    bench.files.free_bytes = lambda path: -1  # type: ignore[method-assign]
    bench.store._schedule._check_space()
    with pytest.raises(DiskFull):
        await bench.append("a", b"2")
    with pytest.raises(DiskFull):
        await bench.create("b")
    assert not bench.engine.health().writable
    assert await bench.content("a") == b"1,\n"
    await bench.checkpoint()
    await bench.engine.delete("a")
    del bench.files.free_bytes
    bench.store._schedule._check_space()
    await bench.create("a")


@with_bench(checkpoint_bytes=1000)
async def test_a_checkpoint_starts_when_enough_was_written(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a")
    await bench.append("a", b"1")
    assert commit.changes == []
    await bench.append("a", LARGE)
    await bench.append("a", LARGE)
    await bench.append("a", LARGE)
    await commit.reached()
    async with bench.store._schedule._running:
        assert len(commit.changes) == 1


@with_bench()
async def test_a_stream_that_was_only_touched_is_saved_without_its_bytes(bench: Bench) -> None:
    commit = Commit(bench)
    await bench.create("a", LARGE, JSON._replace(ttl_s=100))
    await bench.checkpoint()
    bench.clock.advance(50)
    bench.engine.find("a", touch=True)
    await bench.checkpoint()
    (row,) = commit.changes[-1].rows
    assert row.touched_us == bench.clock.now_us()
    assert row.deadline_us == bench.clock.now_us() + 100_000_000
    assert commit.changes[-1].segments == []
