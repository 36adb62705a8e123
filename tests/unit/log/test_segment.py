"""Segments: block checksums, index entries and places found through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Damaged
from penstock.log.disk.files import PARTS_MAX, Files
from penstock.log.disk.segment import (
    ENTRY,
    IndexEntry,
    SegmentFolder,
    SegmentInfo,
    SegmentReader,
    SegmentWriter,
    decode_entry,
    encode_entry,
)
from penstock.log.memory_tail import Chunk
from tests.helpers.log import BLOCK_BYTES, shrink_blocks

LINE = b'"0123456789"'  # 14 bytes on the wire


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_blocks(monkeypatch)


class Bench:
    """One stream's segments, extended and read."""

    def __init__(self, root: Path, *, segment_bytes_max: int = 10_000) -> None:
        self.files = Files()
        self.folder = SegmentFolder(root)
        self.max = segment_bytes_max
        self.segments: tuple[SegmentInfo, ...] = ()
        self.data = b""
        self.lines = 0
        self.reader = SegmentReader(self.files, self.folder, open_files_max=4)

    def extend(self, *parts: bytes, lines: bool = True) -> None:
        chunks = []
        for part in parts:
            chunks.append(Chunk(len(self.data), part, self.lines, 1000 + self.lines))
            self.data += part
            self.lines += part.count(b"\n") if lines else 1
        writer = SegmentWriter(self.files, self.folder, 7, segment_bytes_max=self.max)
        self.segments = writer.extend(self.segments, chunks, count_lines=lines)
        writer.close()

    def read(self, start: int, end: int, number: int = 0) -> bytes | None:
        return self.reader.read(7, self.segments[number], start, end, wait=True)

    def path(self, kind: str, number: int = 0) -> Path:
        base = self.segments[number].base
        make = self.folder.data_path if kind == "data" else self.folder.index_path
        return make(7, base)

    def flip(self, kind: str, position: int, number: int = 0) -> None:
        path = self.path(kind, number)
        raw = bytearray(path.read_bytes())
        raw[position] ^= 1
        path.write_bytes(raw)


def lines(count: int) -> bytes:
    return (LINE + b",\n") * count


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_index_entry_comes_back_and_any_flipped_bit_is_noticed() -> None:
    entry = IndexEntry(2**60, 2**55, 2**32 - 1)
    raw = encode_entry(entry)
    assert len(raw) == ENTRY.size == 24
    assert decode_entry(raw, "x") == entry
    for position in range(len(raw)):
        broken = bytearray(raw)
        broken[position] ^= 4
        with pytest.raises(Damaged):
            decode_entry(bytes(broken), "x")
    with pytest.raises(Damaged):
        decode_entry(raw[:-1], "x")


def test_bytes_written_in_many_steps_are_read_as_one_range(bench: Bench) -> None:
    for count in (1, 17, 1, 40, 3):
        bench.extend(lines(count), lines(1))
    (info,) = bench.segments
    assert (info.base, info.length) == (0, len(bench.data))
    for start in range(0, info.length, 37):
        for end in (start + 1, start + BLOCK_BYTES, info.length):
            assert bench.read(start, min(end, info.length)) == bench.data[start:end]


def test_more_chunks_than_one_call_writes_arrive_whole_and_in_order(bench: Bench) -> None:
    chunks = 2 * PARTS_MAX + 3
    bench.extend(*[b"%05d,\n" % number * (1 + number % 5) for number in range(chunks)])
    (info,) = bench.segments
    assert bench.read(0, info.length) == bench.data == bench.path("data").read_bytes()


