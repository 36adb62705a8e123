"""The last step of a snapshot: decided on what is pending, and only if all of that was recorded."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import DiskFull, Overloaded, StreamClosed, StreamNotFound
from penstock.log.engine import Engine
from penstock.log.recording import Recording
from tests.crash.engines import JSON, append, read_all, small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore

Test = Callable[[Engine, Fault], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    async def with_engine(test: Test) -> None:
        fault = Fault()
        settings = small_settings(tmp_path)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        try:
            await engine.create("a", JSON, b"[1]", closed=False)
            await test(engine, fault)
        finally:
            await engine.stop()

    return lambda test: asyncio.run(with_engine(test))


def post(engine: Engine, body: bytes, *, close: bool = False) -> asyncio.Future[object]:
    return asyncio.ensure_future(engine.append("a", append(body, config=JSON, close=close)))


def record(engine: Engine) -> Recording:
    return engine.record(engine.find("a", touch=False))


def test_what_is_pending_is_recorded_and_may_be_replaced(run: Callable[[Test], None]) -> None:
    async def test(engine: Engine, fault: Fault) -> None:
        early = post(engine, b"2")
        recording = record(engine)
        late = post(engine, b"[3,4]")
        assert recording.parts == [b"3,\n4,\n"]
        assert not recording.ready.done()
        done = engine.snapshot(recording, b"10,\n", 1)
        after = post(engine, b"5")
        await asyncio.gather(early, late, done, after)
        assert recording.ready.done()
        assert await read_all(engine, "a") == b"10,\n5,\n"
        assert (await done).ordinal == 4
        engine.stop_recording(recording)
        await post(engine, b"6")
        assert recording.parts[-1] == b"5,\n"

    run(test)


def test_an_append_that_is_lost_with_its_batch_is_no_part_of_a_snapshot(
    run: Callable[[Test], None],
) -> None:
    async def test(engine: Engine, fault: Fault) -> None:
        recording = record(engine)
        fault.strike_next("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await post(engine, b"2")
        assert recording.is_broken
        await post(engine, b"3")  # as long as the one that was lost
        with pytest.raises(Overloaded):
            await engine.snapshot(recording, b"10,\n", 1)
        assert await read_all(engine, "a") == b"1,\n3,\n"

    run(test)


def test_a_snapshot_that_is_lost_leaves_the_stream_as_it_was(run: Callable[[Test], None]) -> None:
    async def test(engine: Engine, fault: Fault) -> None:
        recording = record(engine)
        fault.strike_next("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await engine.snapshot(recording, b"10,\n", 1)
        await post(engine, b"2")
        assert await read_all(engine, "a") == b"1,\n2,\n"
        assert engine.find("a", touch=False).earliest == 0

    run(test)


def test_a_trim_in_between_asks_for_another_snapshot(run: Callable[[Test], None]) -> None:
    async def test(engine: Engine, fault: Fault) -> None:
        recording = record(engine)
        await engine.trim("a", "now")
        with pytest.raises(Overloaded):
            await engine.snapshot(recording, b"10,\n", 1)

    run(test)


def test_what_is_closed_or_deleted_takes_none(run: Callable[[Test], None]) -> None:
    async def test(engine: Engine, fault: Fault) -> None:
        recording = record(engine)
        closing = post(engine, b"", close=True)
        await asyncio.sleep(0)
        with pytest.raises(StreamClosed):
            await engine.snapshot(recording, b"10,\n", 1)
        await closing
        deleting = engine.delete("a")
        with pytest.raises(StreamNotFound):
            await engine.snapshot(recording, b"10,\n", 1)
        await deleting

    run(test)
