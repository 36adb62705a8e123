"""What every store does with forks, soft deletes and trims."""

from __future__ import annotations

import pytest

from penstock.errors import StreamTrimmed
from penstock.log.mutations import CreateMutation, DeleteMutation, TrimMutation
from penstock.log.stream import ForkPoint, Stream
from tests.contract.rig import BYTES, JSON, Rig, on_disk, on_stores, wire


async def fork(rig: Rig, path: str, source: Stream, messages: list[bytes]) -> Stream:
    """A fork at the source's tail."""
    point = ForkPoint(source.id, source.path, source.tail, source.count)
    stream = Stream(rig.store.next_id(), path, source.config, rig.clock.now_us(), fork=point)
    stream.source = source
    stream.pending_earliest = source.earliest
    stream.pending_earliest_ordinal = source.earliest_ordinal
    payload = wire(messages) if stream.is_json else b"".join(messages)
    await rig.submit(
        CreateMutation(
            stream,
            "forked",
            payload=payload,
            count=len(messages),
            closed=False,
            replaces=None,
            source=source,
        )
    )
    return stream


async def soft_delete(rig: Rig, stream: Stream) -> None:
    now = rig.clock.now_us()
    await rig.submit(DeleteMutation(stream, None, time_us=now, expired=False, soft=True))


async def delete_fork(rig: Rig, stream: Stream, *, cascade: bool) -> None:
    source = stream.source
    assert source is not None
    await rig.submit(
        DeleteMutation(
            stream,
            None,
            time_us=rig.clock.now_us(),
            expired=False,
            cascade=[source] if cascade else [],
            released=None if cascade else source,
        )
    )


async def trim(rig: Rig, stream: Stream, position: int, ordinal: int) -> None:
    now = rig.clock.now_us()
    await rig.submit(TrimMutation(stream, None, position=position, ordinal=ordinal, time_us=now))


def linked(rig: Rig, path: str) -> Stream:
    """A stream as it is kept, with what it reads from."""
    stream = rig.find(path)
    if stream.fork is not None and stream.source is None:
        stream.source = linked(rig, stream.fork.source_path)
        assert stream.source.id == stream.fork.source_id
    return stream


@on_stores()
async def test_a_fork_reads_on_from_its_source(rig: Rig) -> None:
    source = await rig.create("a", [b"1", b"22"])
    one = await fork(rig, "b", source, [b"333"])
    await rig.append(source, [b"9"])
    two = await fork(rig, "c", one, [b"4444"])
    await rig.settle()
    assert await rig.content(two) == wire([b"1", b"22", b"333", b"4444"])
    assert await rig.content(one) == wire([b"1", b"22", b"333"])
    assert await rig.content(source) == wire([b"1", b"22", b"9"])
    assert (source.forks, one.forks, two.count) == (1, 1, 4)
    for start in range(two.tail):
        assert rig.store.read_now(two, start, two.tail) in (
            None,
            wire([b"1", b"22", b"333", b"4444"])[start:],
        )


@on_stores()
async def test_seeking_goes_through_the_boundary(rig: Rig) -> None:
    numbers = [b"%05d" % n for n in range(200)]
    source = await rig.create("a", numbers[:100])
    rig.clock.advance(10)
    created_us = rig.clock.now_us()
    stream = await fork(rig, "b", source, numbers[100:])
    await rig.append(source, [b"99999"] * 20)
    await rig.settle()
    for ordinal in (0, 1, 99, 100, 101, 199):
        position, at = await rig.store.seek_ordinal(stream, ordinal)
        assert at <= ordinal
        assert position <= ordinal * 7
        position, at = await rig.store.seek_position(stream, ordinal * 7)
        assert at <= ordinal
        assert position <= ordinal * 7
        # In memory the chunk is as large as the append that made it.
        assert rig.kind == "memory" or ordinal * 7 - position <= 512, "too far to scan"
    assert await rig.store.seek_time(stream, created_us) <= 700
    assert await rig.store.seek_time(stream, created_us + 1) >= 700


@on_stores()
async def test_a_fork_is_sent_from_where_it_and_its_source_lie(rig: Rig) -> None:
    numbers = [b"%05d" % n for n in range(200)]
    stream = await fork(rig, "b", await rig.create("a", numbers[:100]), numbers[100:])
    for _ in range(2):
        data = await rig.store.read(stream, 0, stream.tail)
        for start, end in ((0, stream.tail), (690, 710), (0, 700), (700, stream.tail), (3, 3)):
            views = rig.store.views(stream, start, end)
            assert views is None or b"".join(views) == data[start:end]
        await rig.settle()


@on_disk()
async def test_forks_and_their_sources_survive(rig: Rig) -> None:
    source = await rig.create("a", [b"1", b"2"])
    await fork(rig, "b", source, [b"3"])
    await soft_delete(rig, source)
    await rig.crash()
    for _ in range(2):
        stream = linked(rig, "b")
        assert await rig.content(stream) == wire([b"1", b"2", b"3"])
        source = linked(rig, "a")
        assert (source.soft_deleted, source.forks, source.pinned) == (True, 1, 0)
        assert await rig.paths() == ["b"]
        await rig.reopen()


