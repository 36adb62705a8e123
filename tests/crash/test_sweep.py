"""After an unclean stop, segment files that no checkpoint knows are removed, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.log.disk.catalog import Changes
from penstock.log.disk.segment import SegmentInfo
from tests.crash.engines import (
    BYTES,
    QuickCatalog,
    abandon,
    append,
    disk,
    read_all,
    small_settings,
    start,
)


def test_sweep_sees_the_last_commit_while_the_loop_is_reading(tmp_path: Path) -> None:
    """A read in progress keeps its connection in the past; live files must not look like strays."""
    catalog = QuickCatalog(tmp_path / "catalog.sqlite")
    catalog.commit(Changes([], [(number, _info()) for number in (1, 2)], [], [], {}))
    reading = catalog._reader.execute("SELECT stream_id FROM segments")
    assert reading.fetchone() == (1,)
    catalog.commit(Changes([], [(3, _info())], [], [], {}))
    assert catalog.segment_names() == {(1, 0), (2, 0), (3, 0)}
    reading.close()
    catalog.close()


def _info() -> SegmentInfo:
    return SegmentInfo(0, 10, 0, 0, 0, 0)


def test_only_strays_are_swept_and_only_after_an_unclean_stop(tmp_path: Path) -> None:
    async def run() -> None:
        settings = small_settings(tmp_path)
        engine = await start(settings)
        await engine.create("a", BYTES, b"x" * 1000, closed=False)
        assert await disk(engine).checkpoint()
        await abandon(engine)
        live = set((tmp_path / "segments" / "01").iterdir())
        stray = tmp_path / "segments" / "01" / f"{257:016x}-{0:016x}.segment"
        other = tmp_path / "segments" / "01" / "not-ours.segment"
        for path in (stray, other):
            path.write_bytes(b"?")
        engine = await start(settings)
        await engine.append("a", append(b"y"))
        assert await disk(engine).checkpoint()
        assert set((tmp_path / "segments" / "01").iterdir()) == {*live, other}
        assert await read_all(engine, "a") == b"x" * 1000 + b"y"
        await engine.stop()

    asyncio.run(run())
