"""One bit is wrong somewhere: the answer is right or there is a loud error, never wrong bytes.

What is promised. Journal: a batch with a valid one behind it, in its file or the next, or with an
unreadable file head before it, is damage: opening fails, names the file, and changes nothing. The
very last batch cannot be told from one that was being written when the power failed: it is cut, as
the rule for torn tails says, and everything before it stays. Segment, index and catalog row: reads
that touch the damaged block or row fail and name the stream; all other blocks are served.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Damaged, StoreDamaged
from penstock.log.disk.catalog_rows import stream_from_row
from penstock.log.disk.journal import HEAD_BYTES
from penstock.log.disk.reader import StreamReader
from penstock.log.disk.segment import SegmentFolder, SegmentReader
from penstock.log.stream import Stream
from tests.crash.engines import (
    JSON,
    QuickCatalog,
    UnsyncedFiles,
    append,
    disk,
    observe,
    read_all,
    small_blocks,
    small_settings,
    start,
)
from tests.crash.scenario import Operation, is_same, states_after
from tests.crash.small_store import (
    Bench,
    JournalFile,
    make_operations,
    read_journal,
    write_operations,
)

BLOCK = 512
HEAD_USED = 52
BURSTS = 34


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


# -- journal


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    return [each for burst in make_operations(BURSTS, size_max=200) for each in burst]


@pytest.fixture(scope="module")
def journal_files(tmp_path_factory: pytest.TempPathFactory) -> list[JournalFile]:
    folder = tmp_path_factory.mktemp("written")
    asyncio.run(write_operations(folder, make_operations(BURSTS, size_max=200)))
    files = read_journal(folder)
    assert len(files) == 2
    return files


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "bench")
    yield bench
    bench.close()


@pytest.mark.parametrize("which", [0, 1])
def test_journal(
    bench: Bench, journal_files: list[JournalFile], operations: list[Operation], which: int
) -> None:
    intact = {file.name: file.data for file in journal_files}
    file = journal_files[which]
    ends = [HEAD_BYTES, *[end for end, _ in file.ends]]
    last_batch = range(ends[-2], ends[-1]) if which == 1 else range(0)
    cut_count = file.ends[-2][1]
    for at in [*range(ends[-1]), *range(ends[-1], len(file.data), 29)]:
        damaged = {**intact, file.name: _flip(file.data, at)}
        if at in last_batch:
            assert is_same(bench.replay(damaged), states_after(operations[:cut_count])), at
        elif at >= ends[-1] or HEAD_USED <= at < HEAD_BYTES:
            assert is_same(bench.replay(damaged), states_after(operations)), at
        else:
            with pytest.raises(StoreDamaged, match=r"0+[12]\.journal"):
                bench.replay(damaged)
            assert (bench.folder / "journal" / file.name).read_bytes() == damaged[file.name]


def test_missing_journal_file_is_damage(bench: Bench, journal_files: list[JournalFile]) -> None:
    with pytest.raises(StoreDamaged, match="missing"):
        bench.replay({journal_files[1].name: journal_files[1].data})


# -- segments and their index


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


MESSAGES = [b'{"n":%d,"text":"%s"}' % (number, b"abc" * number) for number in range(60)]
WIRE = b"".join(message + b",\n" for message in MESSAGES)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A data folder, cleanly closed, with a stream of several segments and one inside its row."""

    async def run() -> None:
        engine = await start(small_settings(tmp_path))
        await engine.create("j/a", JSON, b"", closed=False)
        await engine.create("small", JSON, b'{"inline":true}', closed=False)
        for number, message in enumerate(MESSAGES):
            await engine.append("j/a", append(message, config=JSON))
            if number % 7 == 6:
                assert await disk(engine).checkpoint()
        await engine.stop()

    asyncio.run(run())
    return tmp_path


