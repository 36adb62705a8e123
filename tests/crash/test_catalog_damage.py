"""Damage to the catalog that no checksum of a stream's row covers: producers, and indexes.

An altered producer is never used to decide. After an unclean stop a damaged index is built again
from sound rows; anything else that is damaged is refused, and changes nothing.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import Damaged, PenstockError, StoreDamaged, StreamNotFound
from penstock.log.engine import Engine
from penstock.log.offline.verify import verify
from penstock.protocol.headers import Producer
from tests.crash.engines import (
    BYTES,
    START_US,
    QuickCatalog,
    abandon,
    append,
    disk,
    small_settings,
    start,
)
from tests.helpers.folders import fingerprint

STREAMS = 120
PATHS = [f"tenant-{number % 7}/orders/{number:04d}" for number in range(STREAMS)]
PATH_INDEX = "sqlite_autoindex_streams_1"


def payload(number: int, seq: int) -> bytes:
    """Every fifth stream has a file of its own."""
    return b"%d-%d" % (number, seq) + b"." * (150 if number % 5 == 0 else 0)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was not stopped cleanly; its catalog has every stream."""
    folder = tmp_path_factory.mktemp("stored") / "data"

    async def run() -> None:
        engine = await start(small_settings(folder, checkpoint_bytes=1 << 30))
        for number, path in enumerate(PATHS):
            config = BYTES._replace(ttl_s=10**6) if number % 3 == 0 else BYTES
            await engine.create(path, config, b"", closed=False)
            for seq in range(2):
                body = append(payload(number, seq), producer=Producer("writer", 0, seq))
                await engine.append(path, body)
        assert await disk(engine).checkpoint()
        await abandon(engine)

    asyncio.run(run())
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "data"))


def edit(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        connection.execute(statement)
        connection.commit()


# -- producers


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE producers SET seq = 7",
        "UPDATE producers SET epoch = 3",
        "UPDATE producers SET producer_id = 'writes'",
        "UPDATE producers SET crc = crc + 1",
        "UPDATE producers SET crc = NULL",
        "UPDATE producers SET stream_id = stream_id + 1000",
        "DELETE FROM producers",
    ],
)
def test_an_altered_producer_does_not_decide(folder: Path, damage: str) -> None:
    """With seq 7 the append would be a duplicate: answered 204 and stored nowhere."""
    edit(folder, damage)

    async def run() -> None:
        engine = await start(small_settings(folder))
        for seq in (0, 2):  # one that was sent before, and the next one
            with pytest.raises(Damaged, match="producer"):
                await engine.append(PATHS[0], append(b"x", producer=Producer("writer", 0, seq)))
        await engine.append(PATHS[0], append(b"y"))
        await abandon(engine)

    asyncio.run(run())
    assert verify(folder).problem_count > 0


def test_a_new_producer_beside_sound_ones_is_welcome(folder: Path) -> None:
    async def run() -> None:
        engine = await start(small_settings(folder))
        for number in range(3):
            body = append(b"new", producer=Producer(f"new-{number}", 0, 0))
            assert not (await engine.append(PATHS[0], body)).duplicate
            assert await disk(engine).checkpoint()
        await engine.stop()

    asyncio.run(run())
    assert verify(folder).problems == []


# -- indexes


def pages_of(database: bytes, root: int) -> Iterator[int]:
    """The pages of a tree, by SQLite's file format."""
    (size,) = struct.unpack_from(">H", database, 16)
    start = (root - 1) * size
    yield root
    if database[start] in (2, 5):
        (cells,) = struct.unpack_from(">H", database, start + 3)
        for (at,) in struct.iter_unpack(">H", database[start + 12 : start + 12 + 2 * cells]):
            yield from pages_of(database, *struct.unpack_from(">I", database, start + at))
        yield from pages_of(database, *struct.unpack_from(">I", database, start + 8))


