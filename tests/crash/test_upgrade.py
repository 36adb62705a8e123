"""A folder of format 1, written by the version before checksums of producers, is opened and mended.

`format-1.tar.gz` has two of them: `stopped` cleanly, and `crashed` with records that only the
journal has.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.disk.recovery import FORMAT
from penstock.log.offline.inspect import overview
from penstock.log.offline.verify import verify
from penstock.protocol.headers import Producer
from tests.crash.engines import JSON, abandon, append, read_all, small_settings, start

ARCHIVE = Path(__file__).with_name("format-1.tar.gz")
MESSAGES = {"stopped": 12, "crashed": 13}


@pytest.fixture(params=sorted(MESSAGES))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / str(request.param)


def _format(folder: Path) -> int:
    return int(json.loads((folder / "PENSTOCK").read_text())["format"])


def _checksums(folder: Path) -> list[int | None]:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        return [crc for (crc,) in connection.execute("SELECT crc FROM producers")]


def test_an_older_folder_is_verified_and_shown_as_it_is(folder: Path) -> None:
    report = verify(folder)
    assert (report.problems, report.format) == ([], 1)
    assert overview(folder).format == 1
    assert _format(folder) == 1


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_an_older_folder_gets_its_checksums_and_goes_on(folder: Path, end: str) -> None:
    count = MESSAGES[folder.name]

    async def run() -> None:
        engine = await start(small_settings(folder))
        assert (await read_all(engine, "j/a")).count(b"\n") == count
        last = append(b'{"again":1}', config=JSON, producer=Producer("writer", 0, count - 1))
        assert (await engine.append("j/a", last)).duplicate
        following = append(b'{"n":1}', config=JSON, producer=Producer("writer", 0, count))
        assert not (await engine.append("j/a", following)).duplicate
        await (engine.stop() if end == "stop" else abandon(engine))

    async def run_again() -> None:
        engine = await start(small_settings(folder))
        assert (await read_all(engine, "j/a")).count(b"\n") == count + 1
        await engine.stop()

    asyncio.run(run())
    assert _format(folder) == FORMAT == 2
    assert len(_checksums(folder)) == 2
    assert None not in _checksums(folder)
    assert verify(folder).problems == []
    asyncio.run(run_again())
    assert verify(folder).problems == []
