"""Runs a scenario on a recording disk, pulls the plug at chosen steps, and checks what is left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pytest

from penstock.clock import Clock, ManualClock
from penstock.config.settings import Settings
from penstock.errors import StreamRecreated
from penstock.log.disk.files import Files
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.engine import Engine
from penstock.log.offline.verify import verify
from penstock.object_store import MemoryStore, ObjectStore
from tests.crash.engines import (
    BYTES,
    START_US,
    QuickStore,
    abandon,
    append,
    disk,
    observe,
    small_settings,
    start,
)
from tests.crash.power import Image, Luck, PowerFiles, PowerStore, Record
from tests.crash.scenario import Operation, Scenario, State, is_same, states_after, surviving

ROOT = PurePath("new/data")
"""Two folders that the store has to make itself."""
DAY_US = 86_400_000_000
ODDS = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)


class Run(NamedTuple):
    record: Record
    operations: list[Operation]


def never(path: Path) -> bool:
    return False


def recording(
    base: Path, record: Record, *, skips: Callable[[Path], bool] = never, queued: bool = False
) -> Callable[..., PowerStore]:
    """What makes a store in `base` whose every step is recorded."""

    def make(settings: Settings, *, clock: Clock, files: Files | None) -> PowerStore:
        power_files = PowerFiles(base, record, skips=skips, queued=queued)
        store = PowerStore(settings, clock=clock, files=power_files)
        store.record, store.skips = record, skips
        return store

    return make


async def record_run(
    base: Path,
    seed: int,
    bursts: int,
    *,
    skips: Callable[[Path], bool] = never,
    start_from: Image | None = None,
    after: tuple[Sequence[Operation], int] = ((), 0),
    queued: bool = False,
    **options: Any,
) -> Run:
    """One scenario from start to a sudden end. `after` is what ran before it, up to which step.
    With `queued`, the journal has a queue, however long its writes take."""
    if queued:
        options = {"in_place_commit_us": 10**9, "journal_file_bytes": 10_000, **options}
    record = Record(start_from)
    record.start.write_to(base, root=ROOT)
    # Time goes on between two runs, else nothing would expire in the second.
    clock = ManualClock(START_US + (DAY_US if after[0] else 0))
    make = recording(base, record, skips=skips, queued=queued)
    engine = await start(small_settings(base / ROOT, **options), clock=clock, make=make)
    try:
        scenario = Scenario(seed, engine, clock, record, tag=f"{seed}-")
        operations, cut = after
        if operations:
            # What a reader can see is a promise, whether it was acknowledged before the end or not.
            count = surviving(operations, await observe(engine), cut)
            scenario.resume(operations[:count])
        opened_at = len(record)
        for operation in scenario.operations:
            operation.answered_at = opened_at
        await scenario.run(bursts)
    finally:
        await abandon(engine)
    return Run(record, scenario.operations)


async def check_cuts(run: Run, cuts: Iterable[int], seed: int, **options: Any) -> None:
    """Pull the plug after each of so many steps, with another luck each time."""
    for cut, image in run.record.images(cuts):
        luck = Luck(seed * 1_000_003 + cut, ODDS[(cut + seed) % len(ODDS)])
        await check_left(image.after_power_loss(luck), run.operations, cut, **options)


async def check_left(image: Image, operations: list[Operation], cut: int, **options: Any) -> None:
    """A fresh engine finds what was promised, takes more, and finds it all once again."""
    with tempfile.TemporaryDirectory(prefix="penstock-power-") as name:
        base = Path(name)
        image.write_to(base, root=ROOT)
        settings = small_settings(base / ROOT, **options)
        if (base / ROOT / CATALOG_FILE).exists():
            assert verify(base / ROOT).problems == []
        make = _with_objects(image.objects)
        engine = await start(settings, make=make)
        try:
            seen = await observe(engine)
            count = surviving(operations, seen, cut)
            states = states_after(operations[:count])
            await _check_old_offsets(engine, operations, cut)
            await _check_retries(engine, states)
            await _write_on(engine, operations, states, cut)
            assert await disk(engine).checkpoint()
            assert is_same(await observe(engine), states)
            await _write_on(engine, operations, states, cut)
        finally:
            await (abandon(engine) if cut % 2 else engine.stop())
        engine = await start(settings, make=make)
        try:
            assert is_same(await observe(engine), states)
            await _check_retries(engine, states)
        finally:
            await engine.stop()
        assert verify(base / ROOT).problems == []


def _with_objects(objects: dict[str, bytes]) -> Callable[..., QuickStore]:
    """What makes a store that finds these objects."""
    left = MemoryStore()
    for key, data in objects.items():
        left.put(key, data)

    class Left(QuickStore):
        def open_objects(self) -> ObjectStore:
            return left

    return Left


async def _check_retries(engine: Engine, states: dict[str, State]) -> None:
    """A writer that never heard of its last append sends it again, and nothing is doubled."""
    for state in states.values():
        for last in state.producers.values():
            if state.soft_deleted or (state.closed and not last.close):
                continue
            answer = await last.submit(engine)
            assert answer.duplicate
            assert answer.producer == last.producer[1:] if last.producer else None


async def _check_old_offsets(engine: Engine, operations: list[Operation], cut: int) -> None:
    """An offset that was given out for a deleted stream is refused by the one after it."""
    present = {info.path: info.id for info in await engine.list_streams("", "", 1000)}
    for operation in operations:
        if operation.offset is None or operation.answered_at is None:
            continue
        generation = int(operation.offset.partition("_")[0])
        if operation.answered_at <= cut and generation != present.get(operation.path, generation):
            stream = engine.find(operation.path, touch=False)
            assert generation < stream.id
            with pytest.raises(StreamRecreated):
                await engine.position(stream, operation.offset)


async def _write_on(
    engine: Engine, operations: list[Operation], states: dict[str, State], cut: int
) -> None:
    generations = [
        int(each.offset[:16]) for each in operations if each.offset and _is_past(each, cut)
    ]
    path = f"new/{len(states)}"
    created = await engine.create(path, BYTES, b"first", closed=False)
    states[path] = State(path)
    states[path].payload = b"first"
    assert int(created.offset[:16]) > max(generations, default=0), "a generation was used twice"
    for path, state in states.items():
        if not state.closed and not state.soft_deleted:
            more = Operation(path, "append", b'"more"' + b" " * 300)
            if path.startswith("j/"):
                more.body = more.body.strip()
            await more.submit(engine)
            state.payload += more.wire
    await engine.append(path, append(b"", close=True))
    states[path].closed = True


def _is_past(operation: Operation, cut: int) -> bool:
    return operation.answered_at is not None and operation.answered_at <= cut
