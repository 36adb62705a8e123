"""Message boundaries: where offsets point, where reads end, how ranges are split."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import Settings
from penstock.errors import (
    InvalidOffset,
    OffsetBeyondTail,
    OffsetNotAligned,
    PenstockError,
    StreamRecreated,
    StreamTrimmed,
)
from penstock.log import ranges
from penstock.log.memory import MemoryStore
from penstock.log.ranges import Ranges, _nth_line_end
from penstock.log.stream import Stream
from penstock.protocol.lifecycle import StreamConfig

WINDOW = 32


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WINDOW_BYTES", WINDOW)


class Counting(MemoryStore):
    """Remembers how much was read."""

    def __init__(self) -> None:
        super().__init__(Settings(memory=True))
        self.bytes_read = 0

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        assert end - start <= WINDOW
        self.bytes_read += end - start
        return await super().read(stream, start, end)


class Bench:
    """A stream whose messages have these sizes on the wire, or raw bytes."""

    def __init__(self, sizes: Sequence[int] = (), *, raw: bytes = b"", stream_id: int = 5) -> None:
        kind = "application/octet-stream" if raw else "application/json"
        self.stream = Stream(stream_id, "a", StreamConfig(kind, None, None), 0)
        self.ends = [0]
        for size in sizes:
            self.stream.add_bytes(b"1" * (size - 2) + b",\n", 1, 0)
            self.ends.append(self.stream.tail)
        if raw:
            self.stream.add_bytes(raw, 1, 0)
        self.store = Counting()
        self.ranges = Ranges(self.store)

    def plan(
        self, start: int, max_bytes: int, until: int | None = None, count: int | None = None
    ) -> int:
        return asyncio.run(self.ranges.plan(self.stream, start, max_bytes, until, count))

    def position(self, offset: str) -> int:
        return asyncio.run(self.ranges.position(self.stream, offset))

    def splits(self, parts: int, start: int, end: int) -> list[int]:
        return asyncio.run(self.ranges.splits(self.stream, parts, start, end))

    def ordinal(self, position: int) -> int:
        return asyncio.run(self.ranges.ordinal(self.stream, position))

    def seek(self, ordinal: int) -> int:
        return asyncio.run(self.ranges.seek(self.stream, ordinal))


def spell(generation: int, position: int) -> str:
    return f"{generation:016d}_{position:016d}"


# -- offsets


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        ("-1", 0),
        ("now", 30),
        (spell(0, 0), 0),
        (spell(5, 0), 0),
        (spell(5, 10), 10),
        (spell(5, 30), 30),
    ],
)
def test_an_offset_stands_for_its_position(offset: str, position: int) -> None:
    assert Bench([10, 20]).position(offset) == position


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (spell(5, 31), OffsetBeyondTail),
        (spell(5, 1), OffsetNotAligned),
        (spell(5, 9), OffsetNotAligned),
        (spell(5, 11), OffsetNotAligned),
        (spell(4, 10), StreamRecreated),
        (spell(4, 99), StreamRecreated),
        (spell(0, 10), StreamRecreated),
        (spell(6, 0), InvalidOffset),
        ("10", InvalidOffset),
        ("", InvalidOffset),
    ],
)
def test_an_offset_the_server_never_gave_out_is_refused(
    offset: str, error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        Bench([10, 20]).position(offset)


def test_every_byte_of_a_byte_stream_is_a_boundary() -> None:
    bench = Bench(raw=b"no\nlines")
    assert [bench.position(spell(5, index)) for index in range(9)] == list(range(9))
    with pytest.raises(OffsetBeyondTail):
        bench.position(spell(5, 9))


def test_what_was_trimmed_is_gone() -> None:
    bench = Bench([10, 10, 10])
    bench.stream.earliest = 10
    with pytest.raises(StreamTrimmed):
        bench.position(spell(5, 0))
    assert bench.position("-1") == 10
    assert bench.position(spell(5, 10)) == 10


# -- planning


@pytest.mark.parametrize(
    ("start", "max_bytes", "until", "count", "end"),
    [
        (0, 1000, None, None, 60),
        (0, 60, None, None, 60),
        (0, 59, None, None, 50),
        (0, 10, None, None, 10),
        (0, 11, None, None, 10),
        (0, 9, None, None, 10),  # at least one message
        (0, 1, None, None, 10),
        (10, 39, None, None, 20),
        (10, 40, None, None, 50),
        (60, 10, None, None, 60),
        (0, 1000, 20, None, 20),
        (0, 15, 20, None, 10),
        (20, 1000, 20, None, 20),
        (20, 1000, 10, None, 20),  # never backwards
        (0, 1000, 1000, None, 60),  # never beyond the tail
        (0, 1000, None, 1, 10),
        (0, 1000, None, 3, 50),
        (0, 1000, None, 4, 60),
        (0, 1000, None, 5, 60),
        (0, 25, None, 4, 20),  # whichever ends first
        (0, 25, None, 1, 10),
        (0, 1, None, 4, 10),
        (20, 5, None, 4, 50),
        (0, 1000, 20, 4, 20),
        (10, 1000, None, 1, 20),
        (60, 1000, None, 1, 60),
    ],
)
def test_a_read_ends_at_the_last_message_that_fits(
    start: int, max_bytes: int, until: int | None, count: int | None, end: int
) -> None:
    assert Bench([10, 10, 30, 10]).plan(start, max_bytes, until, count) == end


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 5 * WINDOW + 3])
@pytest.mark.parametrize("max_bytes", [1, WINDOW, WINDOW + 5, 3 * WINDOW])
def test_a_message_larger_than_window_and_limit_is_read_whole(size: int, max_bytes: int) -> None:
    bench = Bench([10, size, 10])
    end = bench.plan(10, max_bytes)
    assert end == (10 + size if max_bytes < size + 10 else 20 + size)
    assert bench.plan(10, max_bytes, count=1) == 10 + size


def test_a_byte_stream_is_cut_anywhere() -> None:
    bench = Bench(raw=b"\n" * 50)
    assert bench.plan(0, 7) == 7
    assert bench.plan(45, 7) == 50
    assert bench.plan(10, 100, until=33) == 33


def test_an_empty_stream_has_nothing_to_read() -> None:
    assert Bench().plan(0, 100) == 0
    assert Bench().plan(0, 100, count=3) == 0


def test_planning_looks_at_the_end_not_at_everything_before() -> None:
    bench = Bench([10] * 1000)
    assert bench.plan(0, 9_995) == 9_990
    assert bench.store.bytes_read <= WINDOW


def test_counting_looks_no_further_than_it_has_to() -> None:
    bench = Bench([10] * 1000)
    assert bench.plan(0, 100_000, count=3) == 30
    assert bench.store.bytes_read <= WINDOW


@given(
    sizes=st.lists(st.integers(2, 90), max_size=12),
    start=st.integers(0, 12),
    max_bytes=st.integers(1, 300),
    until=st.one_of(st.none(), st.integers(0, 12)),
    count=st.one_of(st.none(), st.integers(1, 13)),
)
def test_a_plan_is_what_counting_by_hand_gives(
    sizes: list[int], start: int, max_bytes: int, until: int | None, count: int | None
) -> None:
    bench = Bench(sizes)
    ends = bench.ends
    first = ends[min(start, len(sizes))]
    bound = None if until is None else ends[min(until, len(sizes))]
    after = [end for end in ends if end > first and (bound is None or end <= bound)]
    fitting = [end for end in after if end <= first + max_bytes] or after[:1]
    expected = [first, *fitting[:count]][-1]
    assert bench.plan(first, max_bytes, bound, count) == expected


# -- splits and seeks


@pytest.mark.parametrize(
    ("parts", "start", "end", "expected"),
    [
        (1, 0, 60, [0, 60]),
        (2, 0, 60, [0, 50, 60]),
        (3, 0, 60, [0, 20, 50, 60]),
        (4, 0, 60, [0, 20, 50, 60]),
        (100, 0, 60, [0, 10, 20, 50, 60]),
        (2, 20, 50, [20, 50]),
        (2, 10, 20, [10, 20]),
        (3, 20, 20, [20]),
    ],
)
def test_splits_are_boundaries_of_about_equal_parts(
    parts: int, start: int, end: int, expected: list[int]
) -> None:
    assert Bench([10, 10, 30, 10]).splits(parts, start, end) == expected


def test_a_byte_stream_is_split_evenly() -> None:
    assert Bench(raw=b"x" * 10).splits(4, 0, 10) == [0, 2, 5, 7, 10]
    assert Bench(raw=b"x" * 3).splits(10, 0, 3) == [0, 1, 2, 3]


def test_one_large_message_is_not_split() -> None:
    assert Bench([500]).splits(5, 0, 500) == [0, 500]


@pytest.mark.parametrize("parts", [2, 50, 4096])
def test_splits_read_no_byte_twice_however_many_they_are(parts: int) -> None:
    for sizes in ([20_000], [5, 20_000, 5], [7000, 7000, 7000], [10] * 2000):
        bench = Bench(sizes)
        cuts = bench.splits(parts, 0, bench.stream.tail)
        # A search begins one byte before its part, and a window ends with the range.
        assert bench.store.bytes_read <= bench.stream.tail + 2 * WINDOW * len(cuts)


def test_ordinals_of_many_positions_read_no_byte_twice() -> None:
    bench = Bench()
    bench.stream.add_bytes(b"1,\n" * 5000, 5000, 0)  # one entry of the index
    positions = list(range(0, 15_000, 30))
    assert asyncio.run(bench.ranges.ordinals(bench.stream, positions)) == list(range(0, 5000, 10))
    assert bench.store.bytes_read <= bench.stream.tail


def test_a_long_search_gives_others_a_turn() -> None:
    async def turns() -> int:
        count = 0
        searching = asyncio.ensure_future(bench.ranges.splits(bench.stream, 2, 0, 200_000))
        while not searching.done():
            count += 1
            await asyncio.sleep(0)
        return count

    bench = Bench([200_000])
    assert asyncio.run(turns()) >= 200_000 // WINDOW // 2 // ranges.TURN_WINDOWS


@given(sizes=st.lists(st.integers(2, 90), min_size=1, max_size=12), parts=st.integers(1, 20))
def test_splits_cover_the_range_once_and_are_aligned(sizes: list[int], parts: int) -> None:
    bench = Bench(sizes)
    cuts = bench.splits(parts, 0, bench.stream.tail)
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(bench.ends)
    assert (cuts[0], cuts[-1]) == (0, bench.stream.tail)
    assert len(cuts) <= parts + 1


def test_every_message_is_found_by_its_ordinal() -> None:
    bench = Bench([10, 100, 2, 33, 7] * 20)
    assert [bench.seek(ordinal) for ordinal in range(101)] == bench.ends
    assert bench.seek(1000) == bench.stream.tail
    assert Bench().seek(0) == 0


def test_every_boundary_knows_how_many_messages_are_before_it() -> None:
    bench = Bench([10, 100, 2, 33, 7] * 20)
    assert [bench.ordinal(end) for end in bench.ends] == list(range(101))
    assert asyncio.run(bench.ranges.ordinals(bench.stream, bench.ends)) == list(range(101))
    assert Bench().ordinal(0) == 0


@given(st.lists(st.sampled_from([b"\n", b"x"]), min_size=1, max_size=70).map(b"".join))
def test_the_nth_line_end_is_found(window: bytes) -> None:
    ends = [index + 1 for index, byte in enumerate(window) if byte == 10]
    assert [_nth_line_end(window, n) for n in range(1, len(ends) + 1)] == ends