class Trees:
    """The catalog of a folder, with places to damage by the name of a table or index."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "catalog.sqlite"
        self.whole = self.path.read_bytes()
        with closing(sqlite3.connect(f"{self.path.as_uri()}?immutable=1", uri=True)) as connection:
            rows = connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall()
        (self._size,) = struct.unpack_from(">H", self.whole, 16)
        self._pages = {name: list(pages_of(self.whole, root)) for name, root in rows}

    def places(self, name: str, count: int, chance: random.Random) -> list[int]:
        """Bytes of a tree that are in use."""
        places = [
            at
            for page in self._pages[name]
            for at in range((page - 1) * self._size, page * self._size)
            if self.whole[at]
        ]
        return chance.choices(places, k=count)

    def flip(self, at: int, bit: int) -> None:
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        data = bytearray(self.whole)
        data[at] ^= 1 << bit
        self.path.write_bytes(data)

    def entry(self, path: str) -> int:
        """A byte in the name of a stream in the index of paths."""
        for page in self._pages[PATH_INDEX]:
            start = (page - 1) * self._size
            at = self.whole.find(path.encode(), start, start + self._size)
            if at >= 0:
                return at + len(path) - 1
        raise AssertionError(path)


def hidden(folder: Path) -> int:
    """The number of streams that are not found at their path."""
    catalog = QuickCatalog(folder / "catalog.sqlite")
    try:
        return sum(catalog.by_path(path) is None for path in PATHS)
    finally:
        catalog.close()


def test_a_flipped_bit_in_the_index_of_paths_hides_no_stream(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trees = Trees(folder)
    trees.flip(trees.entry(PATHS[50]), 5)
    assert hidden(folder) == 1, "else this test proves nothing"
    assert "catalog-damaged" in [problem.code for problem in verify(folder).problems]

    async def run() -> None:
        engine = await start(small_settings(folder))
        assert engine.find(PATHS[50], touch=False).tail > 0
        assert disk(engine).stats.catalog_repairs == 1
        await abandon(engine)

    asyncio.run(run())
    assert "were built again" in caplog.text
    assert hidden(folder) == 0
    assert verify(folder).problems == []


def test_an_index_that_leads_to_another_stream_serves_none(folder: Path) -> None:
    """Without a check, as after a clean stop: the row has to be that of the path."""
    trees = Trees(folder)
    trees.flip(trees.entry(PATHS[50]), 5)
    wrong = PATHS[50][:-1] + chr(ord(PATHS[50][-1]) ^ 32)

    async def run() -> None:
        engine = await start(small_settings(folder, catalog_check_timeout_s=0))
        with pytest.raises((Damaged, StreamNotFound)):
            engine.find(wrong, touch=False)
        await abandon(engine)

    asyncio.run(run())


def test_rows_that_are_damaged_as_well_are_refused_and_nothing_is_changed(folder: Path) -> None:
    trees = Trees(folder)
    trees.flip(trees.entry(PATHS[50]), 5)
    edit(folder, f"UPDATE streams SET tail = tail + 1 WHERE path = '{PATHS[3]}'")
    (folder / "LOCK").touch()
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = fingerprint(folder)

    async def run() -> None:
        with pytest.raises(StoreDamaged, match=r"Nothing was changed.*backup"):
            await start(small_settings(folder))

    asyncio.run(run())
    after = fingerprint(folder)
    assert before["catalog.sqlite"] == after["catalog.sqlite"]


def test_a_check_that_takes_too_long_is_given_up_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        # Enough of it that the time is looked at.
        connection.execute("CREATE TABLE other (a, b)")
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            "INSERT INTO other SELECT i, i FROM n"
        )
        connection.execute("CREATE INDEX other_a ON other (a, b)")
        connection.commit()

    async def run() -> None:
        engine = await start(small_settings(folder, catalog_check_timeout_s=1e-9))
        assert engine.find(PATHS[0], touch=False).tail > 0
        await abandon(engine)

    asyncio.run(run())
    assert "catalog_check_timeout_s" in caplog.text


@pytest.mark.parametrize("flips", [pytest.param(12), pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "tree", [PATH_INDEX, "streams_touched", "streams_deadline", "streams", "producers", "segments"]
)
def test_a_flipped_bit_anywhere_in_the_catalog_is_never_believed(
    folder: Path, tree: str, flips: int
) -> None:
    """A start refuses it, mends it, or serves what was written and fails loudly for the rest."""
    trees, outcomes = Trees(folder), Counter[str]()
    chance = random.Random(f"{tree}-{flips}")

    async def run() -> None:
        try:
            engine = await start(small_settings(folder))
        except PenstockError:
            outcomes["refused"] += 1
            return
        try:
            outcomes["mended"] += disk(engine).stats.catalog_repairs
            for number, path in enumerate(PATHS):
                await _check_stream(engine, number, path, outcomes)
        finally:
            await abandon(engine)

    for at in trees.places(tree, flips, chance):
        trees.flip(at, chance.randrange(8))
        asyncio.run(run())
    if tree == PATH_INDEX:
        assert outcomes["mended"] > flips // 4
        assert outcomes["loud"] == 0


async def _check_stream(engine: Engine, number: int, path: str, outcomes: Counter[str]) -> None:
    try:
        stream = engine.find(path, touch=False)
        data = await engine.read(stream, 0, stream.tail)
        again = append(b"again", producer=Producer("writer", 0, 1))
        result = await engine.append(path, again)
    except Damaged:
        outcomes["loud"] += 1
        return
    assert data == payload(number, 0) + payload(number, 1)
    assert stream.created_us == START_US
    assert result.duplicate
