"""An expired stream whose end meets a full disk is ended when there is room again, though nobody
asks for it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import DiskFull, PathBlocked
from penstock.log.engine import Engine
from penstock.log.requests import Fork
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from tests.crash.engines import START_US, disk, small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore

JSON = "application/json"
TTL_S = 10
SHORT_LIVED = StreamConfig(JSON, TTL_S, None)
FOREVER = StreamConfig(JSON, None, None)

Test = Callable[[Engine, Fault, ManualClock], Awaitable[None]]


def _run(folder: Path, test: Test) -> None:
    async def run() -> None:
        fault, clock = Fault(), ManualClock(START_US)
        settings = small_settings(folder)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore, clock=clock)
        try:
            await asyncio.wait_for(test(engine, fault, clock), 20)
        finally:
            await engine.stop()

    asyncio.run(run())


async def _reap(engine: Engine) -> int:
    """The number of streams whose end was attempted, when it is known how that went."""
    reaped = await engine.reap()
    await disk(engine)._committer.drain()
    return reaped


def _exists(engine: Engine, path: str) -> bool:
    """Whether a stream is there, expired or not; engine.find() would end it."""
    return engine.store.load(path) is not None or engine._streams.active(path) is not None


@pytest.mark.parametrize("is_stored", [False, True])
def test_it_is_ended_at_the_next_round(tmp_path: Path, is_stored: bool) -> None:
    async def test(engine: Engine, fault: Fault, clock: ManualClock) -> None:
        for path in ("a", "b"):
            await engine.create(path, SHORT_LIVED, b"1", closed=False)
        if is_stored:
            assert await disk(engine).checkpoint()
        clock.advance(TTL_S + 1)
        for _ in range(3):
            fault.strike_next("write", errno.ENOSPC)
            assert await _reap(engine) == 2
            assert (_exists(engine, "a"), engine.stats.expired) == (True, 0)
            clock.advance(2)
        assert await _reap(engine) == 2
        assert await disk(engine).checkpoint()
        assert not _exists(engine, "a")
        assert engine.stats.expired == 2
        clock.advance(2)
        assert await _reap(engine) == 0
        assert not engine._streams._deadlines

    _run(tmp_path, test)


def test_the_source_of_an_expired_fork_does_not_stay_blocked(tmp_path: Path) -> None:
    async def test(engine: Engine, fault: Fault, clock: ManualClock) -> None:
        await engine.create("source", FOREVER, b"1", closed=False)
        await engine.fork(
            "fork", Fork("source", None, 0), ForkConfig(None, TTL_S, None), b"", closed=False
        )
        await engine.delete("source")
        with pytest.raises(PathBlocked):
            await engine.create("source", FOREVER, b"", closed=False)
        clock.advance(TTL_S + 1)
        fault.strike_next("write", errno.ENOSPC)
        assert await _reap(engine) == 1
        clock.advance(2)
        assert await _reap(engine) == 1
        assert (await engine.create("source", FOREVER, b"", closed=False)).created

    _run(tmp_path, test)


def test_it_is_ended_after_one_that_could_not_take_its_place(tmp_path: Path) -> None:
    async def test(engine: Engine, fault: Fault, clock: ManualClock) -> None:
        await engine.create("a", SHORT_LIVED, b"1", closed=False)
        clock.advance(TTL_S + 1)
        fault.strike_next("write", errno.ENOSPC)
        created = engine.create("a", FOREVER, b"2", closed=False)
        assert await engine.reap() == 0  # Another stream is on its way to this path.
        with pytest.raises(DiskFull):
            await created
        clock.advance(2)
        assert await _reap(engine) == 1
        assert await disk(engine).checkpoint()
        assert not _exists(engine, "a")

    _run(tmp_path, test)


def test_a_soft_deleted_stream_has_no_deadline(tmp_path: Path) -> None:
    async def test(engine: Engine, fault: Fault, clock: ManualClock) -> None:
        await engine.create("source", SHORT_LIVED, b"1", closed=False)
        await engine.fork(
            "fork", Fork("source", None, 0), ForkConfig(None, 1000 * TTL_S, None), b"", closed=False
        )
        clock.advance(TTL_S + 1)
        assert await _reap(engine) == 1
        clock.advance(2)
        assert await _reap(engine) == 0
        assert [path for _, _, path in engine._streams._deadlines] == ["fork"]

    _run(tmp_path, test)