def test_the_index_has_an_entry_for_every_full_block(bench: Bench) -> None:
    sizes = []
    for _ in range(30):
        bench.extend(lines(3))
        index = bench.path("index")
        sizes.append(index.stat().st_size if index.exists() else 0)
    expected = [42 * step // BLOCK_BYTES * ENTRY.size for step in range(1, 31)]
    assert sizes == expected


def test_an_entry_names_the_message_that_holds_the_first_byte_of_its_block(bench: Bench) -> None:
    for count in (1, 30, 8, 8, 8, 60):
        bench.extend(lines(count))
    (info,) = bench.segments
    for block in range(info.length // BLOCK_BYTES + 1):
        entry = bench.reader.entry(7, info, block)
        assert entry.ordinal == block * BLOCK_BYTES // 14


def test_an_entry_has_the_time_of_the_append_that_holds_its_first_byte(bench: Bench) -> None:
    bench.extend(b"a" * 300, b"b" * 300, b"c" * 300, lines=False)
    (info,) = bench.segments
    times = [bench.reader.entry(7, info, block).time_us for block in range(4)]
    assert times == [1000, 1000, 1001, 1002]
    assert [bench.reader.entry(7, info, block).ordinal for block in range(4)] == [0, 0, 1, 2]


def test_a_flipped_bit_in_any_block_is_never_served(tmp_path: Path) -> None:
    for position in (0, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5):
        bench = Bench(tmp_path / str(position))
        bench.extend(lines(60))
        bench.flip("data", position)
        with pytest.raises(Damaged, match="checksum"):
            bench.read(position, position + 1)
        other = 0 if position >= BLOCK_BYTES else BLOCK_BYTES
        assert bench.read(other, other + 10) == bench.data[other : other + 10]


def test_a_flipped_bit_in_the_index_is_never_trusted(bench: Bench) -> None:
    bench.extend(lines(60))
    for position in range(ENTRY.size):
        bench.flip("index", position)
        bench.reader.close()
        with pytest.raises(Damaged):
            bench.read(0, 10)
        bench.flip("index", position)


def test_a_segment_that_lost_its_end_is_damaged_not_short(bench: Bench) -> None:
    bench.extend(lines(60))
    path = bench.path("data")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged, match="too short"):
        bench.read(0, len(bench.data))


@pytest.mark.parametrize("kind", ["data", "index"])
def test_a_missing_file_is_damage_that_says_which(bench: Bench, kind: str) -> None:
    bench.extend(lines(60))
    bench.path(kind).unlink()
    with pytest.raises(Damaged, match="missing"):
        bench.read(0, 10)


def test_a_block_is_checked_once_while_it_stays_open(bench: Bench) -> None:
    bench.extend(lines(60))
    bench.read(0, len(bench.data))
    bench.flip("index", 0)
    assert bench.read(0, 10) == bench.data[:10]
    bench.reader.close()
    with pytest.raises(Damaged):
        bench.read(0, 10)


def test_the_open_block_is_checked_again_when_it_has_grown(bench: Bench) -> None:
    bench.extend(lines(3))
    assert bench.read(0, 42) == bench.data
    bench.extend(lines(3))
    bench.flip("data", 50)
    with pytest.raises(Damaged):
        bench.read(0, 84)


def test_a_range_that_is_not_cached_is_left_to_a_thread(bench: Bench) -> None:
    bench.extend(lines(60))
    info = bench.segments[0]
    data = bench.reader.read(7, info, 5, 600, wait=False)
    assert data in (None, bench.data[5:600])
    bench.reader.warm(7, info, 5, 600)
    bench.reader.warm(8, info, 5, 600)  # a stream whose files are gone already


def test_a_segment_ends_with_the_chunk_that_fills_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes_max=100)
    bench.extend(b"a" * 60, b"b" * 60, b"c" * 60, b"d" * 250, b"e", lines=False)
    assert [(info.base, info.length) for info in bench.segments] == [
        (0, 120),
        (120, 310),
        (430, 1),
    ]
    assert [info.first_ordinal for info in bench.segments] == [0, 2, 4]
    bench.extend(b"f" * 98, b"g", b"h", lines=False)
    assert [(info.base, info.length) for info in bench.segments][2:] == [(430, 100), (530, 1)]
    whole = b"".join(bench.read(0, info.length, n) or b"" for n, info in enumerate(bench.segments))
    assert whole == bench.data