@on_disk()
async def test_the_last_fork_takes_a_deleted_source_with_it(rig: Rig) -> None:
    source = await rig.create("a", [b"x" * 600])
    stream = await fork(rig, "b", source, [b"y" * 600])
    await soft_delete(rig, source)
    await rig.settle()
    assert len(rig.files("segments", ".segment")) == 2
    await delete_fork(rig, stream, cascade=True)
    await rig.crash()
    assert (rig.store.load("a"), rig.store.load("b")) == (None, None)
    await rig.settle()
    assert rig.files("segments") == []


@on_disk()
async def test_replay_counts_each_fork_once(rig: Rig) -> None:
    """The source's row may be ahead of the fork's, or behind it."""
    source = await rig.create("a", [b"1"])
    one = await fork(rig, "b", source, [])
    await rig.settle()
    await fork(rig, "c", source, [])
    await delete_fork(rig, one, cascade=False)
    await rig.crash()
    assert linked(rig, "a").forks == 1
    await rig.settle()
    await rig.crash()
    assert linked(rig, "a").forks == 1


@on_stores()
async def test_what_is_trimmed_goes_by_the_segment(rig: Rig) -> None:
    stream = await rig.create("a", config=BYTES)
    for letter in b"abcdef":
        await rig.append(stream, [bytes([letter]) * 600])
        await rig.settle()
    files = len(rig.files("segments", ".segment"))
    await trim(rig, stream, 2000, 0)
    await rig.settle()
    assert await rig.content(stream) == b"".join(bytes([c]) * 600 for c in b"abcdef")[2000:]
    with pytest.raises(StreamTrimmed):
        await rig.store.read(stream, 0, stream.tail)
    if rig.kind == "disk":
        assert len(rig.files("segments", ".segment")) < files
        await rig.reopen()
        source = rig.find("a")
        assert (source.earliest, source.tail) == (2000, 3600)
        assert await rig.content(source) == b"".join(bytes([c]) * 600 for c in b"abcdef")[2000:]


@on_disk()
async def test_a_stream_trimmed_to_nothing_takes_more(rig: Rig) -> None:
    stream = await rig.create("a", [b"x" * 600, b"y" * 600])
    await rig.settle()
    await trim(rig, stream, stream.tail, stream.count)
    await rig.settle()
    assert rig.files("segments") == []
    await rig.reopen()
    stream = rig.find("a")
    assert (stream.earliest, stream.earliest_ordinal) == (stream.tail, 2)
    await rig.append(stream, [b"z"])
    await rig.crash()
    stream = rig.find("a")
    assert await rig.content(stream) == wire([b"z"])
    assert await rig.store.seek_ordinal(stream, 2) == (stream.tail - 3, 2)


@on_disk()
async def test_forks_pin_what_a_trim_takes(rig: Rig) -> None:
    source = await rig.create("a", [b"x" * 600], config=JSON)
    stream = await fork(rig, "b", source, [])
    await rig.settle()
    await trim(rig, source, source.tail, source.count)
    await rig.settle()
    assert len(rig.files("segments", ".segment")) == 1
    await rig.reopen()
    stream = linked(rig, "b")
    assert await rig.content(stream) == wire([b"x" * 600])
    await delete_fork(rig, stream, cascade=False)
    await rig.settle()
    assert rig.files("segments") == []


@on_stores()
async def test_streams_with_a_meta_value_are_listed(rig: Rig) -> None:
    streams = {path: await rig.create(path) for path in ("a", "b", "c", "d")}
    for path in ("d", "b"):
        await rig.set_meta(streams[path], "retention", b"x")
    await rig.set_meta(streams["a"], "other", b"x")
    await rig.settle()
    await rig.set_meta(streams["c"], "retention", b"x")
    assert await rig.store.list_meta("retention", "", 10) == ["b", "c", "d"]
    assert await rig.store.list_meta("retention", "b", 1) == ["c"]
    assert await rig.store.list_meta("retention", "d", 1) == []


async def forks_of(rig: Rig, source: Stream, after: str = "", limit: int = 100) -> list[str]:
    return [info.path for info in await rig.store.list_forks(source, after, limit)]


@on_stores()
async def test_forks_are_listed_by_path_and_page_by_page(rig: Rig) -> None:
    source = await rig.create("a", [b"1"])
    forks = [await fork(rig, path, source, [b"2"]) for path in ("d", "b", "e", "c")]
    await fork(rig, "b/below", forks[1], [])
    assert await forks_of(rig, source) == ["b", "c", "d", "e"]
    assert await forks_of(rig, source, "b", 2) == ["c", "d"]
    await delete_fork(rig, forks[2], cascade=False)
    assert await forks_of(rig, source) == ["b", "c", "d"]


@on_disk()
async def test_forks_are_listed_from_the_catalog_and_from_memory_alike(rig: Rig) -> None:
    source = await rig.create("a", [b"1"])
    for path in ("b", "c", "e", "f"):
        await fork(rig, path, source, [b"2"])
    await rig.settle()
    await rig.reopen()
    source = rig.find("a")
    await fork(rig, "d", source, [])
    await rig.append(linked(rig, "c"), [b"3"])
    await delete_fork(rig, linked(rig, "e"), cascade=False)
    assert await forks_of(rig, source) == ["b", "c", "d", "f"]
    assert await forks_of(rig, source, limit=2) == ["b", "c"]
    assert await forks_of(rig, source, "c", 1) == ["d"]
