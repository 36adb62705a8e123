"""A store that moves segments is killed at every step: nothing is lost, nothing is left over.

A step is a call of the object store, a transaction of the catalog or the removal of a file, and the
end comes before it or after it.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.engine import Engine
from penstock.log.offline.folder import open_folder
from penstock.log.offline.verify import verify
from penstock.object_store import MemoryStore, ObjectStore
from tests.crash.engines import (
    BYTES,
    QuickCatalog,
    UnsyncedFiles,
    abandon,
    append,
    observe,
    small_blocks,
    small_settings,
    start,
)
from tests.helpers.tiered import ColdStore, TestObjects


class Killed(Exception):
    """The process has come to its end."""


class Steps:
    """Counts the steps, and is dead from number `last` on."""

    def __init__(self, last: int = 1 << 30) -> None:
        self.last = last
        self.count = 0
        self._lock = threading.Lock()

    def step(self, operation: str = "") -> None:
        with self._lock:
            self.count += 1
            if self.count >= self.last:
                raise Killed


class SteppedFiles(UnsyncedFiles):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def remove(self, path: Path) -> None:
        if path.suffix != ".segment":
            super().remove(path)
            return
        self._steps.step()
        super().remove(path)
        self._steps.step()


class SteppedCatalog(QuickCatalog):
    steps: Steps

    def commit(self, changes: Changes) -> None:
        self.steps.step()
        super().commit(changes)
        self.steps.step()


class SteppedStore(ColdStore):
    steps: Steps

    def open_catalog(self) -> Catalog:
        catalog = SteppedCatalog(self._root / CATALOG_FILE)
        catalog.steps = self.steps
        return catalog


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


async def open_engine(folder: Path, objects: ObjectStore, steps: Steps) -> Engine:
    settings = small_settings(
        folder,
        tier_url="memory://",
        tier_after_s=0,
        tier_interval_s=3600,
        tier_concurrency=1,
        checkpoint_interval_s=3600,
        checkpoint_bytes=1 << 30,
    )
    counting = TestObjects(objects)
    counting.before = counting.after = steps.step

    def make(settings: Settings, *, clock: ManualClock, files: None) -> SteppedStore:
        store = SteppedStore(settings, clock=clock, files=SteppedFiles(steps))
        store.steps, store.objects = steps, counting
        return store

    return await start(settings, make=make)


def cold_store(engine: Engine) -> SteppedStore:
    assert isinstance(engine.store, SteppedStore)
    return engine.store


async def fill(engine: Engine, path: str, number: int) -> None:
    await engine.create(path, BYTES, b"", closed=False)
    for each in range(number):
        await engine.append(path, append(b"%s %d," % (path.encode(), each) * 60))
        if each % 5 == 4:  # later bytes may begin a segment
            assert await cold_store(engine)._schedule.checkpoint()


async def prepare(folder: Path, objects: ObjectStore) -> None:
    """Streams with cold segments, and others that are to become so."""
    engine = await open_engine(folder, objects, Steps())
    for path in ("deleted", "trimmed", "cold"):
        await fill(engine, path, 20)
    assert await cold_store(engine).checkpoint()
    await fill(engine, "local", 20)
    assert await cold_store(engine)._schedule.checkpoint()
    await engine.stop()


async def work(engine: Engine) -> None:
    """All that a server does with cold segments."""
    await engine.delete("deleted")
    await engine.trim("trimmed", "now")
    await engine.append("trimmed", append(b"after"))
    assert await cold_store(engine).checkpoint()


def named(folder: Path) -> tuple[set[str], set[str]]:
    """The objects that the catalog needs, and those that it is about to remove."""
    with open_folder(folder) as opened:
        cold = {each.object for each in opened.catalog.cold_segments()}
        return cold, opened.catalog.objects() - cold


def cold_files(folder: Path) -> list[Path]:
    with open_folder(folder) as opened:
        paths = [
            opened.segments.data_path(each.stream_id, each.base)
            for each in opened.catalog.cold_segments()
        ]
    return [path for path in paths if path.exists()]


async def run_to(last: int, folder: Path, objects: MemoryStore) -> bool:
    """Run until step `last`; return whether it was reached. Then check what is left."""
    steps = Steps()
    engine = await open_engine(folder, objects, steps)
    before = await observe(engine)
    steps.count, steps.last = 0, last
    reached = False
    try:
        await work(engine)
    except (Killed, AssertionError):
        reached = True
    steps.last = 1 << 30
    # The end of the process: what the journal has is there.
    await abandon(engine)
    assert verify(folder).problems == []
    cold, doomed = named(folder)
    names = {blob.key for blob in objects.list()}
    assert cold <= names, "the catalog names an object that does not exist"
    assert names <= cold | doomed, "an object was forgotten"
    engine = await open_engine(folder, objects, Steps())
    try:
        seen = await observe(engine)
        assert seen["local"] == before["local"]
        assert seen["cold"] == before["cold"]
        assert seen["trimmed"].payload in (before["trimmed"].payload, b"", b"after")
        await fill(engine, "new", 3)
        assert await cold_store(engine).checkpoint()
        assert (await observe(engine))["local"] == before["local"]
    finally:
        await engine.stop()
    assert verify(folder).problems == []
    assert named(folder) == ({blob.key for blob in objects.list()}, set())
    assert not cold_files(folder), "the file of a cold segment is still there"
    return reached


def test_a_kill_at_any_step_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    objects = MemoryStore()
    asyncio.run(prepare(tmp_path / "start", objects))
    bodies = {blob.key: objects.get(blob.key) for blob in objects.list()}
    last = 1
    while True:
        folder, copy = tmp_path / str(last), MemoryStore()
        shutil.copytree(tmp_path / "start", folder)
        for key, body in bodies.items():
            copy.put(key, body)
        reached = asyncio.run(run_to(last, folder, copy))
        shutil.rmtree(folder)
        if not reached:
            break
        last += 1
    assert last > 30, "there were hardly any steps"
