"""Reading bytes back and finding places in them, from memory, from segments and from both."""

from __future__ import annotations

from itertools import accumulate

import pytest

from penstock.log.lineage import token
from penstock.log.ranges import Ranges
from penstock.log.stream import Stream
from tests.contract.rig import BYTES, Rig, on_disk, on_stores, wire
from tests.helpers.log import BLOCK_BYTES


def numbered(first: int, last: int) -> list[bytes]:
    return [b'"%04d %s"' % (number, b"x" * (number * 7 % 60)) for number in range(first, last)]


async def long_stream(rig: Rig) -> tuple[Stream, list[bytes]]:
    """300 messages; on disk in several segments and blocks, the last 50 in memory."""
    stream = await rig.create("long", numbered(0, 20))
    for first in range(20, 250, 10):
        rig.clock.advance(1)
        await rig.append(stream, numbered(first, first + 10))
        if first % 60 == 0:
            await rig.settle()
    await rig.settle()
    for first in range(250, 300, 10):
        rig.clock.advance(1)
        await rig.append(stream, numbered(first, first + 10))
    return stream, numbered(0, 300)


@on_stores(tier_cache_bytes_max=20_000)
async def test_every_range_reads_the_bytes_that_were_appended(rig: Rig) -> None:
    stream, messages = await long_stream(rig)
    data = wire(messages)
    assert stream.tail == len(data)
    borders = {0, stream.memory.start, stream.tail, *(info.base for info in stream.segments)}
    borders |= {chunk.start for chunk in stream.memory.chunks}
    places = sorted(
        {place + d for place in borders for d in (-1, 0, 1) if 0 <= place + d <= len(data)}
        | set(range(0, len(data), BLOCK_BYTES))
    )
    if rig.kind == "cold":
        places = places[::2]  # each read takes several turns of the loop
    for start in places:
        for end in places:
            if start <= end:
                assert await rig.store.read(stream, start, end) == data[start:end]
                assert rig.store.read_now(stream, start, end) in (data[start:end], None)
                views = rig.store.views(stream, start, end)
                assert views is None or b"".join(views) == data[start:end]


@on_disk(open_files_max=60)
async def test_what_was_read_once_is_sent_from_where_it_lies(rig: Rig) -> None:
    stream, messages = await long_stream(rig)
    assert rig.store.views(stream, 0, stream.tail) is None
    data = await rig.store.read(stream, 0, stream.tail)
    views = rig.store.views(stream, 0, stream.tail)
    if rig.kind == "cold":
        assert views is None
        return
    if views is None:
        pytest.skip("this kernel does not tell what is in its page cache")
    assert b"".join(views) == data == wire(messages)
    assert len(views) > len(stream.segments)
    await rig.delete(stream)
    assert b"".join(views) == data


@on_disk()
async def test_a_long_stream_stands_in_several_segments_and_in_memory(rig: Rig) -> None:
    """Keeps the other tests of this file honest."""
    stream, _ = await long_stream(rig)
    assert len(stream.segments) > 3
    assert max(info.length for info in stream.segments) > 2 * BLOCK_BYTES
    assert 0 < stream.memory.start < stream.tail
    assert all(a.end == b.base for a, b in zip(stream.segments, stream.segments[1:], strict=False))


@on_stores()
async def test_an_offset_in_memory_is_found_there_and_every_other_is_left_to_the_log(
    rig: Rig,
) -> None:
    stream, messages = await long_stream(rig)
    ranges = Ranges(rig.store)
    boundaries = set(accumulate(len(message) + 2 for message in messages))
    found = set()
    for place in range(stream.tail + 3):
        position = ranges.position_in_memory(stream, token(stream, place))
        if position is not None:
            found.add(position)
            assert position == place == await ranges.position(stream, token(stream, place))
    first = max(stream.memory.start, stream.earliest)
    assert found == {place for place in boundaries if first < place < stream.tail}
    assert found


@on_stores()
async def test_an_offset_that_is_spelled_otherwise_is_not_looked_up_in_memory(rig: Rig) -> None:
    stream = await rig.create("a", [b"1", b"2", b"3"])
    ranges, offset = Ranges(rig.store), token(stream, 3)
    assert ranges.position_in_memory(stream, offset) == 3
    other = f"{stream.id + 1:016d}{offset[16:]}"
    for wrong in (
        other,
        offset[:-1] + "\u0663",
        offset[17:],
        f"{offset}0",
        f" {offset}",
        "",
        "-1",
        "now",
    ):
        assert ranges.position_in_memory(stream, wrong) is None


