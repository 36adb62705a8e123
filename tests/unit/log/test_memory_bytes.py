"""`StoreStats.memory_bytes`, the gauge `penstock_tail_bytes`: the sum over active streams."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import DiskFull, PenstockError
from penstock.log import open_engine
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.log.mutations import Barrier
from penstock.log.requests import Append, Fork
from penstock.protocol.lifecycle import ForkConfig
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.log import TINY, abandon, shrink_blocks
from tests.unit.log.bench import JSON, Bench, with_bench

STEPS = 250
PATHS = tuple("abcdef")
OPERATIONS = {
    "create": 4,
    "append": 12,
    "delete": 2,
    "trim": 2,
    "fork": 2,
    "snapshot": 1,
    "expire": 1,
    "read": 4,
    "checkpoint": 2,
    "evict": 3,
    "crash": 1,
}


def in_memory(engine: Engine) -> int:
    """The bytes of all chunks of active streams, counted one by one."""
    streams = engine._streams._by_path.values()
    return sum(len(chunk.data) for stream in streams for chunk in stream.memory.chunks)


class Random:
    """Random operations on an engine, some of which are refused."""

    def __init__(self, engine: Engine, seed: int, clock: ManualClock) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.clock = clock

    async def step(self, operation: str) -> None:
        path = self.random.choice(PATHS)
        engine = self.engine
        body = b'["%s"]' % (b"x" * self.random.choice((1, 30, 200, 900)))
        match operation:
            case "create":
                ttl_s = self.random.choice((None, None, 10))
                await engine.create(path, JSON._replace(ttl_s=ttl_s), body, closed=False)
            case "append":
                await engine.append(path, Append(body, JSON.content_type, False, None, None, None))
            case "delete":
                await engine.delete(path)
            case "trim":
                await engine.trim(path, self.random.choice(("now", "-1")))
            case "fork":
                fork = Fork(self.random.choice(PATHS), None, 0)
                await engine.fork(path, fork, ForkConfig(None, None, None), b"", closed=False)
            case "snapshot":
                recording = engine.record(engine.find(path, touch=False))
                try:
                    await engine.snapshot(recording, b"1,\n", 1)
                finally:
                    engine.stop_recording(recording)
            case "expire":
                self.clock.advance(11)
                await engine.reap()
                await committed(engine)
            case "read":
                stream = engine.find(path, touch=True)
                await engine.read(stream, stream.earliest, stream.tail)
            case "evict":
                engine._streams.evict()

    async def run(self, operations: dict[str, int]) -> set[int]:
        """Take the steps; return the sums that were seen."""
        seen = set()
        for operation in self.random.choices(*zip(*operations.items(), strict=True), k=STEPS):
            store = self.engine.store
            if operation == "checkpoint" and isinstance(store, DiskStore):
                assert await store.checkpoint()
            elif operation == "crash" and isinstance(store, DiskStore):
                self.engine = await reopened(self.engine, store)
            else:
                try:
                    await self.step(operation)
                except PenstockError:
                    pass  # no such stream, or one that does not go with the request
            assert self.engine.store.stats.memory_bytes == in_memory(self.engine), operation
            seen.add(self.engine.store.stats.memory_bytes)
        return seen


async def committed(engine: Engine) -> None:
    """Wait until everything that was submitted before is durable."""
    barrier = Barrier()
    barrier.future = asyncio.get_running_loop().create_future()
    engine.store.submit(barrier)
    await barrier.future


async def reopened(engine: Engine, store: DiskStore) -> Engine:
    """The engine that starts after the process of this one was killed."""
    engine._reap_task.cancel()
    engine._retention_task.cancel()
    await abandon(store)
    fresh = open_engine(store._settings, clock=engine._clock)
    await fresh.start()
    return fresh


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_sum_over_active_streams_after_every_step(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink_blocks(monkeypatch)
    where = {"data_dir": tmp_path, "durability": "buffered"} if kind == "disk" else {"memory": True}

    async def main() -> None:
        clock = ManualClock()
        settings = Settings(**{**TINY, **where, "active_streams_max": 2})
        engine = open_engine(settings, clock=clock)
        await engine.start()
        steps = Random(engine, seed, clock)
        try:
            seen = await steps.run(OPERATIONS)
        finally:
            await steps.engine.stop()
        assert len(seen) > 20

    asyncio.run(asyncio.wait_for(main(), 60))


@with_bench(active_streams_max=1)
async def test_a_checkpoint_a_deletion_and_an_eviction_take_bytes_off(bench: Bench) -> None:
    stats = bench.store.stats
    await bench.create("large", b'["%s"]' % (b"x" * 500))
    await bench.create("small", b"[1]")
    await bench.create("deleted", b"[12]")
    assert stats.memory_bytes == 504 + 3 + 4
    await bench.engine.delete("deleted")
    assert stats.memory_bytes == 504 + 3
    await bench.checkpoint()
    assert stats.memory_bytes == 3, "a small stream lives in the catalog and stays in memory"
    await bench.push_out("small")
    assert stats.memory_bytes == 0
    await bench.append("small", b"2")
    assert stats.memory_bytes == 6


@with_bench()
async def test_what_is_replayed_after_a_crash_counts(bench: Bench) -> None:
    await bench.create("a", b'["%s"]' % (b"x" * 500))
    await bench.crash()
    assert bench.store.stats.memory_bytes == 504


def test_a_batch_that_fails_leaves_the_sum_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        fault = Fault()
        engine = await start(small_settings(tmp_path), files=FaultFiles(fault), make=FaultStore)
        try:
            await engine.create("a", JSON, b"[1]", closed=False)
            fault.strike_next("write", errno.ENOSPC)
            with pytest.raises(DiskFull):
                await engine.create("b", JSON, b"[22]", closed=False)
            assert engine.store.stats.memory_bytes == in_memory(engine) == 3
        finally:
            await engine.stop()

    asyncio.run(main())
