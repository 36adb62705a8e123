"""The registry of listeners and mirrors: what is in memory is what is stored."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DiskFull
from penstock.log.engine import Engine
from penstock.state.server.indexer import StateIndexer
from penstock.stp.server.registry import Follow, Listener, Registry
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore

FIRST = Listener(table="t", nurl="http://a.example/n", surl="http://own.example/t", event="x")
GIVEN_UP = Listener(
    table="t",
    nurl="http://a.example/n",
    surl="http://own.example/t",
    event="x",
    state="given-up",
    reason="it answered 500",
)
MIRROR = Follow(table="m", surl="http://b.example/t", stream=7)


def _run(folder: Path, test: Any) -> None:
    async def run() -> None:
        fault, settings = Fault(), small_settings(folder)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        indexer = StateIndexer(engine, settings)
        try:
            await asyncio.wait_for(test(engine, indexer, fault), 20)
        finally:
            await engine.stop()

    asyncio.run(run())


async def _check(registry: Registry, engine: Engine, indexer: StateIndexer) -> None:
    """Memory is what is stored."""
    stored = Registry(engine, indexer)
    await stored.load()
    assert stored.listeners == registry.listeners
    assert stored.follows == registry.follows
    assert +stored.listener_hosts == +registry.listener_hosts
    assert +stored.follow_hosts == +registry.follow_hosts


def test_entries_are_read_back(tmp_path: Path) -> None:
    async def test(engine: Engine, indexer: StateIndexer, fault: Fault) -> None:
        registry = Registry(engine, indexer)
        assert await registry.put(FIRST)
        assert not await registry.put(FIRST)
        assert await registry.put(MIRROR)
        assert await registry.put(GIVEN_UP)
        registry.last_notified = {FIRST.key: 12, "nobody": 3}
        await registry.save_last_notified()
        await _check(registry, engine, indexer)
        stored = Registry(engine, indexer)
        await stored.load()
        assert stored.last_notified == {FIRST.key: 12}
        await registry.remove(MIRROR)
        await _check(registry, engine, indexer)
        assert not registry.follows

    _run(tmp_path, test)


def test_a_change_that_is_not_written_is_undone(tmp_path: Path) -> None:
    async def test(engine: Engine, indexer: StateIndexer, fault: Fault) -> None:
        registry = Registry(engine, indexer)
        await registry.put(FIRST)
        for change in (registry.put(GIVEN_UP), registry.put(MIRROR), registry.remove(FIRST)):
            fault.strike_next("write", errno.ENOSPC)
            with pytest.raises(DiskFull):
                await change
            assert (registry.listeners, registry.follows) == ({FIRST.key: FIRST}, {})
            assert +registry.listener_hosts == {"a.example": 1}
            assert not +registry.follow_hosts
            await _check(registry, engine, indexer)

    _run(tmp_path, test)


def test_changes_that_fail_together_are_all_undone(tmp_path: Path) -> None:
    async def test(engine: Engine, indexer: StateIndexer, fault: Fault) -> None:
        registry = Registry(engine, indexer)
        await registry.put(FIRST)
        fault.strike_next("write", errno.ENOSPC)
        changes = (registry.put(GIVEN_UP), registry.remove(FIRST))
        results = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(each) for each in results] == [DiskFull] * 2
        assert registry.listeners == {FIRST.key: FIRST}
        await _check(registry, engine, indexer)

    _run(tmp_path, test)


def test_a_repeat_is_not_confirmed_before_the_first_is_written(tmp_path: Path) -> None:
    async def test(engine: Engine, indexer: StateIndexer, fault: Fault) -> None:
        registry = Registry(engine, indexer)
        await registry.put(FIRST)
        for change in (registry.put, registry.remove):
            entry = MIRROR if change == registry.put else FIRST
            fault.strike_next("write", errno.ENOSPC)
            first = asyncio.ensure_future(change(entry))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(change(entry))
            results = await asyncio.gather(first, second, return_exceptions=True)
            assert [type(each) for each in results] == [DiskFull, DiskFull]
            await _check(registry, engine, indexer)

    _run(tmp_path, test)
