"""The server's own streams, on every store: created once, read back in order, undone on failure."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import DiskFull, PenstockError, StreamNotFound
from penstock.log import open_engine
from penstock.log.engine import Engine
from penstock.log.stream import Stream
from penstock.log.system_stream import Event, SystemStream
from penstock.protocol.json_mode import SLICE_BYTES
from penstock.protocol.lifecycle import StreamConfig
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore

PATH = "__own/records"


@asynccontextmanager
async def opened(store: str, folder: Path, **options: Any) -> AsyncIterator[Engine]:
    place: dict[str, Any] = {"memory": True} if store == "memory" else {"data_dir": folder}
    engine = open_engine(Settings(**place, **options), clock=ManualClock())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def on_stores(*stores: str, **options: Any) -> Callable[[Any], Any]:
    def decorate(test: Callable[[Engine], Awaitable[None]]) -> Any:
        @pytest.mark.parametrize("store", stores or ("memory", "disk"))
        def run(store: str, tmp_path: Path) -> None:
            async def with_engine() -> None:
                async with opened(store, tmp_path, **options) as engine:
                    await asyncio.wait_for(test(engine), 20)

            asyncio.run(with_engine())

        run.__name__ = getattr(test, "__name__", "test")
        return run

    return decorate


def event(key: str, value: int) -> Event:
    return {"type": "t", "key": key, "value": value, "headers": {"operation": "upsert"}}


async def values(stream: SystemStream) -> list[int]:
    return [each["value"] async for piece in stream.pieces() for each in piece]


class Memory:
    """An owner: a dictionary, and a stream that has all changes of it."""

    def __init__(self, engine: Engine) -> None:
        self.stream = SystemStream(engine, PATH)
        self.values: dict[str, int] = {}
        self.undone: list[int] = []

    def put(self, key: str, value: int) -> asyncio.Future[Any]:
        before = self.values.get(key)
        self.values[key] = value

        def undo() -> None:
            self.undone.append(value)
            if self.values.get(key) != value:
                return
            if before is None:
                del self.values[key]
            else:
                self.values[key] = before

        return self.stream.write([event(key, value)], undo=undo)


# -- creation


@on_stores()
async def test_it_is_created_when_it_is_first_needed(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    before = stream.exists
    assert stream.meta("x") is None
    with pytest.raises(StreamNotFound):
        stream.find()
    await stream.ensure()
    assert (before, stream.exists) == (False, True)
    assert stream.find().path == PATH


@on_stores()
async def test_concurrent_callers_create_it_once(engine: Engine) -> None:
    prepared: list[Stream] = []

    async def prepare(stream: Stream) -> None:
        prepared.append(stream)
        await asyncio.sleep(0)
        await engine.set_meta(PATH, "x", b"1")

    stream = SystemStream(engine, PATH, prepare=prepare)
    await asyncio.gather(*(stream.ensure() for _ in range(10)))
    assert [each.path for each in prepared] == [PATH]
    assert stream.meta("x") == b"1"
    await stream.ensure()
    assert len(prepared) == 1


@on_stores()
async def test_a_caller_that_is_cancelled_does_not_end_the_creation(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    first, second = (asyncio.ensure_future(stream.ensure()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert stream.exists


@on_stores()
async def test_a_creation_that_failed_is_tried_again_by_the_next_caller(engine: Engine) -> None:
    admit = engine.store.admit
    stream = SystemStream(engine, PATH)
    engine.store.admit = _full  # type: ignore[method-assign] # a full disk
    with pytest.raises(DiskFull):
        await stream.ensure()
    engine.store.admit = admit  # type: ignore[method-assign] # there is room again
    await stream.ensure()
    assert stream.exists


@on_stores(retention="=100B")
async def test_no_rule_of_retention_applies_to_it(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    await stream.ensure()
    other = SystemStream(engine, "other")
    await engine.create("other", StreamConfig("application/json", None, None), b"", closed=False)
    for each in (stream, other):
        await each.write([event("k", number) for number in range(5)])
    await engine.retention.enforce()
    assert len(await values(other)) < 5
    assert await values(stream) == [0, 1, 2, 3, 4]


# -- events


@on_stores()
async def test_events_are_read_in_the_order_they_were_written(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    await stream.ensure()
    for first in range(0, 30, 3):
        written = stream.write([event("k", number) for number in range(first, first + 3)])
    await written
    assert await values(stream) == list(range(30))


@on_stores()
async def test_many_events_come_in_pieces(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    await stream.ensure()
    padded = [{**event("k", number), "text": "x" * 1000} for number in range(600)]
    await stream.write(padded)
    pieces = [len(piece) async for piece in stream.pieces()]
    assert len(pieces) >= 3
    assert sum(pieces) == 600


@on_stores()
async def test_what_is_queued_has_been_written_when_it_has_caught_up(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    await stream.ensure()
    await stream.caught_up()
    for number in range(5):
        stream.write([event("k", number)])
    await stream.caught_up()
    assert await values(stream) == [0, 1, 2, 3, 4]


@on_stores()
async def test_a_writer_that_is_cancelled_takes_nothing_back(engine: Engine) -> None:
    memory = Memory(engine)
    await memory.stream.ensure()
    memory.put("a", 1).cancel()
    await memory.put("a", 2)
    assert await values(memory.stream) == [1, 2]
    assert (memory.values, memory.undone) == ({"a": 2}, [])


def test_it_survives_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened("disk", tmp_path) as engine:
            stream = SystemStream(engine, PATH)
            await stream.ensure()
            await stream.write([event("k", 1), event("k", 2)])
            await stream.set_meta("x", b"1")
        async with opened("disk", tmp_path) as engine:
            stream = SystemStream(engine, PATH)
            assert stream.exists
            assert stream.meta("x") == b"1"
            await stream.ensure()
            await stream.write([event("k", 3)])
            assert await values(stream) == [1, 2, 3]

    asyncio.run(test())


# -- failures


def _full(size: int) -> None:
    raise DiskFull("There is no space left.")


@on_stores()
async def test_a_write_that_is_refused_leaves_memory_as_it_was(engine: Engine) -> None:
    memory = Memory(engine)
    await memory.stream.ensure()
    await memory.put("a", 1)
    admit = engine.store.admit
    engine.store.admit = _full  # type: ignore[method-assign] # a full disk
    with pytest.raises(DiskFull):
        await memory.put("a", 2)
    assert memory.values == {"a": 1}
    engine.store.admit = admit  # type: ignore[method-assign] # there is room again
    await memory.put("a", 3)
    assert await values(memory.stream) == [1, 3]
    assert memory.undone == [2]


@on_stores()
async def test_a_write_that_is_refused_is_undone_before_the_next_one(engine: Engine) -> None:
    """Also while others are on their way, when a client is refused only after those."""
    memory = Memory(engine)
    await memory.stream.ensure()
    first = memory.put("a", 1)
    admit = engine.store.admit
    engine.store.admit = _full  # type: ignore[method-assign] # a full disk
    refused = memory.put("a", 2)
    assert (memory.values, memory.undone) == ({"a": 1}, [2])
    engine.store.admit = admit  # type: ignore[method-assign] # there is room again
    await memory.put("a", 3)
    await first
    assert isinstance(refused.exception(), DiskFull)
    assert await values(memory.stream) == [1, 3]


@on_stores()
async def test_a_long_write_is_decided_at_once_too(engine: Engine) -> None:
    stream = SystemStream(engine, PATH)
    await stream.ensure()
    long = stream.write([{**event("k", 1), "text": "x" * 2 * SLICE_BYTES}])
    assert engine.pending(stream.find()).tail > SLICE_BYTES
    await long


@on_stores()
async def test_a_write_before_the_creation_is_refused(engine: Engine) -> None:
    memory = Memory(engine)
    with pytest.raises(StreamNotFound):
        await memory.put("a", 1)
    assert memory.values == {}


def test_writes_that_fail_together_are_undone_in_reverse(tmp_path: Path) -> None:
    async def test() -> None:
        fault = Fault()
        settings = small_settings(tmp_path)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        memory = Memory(engine)
        await memory.stream.ensure()
        await memory.put("a", 1)
        fault.strike_next("write", errno.ENOSPC)
        writes = [memory.put("a", number) for number in (2, 3, 4)]
        assert memory.values == {"a": 4}
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(each, PenstockError) for each in results)
        assert memory.values == {"a": 1}
        assert memory.undone == [4, 3, 2]
        await memory.put("a", 5)
        assert await values(memory.stream) == [1, 5]
        await engine.stop()

    asyncio.run(test())


def test_whoever_waits_sees_memory_as_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        fault = Fault()
        settings = small_settings(tmp_path)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        memory = Memory(engine)
        await memory.stream.ensure()
        fault.strike_next("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await memory.put("a", 1)
        assert memory.values == {}
        await engine.stop()

    asyncio.run(test())


def test_what_rests_on_a_change_that_fails_is_told_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        fault = Fault()
        settings = small_settings(tmp_path)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        memory = Memory(engine)
        await memory.stream.ensure()
        await memory.put("a", 1)
        fault.strike_next("write", errno.ENOSPC)
        changed = memory.put("a", 2)
        plain = memory.stream.write([event("b", 1)])
        with pytest.raises(DiskFull):
            await memory.stream.caught_up()
        assert (memory.values, memory.stream.undone) == ({"a": 1}, 1)
        await memory.stream.caught_up()  # Nothing is queued that memory could lose.
        assert all(isinstance(each.exception(), DiskFull) for each in (changed, plain))
        fault.strike_next("write", errno.ENOSPC)
        plain = memory.stream.write([event("b", 2)])
        await memory.stream.caught_up()  # It has no undo: its owner writes it again.
        assert isinstance(plain.exception(), DiskFull)
        assert memory.stream.undone == 1
        await engine.stop()

    asyncio.run(test())