class Shelf:
    """Reads a stream the way the store does, with nothing remembered from earlier reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = SegmentFolder(folder / "segments")
        catalog = QuickCatalog(folder / "catalog.sqlite")
        row = catalog.by_path("j/a")
        catalog.close()
        assert row is not None
        self.stream: Stream = stream_from_row(row)
        assert len(self.stream.segments) > 1

    def files(self, suffix: str) -> list[Path]:
        return sorted(self._folder.shard(self.stream.id).glob(f"*.{suffix}"))

    def block_of(self, path: Path, block: int) -> range:
        """Stream positions of a block of a segment."""
        base = int(path.stem.partition("-")[2], 16)
        info = next(info for info in self.stream.segments if info.base == base)
        return range(base + block * BLOCK, min(base + (block + 1) * BLOCK, info.end))

    def read(self, start: int, end: int) -> bytes:
        reader = SegmentReader(UnsyncedFiles(), self._folder, open_files_max=8)
        try:
            data = StreamReader(reader)._read(self.stream, start, end, wait=True)
        finally:
            reader.close()
        assert data is not None
        return data

    def check_others(self, bad: range) -> None:
        """Everything outside of `bad` is served, and right."""
        parts = (0, bad.start), (bad.stop, self.stream.tail)
        for info in self.stream.segments:
            for block in range(info.base, info.end, BLOCK):
                end = min(block + BLOCK, info.end)
                if any(low <= block and end <= high for low, high in parts):
                    assert self.read(block, end) == WIRE[block:end]


@pytest.mark.parametrize("step", [pytest.param(37), pytest.param(1, marks=pytest.mark.soak)])
def test_segment(stored: Path, step: int) -> None:
    shelf = Shelf(stored)
    assert shelf.read(0, shelf.stream.tail) == WIRE
    for path in shelf.files("segment"):
        intact = path.read_bytes()
        for at in range(0, len(intact), step):
            path.write_bytes(_flip(intact, at))
            bad = shelf.block_of(path, at // BLOCK)
            with pytest.raises(Damaged, match=f"stream {shelf.stream.id}"):
                shelf.read(bad.start, bad.start + 1)
            with pytest.raises(Damaged):
                shelf.read(0, shelf.stream.tail)
            if at % (5 * step) == 0:
                shelf.check_others(bad)
        path.write_bytes(intact[:-1])
        with pytest.raises(Damaged):
            shelf.read(0, shelf.stream.tail)
        path.write_bytes(intact)


def test_index(stored: Path) -> None:
    """Every byte of it: a wrong ordinal or time would lead a reader to another message."""
    shelf = Shelf(stored)
    detected = 0
    for path in shelf.files("index"):
        intact = path.read_bytes()
        for at in range(len(intact)):
            path.write_bytes(_flip(intact, at))
            bad = shelf.block_of(path, at // 24)
            with pytest.raises(Damaged, match=f"stream {shelf.stream.id}"):
                shelf.read(bad.start, bad.stop)
            detected += 1
        path.unlink()
        with pytest.raises(Damaged, match="index"):
            shelf.read(0, shelf.stream.tail)
        path.write_bytes(intact)
    assert detected > 100


def test_segment_behind_a_running_engine_is_checked_when_it_is_first_read(stored: Path) -> None:
    first, *_, last = Shelf(stored).files("segment")

    async def run() -> None:
        engine = await start(small_settings(stored))
        stream = engine.find("j/a", touch=False)
        first.write_bytes(_flip(first.read_bytes(), 100))
        for _ in range(2):
            with pytest.raises(Damaged):
                await engine.read(stream, 0, stream.tail)
        # An append does not launder it: the checksum of the open block goes on from the catalog.
        data = last.read_bytes()
        last.write_bytes(_flip(data, len(data) - 1))
        await engine.append("j/a", append(b'{"more":1}', config=JSON))
        assert await disk(engine).checkpoint()
        with pytest.raises(Damaged):
            await engine.read(stream, stream.tail - 20, stream.tail)
        await engine.stop()

    asyncio.run(run())


# -- catalog rows


def _set(folder: Path, column: str, value: Any) -> None:
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        connection.execute(f"UPDATE streams SET {column} = ? WHERE path = 'small'", (value,))
    connection.close()


def _get(folder: Path, column: str) -> Any:
    with sqlite3.connect(folder / "catalog.sqlite") as connection:
        (value,) = connection.execute(
            f"SELECT {column} FROM streams WHERE path = 'small'"
        ).fetchone()
    connection.close()
    return value


def test_bytes_kept_in_the_catalog(stored: Path) -> None:
    """Each byte of them, and the stream beside it is served as if nothing was."""
    intact = _get(stored, "inline")

    async def run() -> None:
        engine = await start(small_settings(stored))
        with pytest.raises(Damaged, match="small"):
            engine.find("small", touch=False)
        with pytest.raises(Damaged, match="small"):
            await engine.append("small", append(b"{}", config=JSON))
        with pytest.raises(Damaged, match="small"):
            engine.delete("small")
        assert await read_all(engine, "j/a") == WIRE
        await engine.stop()

    for at in range(len(intact)):
        _set(stored, "inline", _flip(intact, at))
        asyncio.run(run())
    _set(stored, "inline", intact)

    async def check_restored() -> None:
        engine = await start(small_settings(stored))
        assert (await observe(engine))["small"].payload == b'{"inline":true},\n'
        await engine.stop()

    asyncio.run(check_restored())


@pytest.mark.parametrize(
    "column",
    [
        "content_type",
        "ttl_s",
        "created_us",
        "touched_us",
        "earliest",
        "tail",
        "count",
        "closed",
        "stream_seq",
        "producers",
        "applied_lsn",
    ],
)
def test_what_else_a_row_says(stored: Path, column: str) -> None:
    old = _get(stored, column)
    _set(stored, column, f"{old}x" if isinstance(old, str) else (old or 0) ^ 4)

    async def run() -> None:
        engine = await start(small_settings(stored))
        with pytest.raises(Damaged, match="small"):
            engine.find("small", touch=False)
        await engine.stop()

    asyncio.run(run())
