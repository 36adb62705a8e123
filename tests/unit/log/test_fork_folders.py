"""Folders with forks and trims: verify believes what is true and finds what is not."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.log import open_engine
from penstock.log.disk.store import CATALOG_FILE, DiskStore
from penstock.log.engine import Engine
from penstock.log.offline.inspect import overview, stream_view
from penstock.log.offline.verify import verify
from penstock.log.requests import Fork
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from tests.helpers.folders import JSON, append, change_row, check, codes, fingerprint, settings

NO_WISHES = ForkConfig(None, None, None)


async def fork(engine: Engine, path: str, source: str, offset: str | None = None) -> str:
    created = await engine.fork(path, Fork(source, offset, 0), NO_WISHES, b"", closed=False)
    return created.offset


async def fill(engine: Engine) -> None:
    """root → kept (soft-deleted) → leaf, and a trimmed stream in segments."""
    plain = StreamConfig(JSON, None, None)
    await engine.create("root", plain, b"[1,2,3]", closed=False)
    await fork(engine, "kept", "root")
    await append(engine, "kept", b"[40,50]")
    await fork(engine, "leaf", "kept")
    await append(engine, "leaf", b"600")
    await engine.delete("kept")
    await engine.create("long", plain, b"", closed=False)
    for number in range(40):
        await append(engine, "long", b'"%s"' % (b"%d" % (number % 10) * 9_000))
        if number == 20:
            assert isinstance(engine.store, DiskStore)
            assert await engine.store.checkpoint()
    stream = engine.find("long", touch=False)
    await engine.trim("long", engine.token(stream, await engine.seek(stream, 25)))


def make(folder: Path, *, crash: bool) -> None:
    live = folder.with_name(folder.name + "-live")

    async def run() -> None:
        engine = open_engine(settings(live))
        await engine.start()
        await fill(engine)
        if crash:
            shutil.copytree(live, folder)
        await engine.stop()

    asyncio.run(run())
    if crash:
        shutil.rmtree(live)
    else:
        live.rename(folder)


@pytest.fixture(params=["clean", "crashed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make(tmp_path / "data", crash=request.param == "crashed")
    return tmp_path / "data"


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    make(tmp_path / "data", crash=False)
    return tmp_path / "data"


def test_forks_and_trims_are_no_problem(folder: Path) -> None:
    report = check(folder)
    assert report.problems == []
    assert (report.streams, report.messages) == (4, 3 + 2 + 1 + 15)


def test_inspect_shows_where_a_fork_comes_from(folder: Path) -> None:
    before = fingerprint(folder)
    leaf, source = stream_view(folder, "leaf"), stream_view(folder, "kept")
    assert (leaf.forked_from, leaf.forks, leaf.messages) == ("kept", 0, 6)
    assert leaf.preview.first == ["1", "2", "3"]
    assert leaf.preview.last == ["40", "50", "600"]
    assert (source.soft_deleted, source.forks, source.forked_from) == (True, 1, "root")
    assert source.fork_offset is not None
    assert source.fork_offset < (leaf.fork_offset or "")
    long = stream_view(folder, "long")
    assert (long.messages, long.earliest[-16:]) == (15, f"{25 * 9_004:016d}")
    assert overview(folder).messages == 3 + 2 + 1 + 15
    assert fingerprint(folder) == before


@pytest.mark.parametrize(
    ("path", "changes", "code", "words"),
    [
        ("root", {"forks": 2}, "forks-wrong", "claims 2 forks, there are 1"),
        ("root", {"forks": 0, "pinned": None}, "forks-wrong", "claims 0 forks, there are 1"),
        ("root", {"pinned": None}, "row-inconsistent", "which keep it from None"),
        ("leaf", {"soft_deleted": True}, "row-inconsistent", "it has 0 forks"),
        ("long", {"earliest_ordinal": 99}, "row-inconsistent", "starts with message 99"),
        ("long", {"earliest": 0}, "row-inconsistent", "first segment starts at"),
    ],
)
def test_rows_that_cannot_be_true_are_found(
    clean: Path, path: str, changes: dict[str, Any], code: str, words: str
) -> None:
    change_row(clean, path, **changes)
    report = check(clean)
    assert code in codes(report)
    assert any(words in problem.what for problem in report.problems), report.problems


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"source_id": 77}, "(77), is not there"),
        ({"source_path": "other"}, "is 'kept', not 'other'"),
        ({"position": 10**6}, "that ends at"),
    ],
)
def test_a_fork_without_its_source_is_found(clean: Path, part: dict[str, Any], words: str) -> None:
    from tests.helpers.folders import row_of

    point = row_of(clean, "leaf").fork
    assert point is not None
    change_row(clean, "leaf", fork=point._replace(**part))
    report = check(clean)
    assert "fork-wrong" in codes(report)
    assert any(words in problem.what for problem in report.problems), report.problems


def test_a_folder_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    """Its catalog lacks the columns; reading it changes nothing, a start adds them."""
    data = tmp_path / "data"

    async def run(first: bool) -> list[str]:
        engine = open_engine(settings(data))
        await engine.start()
        if first:
            await engine.create("a", StreamConfig(JSON, None, None), b"[1]", closed=False)
        else:
            await fork(engine, "b", "a")
        paths = [info.path for info in await engine.list_streams("", "", 9)]
        await engine.stop()
        return paths

    asyncio.run(run(True))
    connection = sqlite3.connect(data / CATALOG_FILE)
    for column in ("fork_count", "fork_path", "forks", "pinned", "earliest_ordinal"):
        connection.execute(f"ALTER TABLE streams DROP COLUMN {column}")
    connection.commit()
    connection.close()
    before = fingerprint(data)
    assert verify(data).problems == []
    assert stream_view(data, "a").messages == 1
    assert fingerprint(data) == before
    assert asyncio.run(run(False)) == ["a", "b"]
    assert verify(data).problems == []