@on_stores()
async def test_an_empty_range_is_empty_everywhere(rig: Rig) -> None:
    stream = await rig.create("a")
    assert await rig.store.read(stream, 0, 0) == b""
    assert rig.store.read_now(stream, 0, 0) == b""
    stream, _ = await long_stream(rig)
    for place in (0, stream.memory.start, stream.tail):
        assert await rig.store.read(stream, place, place) == b""


@on_stores()
async def test_recent_bytes_are_had_without_waiting(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    assert rig.store.read_now(stream, 0, 3) == b"1,\n"


@on_stores()
async def test_a_large_append_is_read_back_whole(rig: Rig) -> None:
    large = bytes(range(256)) * 40
    stream = await rig.create("a", [b"x"], config=BYTES)
    await rig.append(stream, [large])
    await rig.append(stream, [b"y"])
    await rig.settle()
    await rig.append(stream, [large])
    assert await rig.content(stream) == b"x" + large + b"y" + large


@on_stores()
async def test_seeking_an_ordinal_finds_a_place_at_or_before_its_message(rig: Rig) -> None:
    stream, messages = await long_stream(rig)
    data = wire(messages)
    for ordinal in range(len(messages)):
        position, at = await rig.store.seek_ordinal(stream, ordinal)
        start = len(wire(messages[:ordinal]))
        assert position <= start
        assert at <= ordinal
        # From there, one line feed for every message in between leads to the start.
        assert data.count(b"\n", position, start) == ordinal - at
        assert start - position <= 3 * BLOCK_BYTES


@on_stores()
async def test_seeking_a_position_finds_a_place_at_or_before_it_and_its_ordinal(rig: Rig) -> None:
    stream, messages = await long_stream(rig)
    data = wire(messages)
    for ordinal in range(len(messages)):
        start = len(wire(messages[:ordinal]))
        position, at = await rig.store.seek_position(stream, start)
        assert position <= start
        assert data.count(b"\n", position, start) == ordinal - at
        assert start - position <= 3 * BLOCK_BYTES


@on_stores()
async def test_seeking_an_ordinal_of_a_byte_stream_counts_appends(rig: Rig) -> None:
    stream = await rig.create("a", [b"0"], config=BYTES)
    for _ in range(20):
        await rig.append(stream, [b"\n" * 50])
    await rig.settle()
    position, at = await rig.store.seek_ordinal(stream, 20)
    assert position <= 951
    assert at <= 20


@on_stores()
async def test_seeking_a_time_finds_a_place_at_or_before_its_first_message(rig: Rig) -> None:
    began = rig.clock.now_us()
    stream, messages = await long_stream(rig)
    for second in range(30):
        position = await rig.store.seek_time(stream, began + second * 1_000_000)
        ordinal = 0 if second == 0 else 20 + (second - 1) * 10
        start = len(wire(messages[:ordinal]))
        assert position <= start
        assert start - position <= 8 * BLOCK_BYTES


@on_stores()
async def test_seeking_a_time_before_the_first_message_finds_the_start(rig: Rig) -> None:
    stream, _ = await long_stream(rig)
    assert await rig.store.seek_time(stream, 0) == 0


@on_stores()
async def test_seeking_in_an_empty_stream_finds_its_start(rig: Rig) -> None:
    stream = await rig.create("a")
    assert await rig.store.seek_ordinal(stream, 0) == (0, 0)
    assert await rig.store.seek_position(stream, 0) == (0, 0)
    assert await rig.store.seek_time(stream, rig.clock.now_us()) == 0


@on_disk()
async def test_seeks_and_reads_are_the_same_after_a_restart_and_after_a_crash(rig: Rig) -> None:
    stream, messages = await long_stream(rig)
    data = wire(messages)
    await rig.crash()
    for reopen in (rig.reopen, rig.crash):
        stream = rig.find("long")
        assert (stream.tail, stream.count) == (len(data), 300)
        assert await rig.content(stream) == data
        for ordinal in range(0, 300, 7):
            position, at = await rig.store.seek_ordinal(stream, ordinal)
            start = len(wire(messages[:ordinal]))
            assert position <= start
            assert data.count(b"\n", position, start) == ordinal - at
            position, at = await rig.store.seek_position(stream, start)
            assert position <= start
            assert data.count(b"\n", position, start) == ordinal - at
        await reopen()
