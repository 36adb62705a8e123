"""Reads by time: everything appended from a time on is there, and little that is older."""

from __future__ import annotations

import random

from penstock.log.ranges import Ranges
from penstock.log.stream import Stream
from tests.contract.rig import BYTES, Rig, on_disk, on_stores
from tests.contract.test_forks import fork
from tests.helpers.log import BLOCK_BYTES


async def spread(rig: Rig, path: str = "a", *, seed: int = 7) -> list[tuple[int, int]]:
    """Append messages of many sizes, some of them at once and some seconds apart, with a checkpoint
    now and then. Returns (time, position) of each append."""
    chance = random.Random(seed)
    stream = await rig.create(path)
    appends = []
    for number in range(300):
        rig.clock.advance(chance.choice([0, 0, 0.0005, 0.02, 3]))
        message = b'"%04d%s"' % (number, b"x" * chance.choice([0, 5, 40, 300]))
        appends.append((rig.clock.now_us(), stream.tail))
        await rig.append(stream, [message] * chance.choice([1, 1, 4]))
        if number % 41 == 40:
            await rig.settle()
    return appends


async def starts(rig: Rig, stream: Stream, appends: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(where a read starts, where the first append from that time on is), for many times."""
    ranges = Ranges(rig.store)
    times = {time + more for time, _ in appends for more in (-1, 0, 1, 700, 1_000_000)}
    result = []
    for time_us in sorted(times):
        first = next((position for at, position in appends if at >= time_us), stream.tail)
        result.append((await ranges.at_time(stream, time_us), first))
    return result


@on_stores()
async def test_nothing_from_a_time_on_is_left_out_and_recent_times_are_exact(rig: Rig) -> None:
    appends = await spread(rig)
    stream = rig.store.load("a") if rig.kind == "memory" else None
    stream = stream or rig.observer.mutations[0].stream
    assert stream is not None
    by_ms = [(time // 1000 * 1000, position) for time, position in appends]
    ranges = Ranges(rig.store)
    for time_us in sorted({time for time, _ in by_ms[-100:]}):
        first = next(position for at, position in by_ms if at >= time_us)
        assert await ranges.at_time(stream, time_us) == first
    for start, first in await starts(rig, stream, appends):
        assert start <= first
    assert await ranges.at_time(stream, 0) == 0
    assert await ranges.at_time(stream, rig.clock.now_us() + 1_000_000) == stream.tail


@on_disk()
async def test_after_a_restart_a_read_starts_at_most_two_blocks_earlier(rig: Rig) -> None:
    for reopen, seed in ((rig.reopen, 1), (rig.crash, 2)):
        appends = await spread(rig, f"s{seed}", seed=seed)
        await reopen()
        stream = rig.find(f"s{seed}")
        content = await rig.content(stream)
        message_max = max(len(line) + 1 for line in content.split(b"\n"))
        for start, first in await starts(rig, stream, appends):
            assert start <= first
            assert first - start <= 3 * BLOCK_BYTES + 4 * message_max
            assert start == 0 or content[start - 1 : start] == b"\n"
        ranges = Ranges(rig.store)
        late = appends[-1][0] + 1_000_000
        assert await ranges.at_time(stream, late) == stream.tail


@on_stores()
async def test_a_clock_that_was_set_back_hides_nothing(rig: Rig) -> None:
    stream = await rig.create("a", [b"0"])
    began = rig.clock.now_us()
    rig.clock.advance(100)
    await rig.append(stream, [b"1"])
    rig.clock.advance(-60)
    set_back = stream.tail
    await rig.append(stream, [b"2"])
    rig.clock.advance(70)
    last = stream.tail
    await rig.append(stream, [b"3"])
    ranges = Ranges(rig.store)
    assert await ranges.at_time(stream, began + 40_000_000) <= set_back
    assert await ranges.at_time(stream, began + 101_000_000) == last


@on_stores()
async def test_a_fork_has_the_times_of_its_source_before_its_own(rig: Rig) -> None:
    source = await rig.create("a", [b"0"])
    began = rig.clock.now_us()
    positions = [0]
    for number in range(1, 4):
        rig.clock.advance(10)
        positions.append(source.tail)
        await rig.append(source, [b"%d" % number])
    rig.clock.advance(10)
    stream = await fork(rig, "b", source, [b"7"])
    rig.clock.advance(10)
    last = stream.tail
    await rig.append(stream, [b"8"])
    await rig.append(source, [b"9"])
    ranges = Ranges(rig.store)
    for second, position in ((0, 0), (5, positions[1]), (10, positions[1]), (30, positions[3])):
        assert await ranges.at_time(stream, began + second * 1_000_000) == position
    assert await ranges.at_time(stream, began + 35_000_000) == stream.own_start
    assert await ranges.at_time(stream, began + 40_000_001) in (stream.own_start, last)
    assert await ranges.at_time(stream, began + 45_000_000) == last


@on_stores()
async def test_bytes_are_read_from_the_append_of_a_time(rig: Rig) -> None:
    stream = await rig.create("a", [b"abc"], config=BYTES)
    rig.clock.advance(1)
    await rig.append(stream, [b"def"])
    assert await Ranges(rig.store).at_time(stream, rig.clock.now_us()) == 3
