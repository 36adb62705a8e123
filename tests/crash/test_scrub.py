"""A scrub finds flipped bits of a store in use, wherever they are, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.clock import SYSTEM_CLOCK
from penstock.log import scrub
from penstock.log.engine import Engine
from penstock.log.offline.verify_segments import SegmentCheck
from penstock.log.scrub import Scrubs
from penstock.protocol.headers import Producer
from tests.crash.engines import (
    BYTES,
    JSON,
    append,
    disk,
    small_blocks,
    small_settings,
    start,
)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_blocks():
        yield


Test = Callable[[Engine, Scrubs], Awaitable[None]]


def run(folder: Path, test: Test, **options: object) -> None:
    """Run a test on a store with a segmented stream, a small one and a producer."""

    async def main() -> None:
        settings = small_settings(folder, **{"scrub_bytes_per_s": 0, **options})
        engine = await start(settings)
        scrubs = Scrubs(engine.store, settings, clock=SYSTEM_CLOCK)
        try:
            await engine.create("large", BYTES)
            await engine.create("small", JSON)
            for number in range(80):
                await engine.append("large", append(b"%d" % number * 50))
            producer = Producer("p", 0, 0)
            await engine.append("small", append(b'{"a":1}', config=JSON, producer=producer))
            assert await disk(engine).checkpoint()
            await test(engine, scrubs)
        finally:
            scrubs.cancel()
            await scrubs.wait()
            await engine.stop()

    asyncio.run(main())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def problems(scrubs: Scrubs) -> list[tuple[str, str | None, int | None]]:
    found = scrubs.start()
    await scrubs.wait()
    assert (found.outcome, found.error) == ("done", None)
    return [(each.code, each.stream, each.position) for each in found.report.problems]


def test_a_sound_store_has_no_problems(tmp_path: Path) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        assert await problems(scrubs) == []
        assert scrubs.last is not None
        assert scrubs.last.report.streams == 2
        total = sum(path.stat().st_size for path in tmp_path.rglob("*.segment"))
        assert scrubs.bytes_total == scrubs.last.bytes_total == total > 3000
        assert await problems(scrubs) == []
        assert scrubs.bytes_total == 2 * total
        assert scrubs.last_finished_us is not None

    run(tmp_path, test)


@pytest.mark.parametrize("suffix", ["segment", "index"])
def test_a_flipped_bit_of_a_live_folder_is_named(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        path = sorted(tmp_path.rglob(f"*.{suffix}"))[1]
        flip(path, 30)
        [(code, stream, position)] = await problems(scrubs)
        assert stream == "large"
        expected = ("block-damaged", 0) if suffix == "segment" else ("index-damaged", 24)
        assert (code, position) == expected
        assert scrubs.errors_total == 1
        line = next(each for each in caplog.messages if path.name in each)
        assert "stream large" in line
        assert "restore from a backup" in line
        # The server goes on.
        await engine.append("large", append(b"more"))

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE streams SET tail = tail + 1 WHERE path = 'large'", "row-damaged"),
        ("UPDATE streams SET inline = x'00' WHERE path = 'small'", "row-damaged"),
        ("UPDATE segments SET open_crc = open_crc + 1", "row-damaged"),
        ("UPDATE producers SET seq = 7", "row-damaged"),
        ("DELETE FROM producers", "row-damaged"),
    ],
)
def test_an_altered_row_of_the_catalog_is_found(tmp_path: Path, statement: str, code: str) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection:
            connection.execute(statement)
            connection.commit()
        assert code in {each[0] for each in await problems(scrubs)}

    run(tmp_path, test)


def test_a_missing_segment_is_damage_and_a_trimmed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        loop = asyncio.get_running_loop()
        check = SegmentCheck.run

        async def trim() -> None:
            await engine.trim("large", "now")
            assert await disk(engine).checkpoint()

        def trim_first(self: SegmentCheck) -> int | None:
            asyncio.run_coroutine_threadsafe(trim(), loop).result()
            return check(self)

        with monkeypatch.context() as patch:
            patch.setattr(SegmentCheck, "run", trim_first)
            assert await problems(scrubs) == []
        for number in range(80):
            await engine.append("large", append(b"%d" % number * 50))
        assert await disk(engine).checkpoint()
        min(tmp_path.rglob("*.segment")).unlink()
        assert ("segment-missing", "large", None) in await problems(scrubs)

    run(tmp_path, test)


def test_a_scrub_goes_on_while_streams_grow(tmp_path: Path) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        for _ in range(6):
            found = scrubs.start()
            while found.outcome == "running":
                await engine.append("large", append(b"x" * 300))
            assert found.report.problems == []

    run(tmp_path, test)


def test_scrubs_run_by_themselves_one_at_a_time_and_end_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_DELAY_S", 0.0)

    async def test(engine: Engine, scrubs: Scrubs) -> None:
        scrubs.begin_schedule()
        while scrubs.last is None:
            await asyncio.sleep(0)
        assert scrubs.start() is scrubs.last
        scrubs.cancel()
        await scrubs.wait()
        assert scrubs.last.outcome == "canceled"
        assert scrubs.last_finished_us is None

    run(tmp_path, test, scrub_bytes_per_s=1)


@pytest.mark.parametrize("off", [{"scrub_interval_s": 0.0}, {"scrub_bytes_per_s": 0}])
def test_scrubs_can_be_switched_off(tmp_path: Path, off: dict[str, object]) -> None:
    async def test(engine: Engine, scrubs: Scrubs) -> None:
        assert not scrubs.is_scheduled

    run(tmp_path, test, **{"scrub_bytes_per_s": 1000, **off})