def test_what_an_unfinished_checkpoint_wrote_is_overwritten(bench: Bench) -> None:
    bench.extend(lines(20))
    before, data, count = bench.segments, bench.data, bench.lines
    bench.extend(lines(40))
    bench.segments, bench.data, bench.lines = before, data, count
    bench.extend(b'"other"' + b",\n", lines(30))
    assert bench.read(0, len(bench.data)) == bench.data


def test_a_segment_begun_again_forgets_what_its_file_held(bench: Bench) -> None:
    bench.extend(lines(60))
    bench.segments, bench.data, bench.lines = (), b"", 0
    bench.extend(lines(2))
    assert bench.path("data").stat().st_size == 28
    assert bench.read(0, 28) == bench.data


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes_max=10)
    bench.extend(*[b"x" * 10] * 6, lines=False)
    for number in range(6):
        assert bench.read(0, 10, number) == b"x" * 10
        assert len(bench.reader._open) <= 2
    bench.reader.forget(7)
    assert len(bench.reader._open) == 0


class Counted(bytes):
    """Remembers how many bytes were searched for line feeds."""

    searched = 0

    def count(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        Counted.searched += (len(self) if end is None else end) - start
        return super().count(sub, start, end)


def test_a_large_append_is_counted_once_however_many_blocks_it_has(tmp_path: Path) -> None:
    line = b'{"n":1},\n'
    data = Counted(line * (40 * BLOCK_BYTES // len(line)))
    folder, files = SegmentFolder(tmp_path), Files()
    writer = SegmentWriter(files, folder, 7, segment_bytes_max=1 << 30)
    (info,) = writer.extend((), [Chunk(0, data, 100, 5)], count_lines=True)
    writer.close()
    assert 39 * BLOCK_BYTES <= Counted.searched <= len(data)
    reader = SegmentReader(files, folder, open_files_max=4)
    for block in range(39):
        ordinal = 100 + data[: block * BLOCK_BYTES].count(b"\n")
        assert reader.entry(7, info, block).ordinal == ordinal
    reader.close()


def seen(bench: Bench, start: int, end: int) -> bytes | None:
    view = bench.reader.view_now(7, bench.segments[0], start, end)
    return None if view is None else bytes(view)


def test_bytes_are_sent_from_where_they_lie_once_they_were_checked(bench: Bench) -> None:
    bench.extend(lines(3 * BLOCK_BYTES // len(lines(1))))
    info = bench.segments[0]
    assert bench.reader.view_now(7, info, 0, info.length) is None
    bench.read(0, BLOCK_BYTES)
    if bench.reader.view_now(7, info, 1, 2) is None:
        pytest.skip("this kernel does not tell what is in its page cache")
    assert seen(bench, 5, BLOCK_BYTES) == bench.data[5:BLOCK_BYTES]
    assert bench.reader.view_now(7, info, 5, BLOCK_BYTES + 1) is None
    bench.read(0, info.length)
    assert seen(bench, 0, info.length) == bench.data


def test_a_last_block_that_has_grown_is_checked_again(bench: Bench) -> None:
    bench.extend(lines(2))
    bench.read(0, len(bench.data))
    bench.extend(lines(1))
    info = bench.segments[0]
    assert bench.reader.view_now(7, info, 0, 1) is None
    bench.read(0, info.length)
    assert seen(bench, 0, info.length) in (None, bench.data)


def test_damaged_bytes_are_never_sent_from_where_they_lie(bench: Bench) -> None:
    bench.extend(lines(3 * BLOCK_BYTES // len(lines(1))))
    bench.flip("data", BLOCK_BYTES + 3)
    info = bench.segments[0]
    with pytest.raises(Damaged):
        bench.read(0, info.length)
    assert bench.reader.view_now(7, info, BLOCK_BYTES, BLOCK_BYTES + 8) is None
