"""What a data folder goes through: growth, checkpoints, restarts, crashes, recycled files."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from penstock.errors import Overloaded, StoreLocked
from penstock.log.disk.journal import SPARES_MAX
from penstock.log.disk.store import DiskStore
from tests.contract.rig import BYTES, Recorder, Rig, on_disk, on_stores, wire
from tests.helpers.log import open_store


@on_disk()
async def test_a_small_stream_needs_no_file_of_its_own(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 90])
    await rig.settle()
    assert rig.files("segments") == []
    assert stream.segments == ()
    await rig.reopen()
    assert await rig.content(rig.find("a")) == wire([b"1" * 90])


@on_disk()
async def test_a_stream_that_outgrows_its_row_moves_to_a_segment_whole(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 90])
    await rig.settle()
    await rig.append(stream, [b"2" * 20])
    await rig.settle()
    assert len(rig.files("segments", ".segment")) == 1
    assert (stream.segments[0].base, stream.segments[0].length) == (0, stream.tail)
    assert stream.memory.chunks == []
    await rig.reopen()
    assert await rig.content(rig.find("a")) == wire([b"1" * 90, b"2" * 20])


@on_disk()
async def test_a_stream_loaded_from_its_row_outgrows_it_too(rig: Rig) -> None:
    await rig.create("a", [b"1" * 90])
    await rig.reopen()
    stream = rig.find("a")
    await rig.append(stream, [b"2" * 20])
    await rig.settle()
    assert stream.segments[0].end == stream.tail
    assert await rig.content(stream) == wire([b"1" * 90, b"2" * 20])


@on_disk()
async def test_a_stream_with_segments_keeps_them_when_rows_may_grow(rig: Rig) -> None:
    await rig.create("a", [b"1" * 200])
    await rig.reopen(inline_bytes_max=4096)
    stream = rig.find("a")
    await rig.append(stream, [b"2"])
    await rig.settle()
    await rig.reopen()
    assert await rig.content(rig.find("a")) == wire([b"1" * 200, b"2"])


@on_disk()
async def test_segments_are_closed_at_their_size_and_never_rewritten(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    parts = [bytes([n]) * 400 for n in range(9)]
    for part in parts:
        await rig.append(stream, [part])
        await rig.settle()
    bases = [info.base for info in stream.segments]
    assert bases == [0, 1200, 2400]
    assert [info.length for info in stream.segments] == [1200, 1200, 1200]
    await rig.crash()
    assert await rig.content(rig.find("a")) == b"".join(parts)


@on_disk()
async def test_everything_acknowledged_survives_a_crash_without_any_checkpoint(rig: Rig) -> None:
    for number in range(30):
        await rig.create(f"s{number}", [b'"%s"' % (b"x" * number * 10)])
    stream = await rig.create("a", config=BYTES)
    for number in range(40):
        await rig.append(stream, [bytes([number]) * 150])
    await rig.crash()
    assert len(await rig.paths()) == 31
    assert await rig.content(rig.find("a")) == b"".join(bytes([n]) * 150 for n in range(40))
    assert await rig.content(rig.find("s29")) == b'"%s",\n' % (b"x" * 290)


@on_disk()
async def test_replay_adds_nothing_twice(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    await rig.settle()
    await rig.append(stream, [b"2" * 120])
    await rig.settle()
    await rig.append(stream, [b"3"])
    for _ in range(3):
        await rig.crash()
        stream = rig.find("a")
        assert await rig.content(stream) == wire([b"1", b"2" * 120, b"3"])
        assert stream.count == 3
        assert rig.store.stats.replayed_records == 1


@on_disk()
async def test_after_a_clean_stop_nothing_is_replayed(rig: Rig) -> None:
    await rig.create("a", [b"1"])
    await rig.reopen()
    assert rig.store.stats.replayed_records == 0
    assert rig.active == {}
    assert await rig.paths() == ["a"]


@on_disk()
async def test_deletions_survive_a_crash(rig: Rig) -> None:
    stream, gone = await rig.create("kept"), await rig.create("gone", [b"1" * 200])
    await rig.settle()
    fresh = await rig.create("fresh")
    await rig.delete(gone)
    await rig.delete(fresh)
    again = await rig.create("gone", [b"2"])
    await rig.crash()
    assert await rig.paths() == ["gone", "kept"]
    assert rig.find("gone").id == again.id
    assert await rig.content(rig.find("gone")) == wire([b"2"])
    assert rig.find("kept").id == stream.id
    assert rig.store.load("fresh") is None


@on_disk()
async def test_a_replacement_survives_a_crash_as_one_step(rig: Rig) -> None:
    old = await rig.create("a", [b"1" * 200])
    await rig.settle()
    await rig.append(old, [b"1"])
    new = await rig.create("a", [b"2"], replaces=old)
    await rig.crash()
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]
    assert [stream.id for stream in rig.active.values()] == [new.id]
    await rig.settle()
    assert rig.files("segments") == []
    await rig.crash()
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]


@on_disk()
async def test_no_generation_is_given_out_again_after_a_restart_or_crash(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.delete(stream)
    for again in (rig.crash, rig.reopen, rig.crash):
        await again()
        new = await rig.create("a")
        assert new.id > stream.id
        await rig.delete(new)
        stream = new


@on_disk()
async def test_files_of_deleted_streams_go_at_the_next_checkpoint(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 2000])
    await rig.settle()
    assert rig.files("segments") != []
    await rig.delete(stream)
    assert rig.files("segments") != []
    await rig.settle()
    assert rig.files("segments") == []


@on_disk()
async def test_a_checkpoint_lets_journal_files_go_and_keeps_a_few_to_use_again(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    for number in range(60):
        await rig.append(stream, [bytes([number]) * 600])
    assert len(rig.files("journal", ".journal")) > SPARES_MAX + 2
    await rig.settle()
    assert len(rig.files("journal", ".journal")) == 1
    assert len(rig.files("journal", ".spare")) == SPARES_MAX
    for number in range(20):
        await rig.append(stream, [bytes([number]) * 600])
    assert len(rig.files("journal", ".spare")) < SPARES_MAX
    await rig.crash()
    content = await rig.content(rig.find("a"))
    assert content == b"".join(bytes([n]) * 600 for n in (*range(60), *range(20)))


@on_disk()
async def test_what_a_recycled_file_held_before_never_comes_back(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    for _ in range(3):
        for number in range(20):
            await rig.append(stream, [bytes([number]) * 600])
        await rig.settle()
        await rig.append(stream, [b"short"])
        await rig.crash()
        stream = rig.find("a")
        assert stream.tail == len(await rig.content(stream))
        assert (await rig.content(stream)).endswith(b"\x13short")


@on_disk()
async def test_an_append_during_a_checkpoint_is_in_memory_after_it(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 200])
    checkpoint = asyncio.create_task(rig.disk.checkpoint())
    await asyncio.sleep(0)
    await rig.append(stream, [b"2"])
    assert await checkpoint
    assert await rig.content(stream) == wire([b"1" * 200, b"2"])
    assert not rig.store.release(stream)
    await rig.crash()
    assert await rig.content(rig.find("a")) == wire([b"1" * 200, b"2"])


@on_disk()
async def test_a_stream_deleted_during_its_checkpoint_stays_deleted(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 200])
    checkpoint = asyncio.create_task(rig.disk.checkpoint())
    await asyncio.sleep(0)
    await rig.delete(stream)
    assert await checkpoint
    assert rig.store.load("a") is None
    assert await rig.paths() == []
    new = await rig.create("a", [b"2"])
    await rig.crash()
    assert rig.find("a").id == new.id
    await rig.settle()
    assert rig.files("segments") == []
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]


@on_disk()
async def test_a_failed_checkpoint_loses_nothing_and_the_next_one_succeeds(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 200])
    gone = await rig.create("gone", [b"1" * 200])
    await rig.settle()
    await rig.append(stream, [b"2" * 300])
    await rig.delete(gone)
    commit = rig.disk._catalog.commit

    def refuse(changes: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    rig.disk._catalog.commit = refuse  # type: ignore[method-assign]
    assert not await rig.disk.checkpoint()
    rig.disk._catalog.commit = commit  # type: ignore[method-assign]
    assert rig.store.health().writable
    assert await rig.paths() == ["a"]
    await rig.append(stream, [b"3"])
    await rig.settle()
    await rig.crash()
    assert await rig.content(rig.find("a")) == wire([b"1" * 200, b"2" * 300, b"3"])
    assert await rig.paths() == ["a"]


@on_stores(("disk",))
async def test_segments_of_an_unfinished_checkpoint_are_cut_and_swept(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 200])
    await rig.settle()
    await rig.append(stream, [b"2" * 900])
    await rig.append(stream, [b"3" * 900])
    await rig.create("b", [b"4" * 900])

    def refuse(changes: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    rig.disk._catalog.commit = refuse  # type: ignore[method-assign]
    assert not await rig.disk.checkpoint()
    await rig.crash()
    stream = rig.find("a")
    await rig.delete(rig.find("b"))
    await rig.settle()
    existing = {f"{stream.id:016x}-{info.base:016x}.segment" for info in stream.segments}
    assert set(rig.files("segments", ".segment")) == existing
    assert await rig.content(stream) == wire([b"1" * 200, b"2" * 900, b"3" * 900])


@on_disk(checkpoint_bytes=2000)
async def test_checkpoints_start_by_themselves_when_the_journal_has_grown(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    while rig.store.stats.checkpoints < 3:
        await rig.append(stream, [b"x" * 500])
    assert stream.memory.start > 0
    assert await rig.content(stream) == b"x" * stream.tail


@on_disk()
async def test_a_second_store_on_the_same_folder_is_refused(rig: Rig) -> None:
    second = open_store("disk", rig.folder, rig.clock)
    with pytest.raises(StoreLocked):
        await second.open(Recorder())
    assert isinstance(second, DiskStore)
    await rig.create("a")
    assert await rig.paths() == ["a"]


@on_disk(open_files_max=4)
async def test_many_segments_are_read_through_few_open_files(rig: Rig) -> None:
    streams = [await rig.create(f"s{n}", [b"%d" % n * 150]) for n in range(12)]
    await rig.settle()
    for _ in range(2):
        for number, stream in enumerate(streams):
            assert await rig.content(stream) == wire([b"%d" % number * 150])
    assert len(rig.disk._segments._open) <= 2


@on_disk()
async def test_many_dirty_streams_are_saved_in_one_checkpoint(rig: Rig) -> None:
    """More than are synced one by one, and more than are described in one turn."""
    mutations = [rig.make_create(f"s{n:03d}", [b"%03d" % n * 50]) for n in range(300)]
    await asyncio.gather(*[rig.submit(mutation) for mutation in mutations])
    await rig.settle()
    await rig.reopen()
    assert rig.store.stats.replayed_records == 0
    assert await rig.paths(limit=1000) == [f"s{n:03d}" for n in range(300)]
    assert await rig.content(rig.find("s123")) == wire([b"123" * 50])


@on_disk(tail_bytes_max=1000)
async def test_when_memory_is_full_writers_wait_for_the_checkpoint(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    await rig.append(stream, [b"x" * 1000])
    with pytest.raises(Overloaded):
        rig.store.admit(1)
    await rig.settle()
    rig.store.admit(1)
