"""While the journal's sync is held back, nobody is told or shown anything that rests on it.

A repeat, a conflict or a refusal that follows from an operation in flight waits for that operation,
and fails with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    ForkSourceDeleted,
    PathBlocked,
    PenstockError,
    SequenceGap,
    StoreReadOnly,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamSoftDeleted,
    TailMoved,
)
from penstock.log.disk.files import File, Files
from penstock.log.disk.journal import batch_bytes, find_batches
from penstock.log.engine import Engine
from penstock.log.requests import Fork
from penstock.protocol.headers import Producer
from tests.crash.engines import (
    BYTES,
    JSON,
    UnsyncedFiles,
    abandon,
    append,
    disk,
    observe,
    read_all,
    small_settings,
    start,
)
from tests.crash.scenario import NO_WISHES

TIMEOUT_S = 20
CLOSED = BYTES._replace(ttl_s=60)


class Gate:
    """Holds syncs of the journal back until it is opened, for better or worse."""

    def __init__(self) -> None:
        self.is_closed = False
        self.fails = False
        self.reached = threading.Event()
        self._open = threading.Event()

    def close(self) -> None:
        self.is_closed = True

    def open(self, *, fails: bool = False) -> None:
        self.fails = fails
        self._open.set()

    def wait(self, path: Path) -> None:
        if self.is_closed and path.suffix == ".journal":
            self.reached.set()
            assert self._open.wait(TIMEOUT_S)
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


class GatedFile(File):
    __slots__ = ("gate",)
    gate: Gate

    def sync_data(self) -> None:
        self.gate.wait(self.path)


class GatedFiles(UnsyncedFiles):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def open_write(self, path: Path) -> File:
        file = GatedFile(path, Files.open_write(self, path)._fd)
        file.gate = self._gate
        return file


Ask = Callable[[Engine], Awaitable[Any]]


def _append(path: str, body: bytes = b"new", **options: Any) -> Ask:
    async def ask(engine: Engine) -> Any:
        return await engine.append(path, append(body, **options))

    return ask


def _create(path: str, body: bytes = b"", *, closed: bool = False, **options: Any) -> Ask:
    async def ask(engine: Engine) -> Any:
        return await engine.create(path, BYTES._replace(**options), body, closed=closed)

    return ask


def _delete(path: str) -> Ask:
    async def ask(engine: Engine) -> Any:
        return await engine.delete(path)

    return ask


P0, P1, P3 = Producer("p", 0, 0), Producer("p", 0, 1), Producer("p", 0, 3)


def _fork(path: str, source: str = "a") -> Ask:
    async def ask(engine: Engine) -> Any:
        return await engine.fork(path, Fork(source, None, 0), NO_WISHES, b"", closed=False)

    return ask


def _trim(path: str) -> Ask:
    async def ask(engine: Engine) -> Any:
        return await engine.trim(path, "now")

    return ask


def _then(*asks: Ask) -> Ask:
    """Several at once, decided in this order; the answer of the last."""

    async def ask(engine: Engine) -> Any:
        return (await asyncio.gather(*[each(engine) for each in asks]))[-1]

    return ask


ANSWERS = [
    pytest.param(_fork("b"), _fork("b"), "existing", id="repeated-fork"),
    pytest.param(_fork("b"), _create("b"), StreamExists, id="put-of-just-forked"),
    pytest.param(_delete("a"), _fork("b"), StreamNotFound, id="fork-of-just-deleted"),
    pytest.param(
        _then(_fork("b"), _delete("a")),
        _append("a"),
        StreamSoftDeleted,
        id="append-to-soft-deleted",
    ),
    pytest.param(
        _then(_fork("b"), _delete("a")), _create("a"), PathBlocked, id="put-of-just-soft-deleted"
    ),
    pytest.param(
        _then(_fork("b"), _delete("a")), _fork("c"), ForkSourceDeleted, id="fork-of-soft-deleted"
    ),
    pytest.param(
        _then(_fork("b"), _delete("a"), _delete("b")),
        _append("a"),
        StreamNotFound,
        id="append-to-what-went-with-its-last-fork",
    ),
    pytest.param(_trim("a"), _trim("a"), "trimmed", id="trim-again"),
    pytest.param(
        _append("a", producer=P0), _append("a", producer=P0), "duplicate", id="duplicate-append"
    ),
    pytest.param(_create("b"), _create("b"), "existing", id="repeated-put"),
    pytest.param(
        _append("a", b"", close=True), _append("a", b"", close=True), "duplicate", id="close-again"
    ),
    pytest.param(
        _append("a", producer=P0, close=True),
        _append("a", producer=P0, close=True),
        "duplicate",
        id="repeat-of-the-closing-append",
    ),
    pytest.param(
        _append("a", b"", close=True), _append("a"), StreamClosed, id="append-to-just-closed"
    ),
    pytest.param(_delete("a"), _append("a"), StreamNotFound, id="append-to-just-deleted"),
    pytest.param(_delete("a"), _delete("a"), StreamNotFound, id="delete-again"),
    pytest.param(
        _append("a"),
        _append("a", expected=f"{1:016d}_{5:016d}"),
        TailMoved,
        id="tail-that-just-moved",
    ),
    pytest.param(_create("b"), _create("b", ttl_s=60), StreamExists, id="put-of-another-kind"),
    pytest.param(
        _append("a", b"", close=True), _create("a"), StreamExists, id="put-of-just-closed"
    ),
    pytest.param(
        _append("a", producer=P0), _append("a", producer=P3), SequenceGap, id="gap-after-pending"
    ),
]


async def _held(folder: Path) -> tuple[Engine, Gate]:
    gate = Gate()
    engine = await start(small_settings(folder), files=GatedFiles(gate))
    await engine.create("a", BYTES, b"start", closed=False)
    gate.close()
    return engine, gate


async def _ask(engine: Engine, gate: Gate, *asks: Ask) -> list[asyncio.Task[Any]]:
    """Ask for everything; return when the first sync is being held and all have been decided."""
    tasks = []
    for ask in asks:
        tasks.append(asyncio.ensure_future(ask(engine)))
        await asyncio.sleep(0)
    assert await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
    for _ in range(20):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("first", "second", "answer"), ANSWERS)
def test_answer_waits_for_what_it_rests_on(
    tmp_path: Path, first: Ask, second: Ask, answer: str | type[PenstockError]
) -> None:
    async def run() -> None:
        engine, gate = await _held(tmp_path)
        before = await observe(engine)
        tasks = await _ask(engine, gate, first, second)
        assert [task.done() for task in tasks] == [False, False]
        assert await observe(engine) == before
        gate.open()
        await asyncio.wait_for(tasks[0], TIMEOUT_S)
        if isinstance(answer, str):
            result = await asyncio.wait_for(tasks[1], TIMEOUT_S)
            if answer == "trimmed":
                assert result == engine.earliest(engine.find("a", touch=False))
            else:
                assert result.duplicate if answer == "duplicate" else not result.created
        else:
            with pytest.raises(answer):
                await asyncio.wait_for(tasks[1], TIMEOUT_S)
        await engine.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("first", "second", "answer"), ANSWERS)
def test_answer_fails_with_what_it_rests_on(
    tmp_path: Path, first: Ask, second: Ask, answer: object
) -> None:
    async def run() -> None:
        engine, gate = await _held(tmp_path)
        before = await observe(engine)
        tasks = await _ask(engine, gate, first, second)
        gate.open(fails=True)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [StoreReadOnly, StoreReadOnly]
        assert await observe(engine) == before
        assert not engine.health().writable
        await abandon(engine)

    asyncio.run(run())


class _Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes, bool]] = []
        self.is_over = False

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self.seen.append((start, end, wire, closed))

    def ended(self) -> None:
        self.is_over = True


def test_readers_see_nothing_that_is_not_durable(tmp_path: Path) -> None:
    """Not the bytes, not the end, not the new stream and not the deletion."""

    async def run() -> None:
        engine, gate = await _held(tmp_path)
        gate.is_closed = False
        await engine.create("gone", JSON, b"[1]", closed=False)
        gate.close()
        stream, watcher, doomed = engine.find("a", touch=False), _Watcher(), _Watcher()
        engine.watch(stream, watcher)
        engine.watch(engine.find("gone", touch=False), doomed)
        tasks = await _ask(
            engine, gate, _append("a", close=True), _create("b", b"first"), _delete("gone")
        )
        recreated = engine.create("gone", BYTES, b"other", closed=False)
        assert (stream.tail, stream.count, stream.closed) == (5, 1, False)
        assert await read_all(engine, "a") == b"start"
        assert await read_all(engine, "gone") == b"1,\n"
        with pytest.raises(StreamNotFound):
            engine.find("b", touch=False)
        assert [info.path for info in await engine.list_streams("", "", 9)] == ["a", "gone"]
        assert (await engine.list_streams("gone", "", 9))[0].content_type == JSON.content_type
        assert (watcher.seen, doomed.is_over) == ([], False)
        gate.open()
        await asyncio.wait_for(asyncio.gather(*tasks, recreated), TIMEOUT_S)
        assert watcher.seen == [(5, 8, b"new", True)]
        assert doomed.is_over
        assert await read_all(engine, "gone") == b"other"
        assert [info.path for info in await engine.list_streams("", "", 9)] == ["a", "b", "gone"]
        await engine.stop()

    asyncio.run(run())


def test_checkpoint_takes_nothing_that_is_not_durable(tmp_path: Path) -> None:
    async def run() -> None:
        engine, gate = await _held(tmp_path)
        tasks = await _ask(engine, gate, _append("a", producer=P0, close=True), _create("b"))
        assert await disk(engine).checkpoint()
        gate.open(fails=True)
        await asyncio.gather(*tasks, return_exceptions=True)
        await abandon(engine)
        (path,) = (tmp_path / "journal").iterdir()
        data = path.read_bytes()
        scan = find_batches(data, path.name)
        assert scan is not None
        # As if the failed sync had lost the batch.
        durable = data[: scan.end - batch_bytes(scan.batches[-1])]
        path.write_bytes(durable.ljust(len(data), b"\0"))
        engine = await start(small_settings(tmp_path))
        assert await read_all(engine, "a") == b"start"
        assert not engine.find("a", touch=False).closed
        assert not (await engine.append("a", append(b"+", producer=P0))).duplicate
        await engine.stop()

    asyncio.run(run())
