"""Data folders at rest, with streams of every shape, and ways to spoil them."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from typing import Any

from penstock.config.settings import Settings
from penstock.log import open_engine
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.store import CATALOG_FILE, DiskStore
from penstock.log.engine import Engine
from penstock.log.offline.verify import Problem, Report, verify
from penstock.log.requests import Append
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig

JSON = "application/json"
BINARY = "application/octet-stream"
MESSAGE_BYTES = 1000


def settings(folder: Path, **options: Any) -> Settings:
    """Three blocks a segment, a few batches a journal file, checkpoints only when asked for."""
    small = {
        "segment_bytes_max": 150_000,
        "inline_bytes_max": 300,
        "journal_file_bytes": 64 * 1024,
        "disk_reserve_bytes": 0,
        "checkpoint_interval_s": 3600,
    }
    return Settings(data_dir=folder, **{**small, **options})


def message(number: int) -> bytes:
    """A JSON message that takes `MESSAGE_BYTES` on disk."""
    start = b'{"n":%d,"pad":"' % number
    return start + b"x" * (MESSAGE_BYTES - len(start) - 4) + b'"}'


async def append(
    engine: Engine,
    path: str,
    body: bytes,
    *,
    kind: str = JSON,
    close: bool = False,
    producer: Producer | None = None,
) -> None:
    await engine.append(path, Append(body, kind, close, producer, None, None))


async def fill(engine: Engine) -> None:
    """Streams of every shape: inline and in segments, JSON and bytes, closed, empty, deleted."""
    for path, kind, ttl_s in (
        ("json/big", JSON, None),
        ("json/small", JSON, None),
        ("bin/big", BINARY, None),
        ("bin/small", BINARY, 1_000_000),
        ("json/empty", JSON, None),
        ("json/gone", JSON, None),
    ):
        await engine.create(path, StreamConfig(kind, ttl_s, None), b"", closed=False)
    for start in range(0, 400, 50):
        body = b"[" + b",".join(message(number) for number in range(start, start + 50)) + b"]"
        await append(engine, "json/big", body, producer=Producer("writer", 0, start // 50))
    for number in range(40):
        await append(engine, "bin/big", bytes([number]) * 7000, kind=BINARY)
    await append(engine, "json/gone", message(0))
    await append(engine, "json/small", b'[{"k":1},{"k":2}]')
    await append(engine, "json/small", b'"bye"', close=True, producer=Producer("closer", 3, 0))
    await append(engine, "bin/small", b"\x00\x1b[31m\xff", kind=BINARY)


async def fill_more(engine: Engine) -> None:
    """What only the journal knows of: appends, a new stream, a deleted one."""
    for number in range(400, 520):
        await append(engine, "json/big", message(number))
    late = Producer("late", 2, 0)
    await append(engine, "bin/small", b"more\n", kind=BINARY, producer=late)
    await engine.create("json/late", StreamConfig(JSON, None, None), b'["late"]', closed=True)
    await engine.delete("json/gone")


def make_clean(folder: Path, **options: Any) -> None:
    """A folder whose server was stopped."""

    async def run() -> None:
        engine = open_engine(settings(folder, **options))
        await engine.start()
        await fill(engine)
        await engine.stop()

    asyncio.run(run())


def make_crashed(folder: Path, **options: Any) -> None:
    """A folder as a crash would leave it: copied while its server runs, a while after a checkpoint.

    The copy has SQLite's WAL beside the catalog and a journal that is ahead of it.
    """
    live = folder.with_name(folder.name + "-live")

    async def run() -> None:
        engine = open_engine(settings(live, **options))
        await engine.start()
        await fill(engine)
        assert isinstance(engine.store, DiskStore)
        assert await engine.store.checkpoint()
        await fill_more(engine)
        shutil.copytree(live, folder)
        await engine.stop()

    asyncio.run(run())
    shutil.rmtree(live)


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file of a folder and a hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def row_of(folder: Path, path: str) -> Row:
    catalog = Catalog(folder / CATALOG_FILE)
    try:
        row = catalog.by_path(path)
        assert row is not None
        return row
    finally:
        catalog.close()


def change_row(folder: Path, path: str, **changes: Any) -> None:
    """Rewrite a stream's row, with the checksum that belongs to it."""
    row = row_of(folder, path)._replace(**changes)
    catalog = Catalog(folder / CATALOG_FILE)
    try:
        catalog.commit(Changes([row], [], [], [], {}))
    finally:
        catalog.close()


def check(folder: Path) -> Report:
    """Verify, and see that the folder is as it was."""
    before = fingerprint(folder)
    report = verify(folder)
    assert fingerprint(folder) == before
    return report


def only_problem(folder: Path) -> Problem:
    report = check(folder)
    assert report.problem_count == 1, [str(problem) for problem in report.problems]
    return report.problems[0]


def codes(report: Report) -> list[str]:
    return [problem.code for problem in report.problems]


def name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
