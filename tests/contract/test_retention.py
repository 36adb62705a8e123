"""Looking for what is kept too long: only streams that can have it are loaded for that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.log import open_engine, retention
from penstock.log.engine import Engine
from penstock.log.requests import Append
from penstock.log.retention import Due
from penstock.protocol.lifecycle import StreamConfig

DAY_S = 86_400
JSON = StreamConfig("application/json", None, None)


@pytest.fixture(autouse=True)
def _without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REST", 0)


@asynccontextmanager
async def engine(folder: Path, clock: ManualClock, **settings: Any) -> AsyncIterator[Engine]:
    found = open_engine(Settings(data_dir=folder, **settings), clock=clock)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


async def append(engine: Engine, path: str, size: int) -> None:
    body = b'["' + b"x" * size + b'"]'
    if engine.store.load(path) is None:
        await engine.create(path, JSON, b"", closed=False)
    await engine.append(path, Append(body, JSON.content_type, False, None, None, None))


async def looked(engine: Engine) -> tuple[int, int]:
    """How many streams were trimmed, and how many were loaded."""
    before = engine.stats.loaded
    trimmed = await engine.retention.enforce()
    return trimmed, engine.stats.loaded - before


def test_streams_that_have_nothing_old_are_not_loaded(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        async with engine(tmp_path, clock) as first:
            for number in range(20):
                await append(first, f"small/{number}", 10)
                await append(first, f"large/{number}", 100_000)
        clock.advance(6 * DAY_S)
        async with engine(tmp_path, clock) as second:
            for number in range(20):
                await append(second, f"small/{number}", 10)
                await append(second, f"large/{number}", 100_000)
        clock.advance(2 * DAY_S)  # the first appends are too old
        rules = "=7d small/1=3650d"
        async with engine(tmp_path, clock, retention=rules) as third:
            # Of the large ones the index can tell old from young; the small ones are one piece.
            assert await looked(third) == (20, 20)
            assert await looked(third) == (0, 0)
            clock.advance(4 * DAY_S)
            assert await looked(third) == (0, 0)
        async with engine(tmp_path, clock, retention=rules) as fourth:
            assert await looked(fourth) == (0, 20)  # nothing is known of the large ones yet
            assert await looked(fourth) == (0, 0)
            clock.advance(1 * DAY_S + 1)
            trimmed, loaded = await looked(fourth)
            assert trimmed == 20 + 9  # small/1 and small/1… are kept for ten years
            assert loaded == 9  # the others were there
        async with engine(tmp_path, clock, retention=rules) as fifth:
            assert await looked(fifth) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(2))
def test_every_look_trims_what_a_look_at_everything_would(tmp_path: Path, seed: int) -> None:
    """Side by side with an engine that is told to look at every stream each time."""

    async def run() -> None:
        chance = random.Random(seed)
        clock = ManualClock()
        rules = "a/=3d b/=5d,150KB c/=2d,60x =40d"
        for _ in range(3):
            async with (
                engine(tmp_path / "one", clock, retention=rules) as one,
                engine(tmp_path / "other", clock, retention=rules) as other,
            ):
                other.store.list_filed = other.store.list_streams  # type: ignore[method-assign]
                other.retention._due.is_over = lambda *_: True  # type: ignore[method-assign]
                for _ in range(6):
                    await step(one, other, chance)
                    clock.advance(chance.choice([0.1, 0.5, 1, 2]) * DAY_S)

    async def step(one: Engine, other: Engine, chance: random.Random) -> None:
        for _ in range(8):
            path = f"{chance.choice('abcd')}/{chance.randrange(6)}"
            size = chance.choice([5, 900, 70_000])
            for each in (one, other):
                await append(each, path, size)
        earliest = []
        for each in (one, other):
            await each.retention.enforce()
            infos = await each.store.list_streams("", "", 100)
            earliest.append([(info.path, info.earliest, info.tail) for info in infos])
        assert earliest[0] == earliest[1]

    asyncio.run(run())


def test_what_is_due_is_remembered_in_little_and_forgotten_when_it_is_over() -> None:
    due = Due()
    second = 1_000_000
    assert due.is_over(5, 0)
    due.set(5, 10 * second)
    due.set(5_000_000, 20 * second)
    assert not due.is_over(5, 10 * second - 1)
    assert due.is_over(5, 10 * second)
    assert due.is_over(6, 0)
    due.forget(15 * second)
    assert due.is_over(5, 0)
    assert not due.is_over(5_000_000, 15 * second)
    due.forget(20 * second)
    assert not due._pages


def test_when_the_next_part_of_the_index_was_begun(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        times = []
        async with engine(tmp_path, clock) as first:
            for _ in range(3):
                times.append(clock.now_us())
                await append(first, "s", 70_000)
                clock.advance(DAY_S)
        async with engine(tmp_path, clock) as second:
            stream = second.find("s", touch=False)
            block = 64 * 1024
            # The blocks begin in the first, the first, the second and the third message.
            after = [await second.store.time_after(stream, block * number) for number in range(4)]
            assert after == [times[0], times[1], times[2], times[2]]
            await append(second, "s", 10)
            assert await second.store.time_after(stream, block * 3) == clock.now_us()

    asyncio.run(run())
