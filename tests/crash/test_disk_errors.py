"""The Nth write, sync, allocation, rename, open, removal or commit goes wrong.

Whatever was acknowledged is there afterwards. A full disk is a state that passes: the append fails
with 507, and once there is space the same append succeeds. A failed sync, and any other error of
the disk, is final: the store is read-only, says so, and still serves reads.
"""

from __future__ import annotations

import asyncio
import errno
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.errors import DiskFull, PenstockError, StoreReadOnly
from penstock.http.app import App
from penstock.http.message import Request, Response
from penstock.log.disk import checkpoint_schedule
from penstock.log.disk.journal_mark import MARK_FILE
from penstock.log.engine import Engine
from penstock.protocol.headers import Producer
from tests.crash.engines import (
    BYTES,
    abandon,
    append,
    disk,
    observe,
    read_all,
    small_blocks,
    small_settings,
    start,
)
from tests.crash.faults import OPERATIONS, SHORT, SHORT_THEN_FULL, Fault, FaultFiles, FaultStore
from tests.crash.scenario import (
    Operation,
    State,
    apply,
    config_of,
    is_same,
    states_after,
    surviving,
)

ROUNDS = 40
PATHS = ("a", "b", "j/c", "d")
ALWAYS = 1 << 60
"""A cut after everything."""
QUICK = 5


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


class Outcome(NamedTuple):
    operations: list[Operation]
    full: int
    is_read_only: bool
    checkpoints_failed: int


class Writer:
    """Appends, closes, deletes and creates; sends again what found the disk full."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(5)
        self.operations: list[Operation] = []
        self.unsure: list[Operation] = []
        self.states: dict[str, State] = {}
        self.full = 0

    async def run(self) -> bool:
        """True if it got to the end, False if the store went read-only."""
        for number in range(ROUNDS):
            paths = self._random.sample(PATHS, self._random.choice((1, 1, 3)))
            burst = [self._choose(path, number) for path in paths]
            while burst:
                burst = await self._send(burst)
                if self.unsure:
                    return False
            if number % 9 == 8:
                await disk(self._engine).checkpoint()
        return True

    async def _send(self, burst: list[Operation]) -> list[Operation]:
        results = await asyncio.gather(
            *[self._submit(operation) for operation in burst], return_exceptions=True
        )
        again = []
        for operation, result in zip(burst, results, strict=True):
            if isinstance(result, DiskFull):
                self.full += 1
                again.append(operation)
            elif isinstance(result, StoreReadOnly):
                self.unsure.append(operation)
            elif isinstance(result, BaseException):
                raise result
            else:
                operation.answered_at = 0
                self.operations.append(operation)
                apply(self.states, operation)
        return again

    async def _submit(self, operation: Operation) -> None:
        result = await operation.submit(self._engine)
        assert result is None or not getattr(result, "duplicate", False)

    def _choose(self, path: str, number: int) -> Operation:
        state = self.states.get(path)
        if state is None:
            return Operation(path, "create")
        chance = self._random.random()
        if state.closed or chance < 0.1:
            return Operation(path, "delete")
        text = f"{number}-{path[-1]}" + "x" * self._random.choice((10, 300, 900, 5000))
        body = f'"{text}"' if path.startswith("j/") else text
        if chance > 0.8 and path.startswith("j/"):
            return Operation(path, "snapshot", body.encode())
        last = state.producers.get("p")
        seq = 0 if last is None or last.producer is None else last.producer.seq + 1
        producer = Producer("p", 0, seq) if chance < 0.6 else None
        return Operation(path, "append", body.encode(), close=chance > 0.95, producer=producer)


async def _run(folder: Path, fault: Fault, *, queued: bool) -> Outcome | None:
    """One run with one fault; None if it kept the store from opening."""
    settings = small_settings(folder)
    if queued:
        settings = small_settings(folder, in_place_commit_us=10**9, journal_file_bytes=10_000)
    files = FaultFiles(fault, queued=queued)
    try:
        engine = await start(settings, files=files, make=FaultStore)
    except (OSError, sqlite3.Error, PenstockError):
        assert fault.hit is not None
        return None
    writer = Writer(engine)
    try:
        finished = await writer.run()
        assert is_same(await observe(engine), writer.states)
        assert engine.health().ready
        is_read_only = not engine.health().writable
        assert finished or is_read_only
        if is_read_only:
            await _check_read_only(engine)
            assert is_same(await observe(engine), writer.states)
        failures = disk(engine).stats.checkpoint_failures
        assert files.queue is None or files.queue.submitted or is_read_only
    finally:
        await abandon(engine)
    return Outcome([*writer.operations, *writer.unsure], writer.full, is_read_only, failures)


async def _check_read_only(engine: Engine) -> None:
    """For good: no append, creation or deletion is taken, not even the second time."""
    assert engine.health().reason
    for _ in range(2):
        with pytest.raises(StoreReadOnly):
            await engine.create("new", BYTES, b"", closed=False)
        for info in await engine.list_streams("", "", 10):
            if not info.closed:
                with pytest.raises(StoreReadOnly):
                    await engine.append(info.path, append(b'"x"', config=config_of(info.path)))
            with pytest.raises(StoreReadOnly):
                await engine.delete(info.path)
    assert not await disk(engine).checkpoint()


async def _check_reopened(folder: Path, operations: list[Operation]) -> None:
    engine = await start(small_settings(folder))
    try:
        count = surviving(operations, await observe(engine), ALWAYS)
        states = states_after(operations[:count])
        for path, state in states.items():
            if not state.closed:
                more = Operation(path, "append", b'"more"')
                await more.submit(engine)
                apply(states, more)
        assert await disk(engine).checkpoint()
        assert is_same(await observe(engine), states)
    finally:
        await engine.stop()


def _check(folder: Path, fault: Fault, *, queued: bool) -> Outcome | None:
    outcome = asyncio.run(_run(folder, fault, queued=queued))
    asyncio.run(_check_reopened(folder, [] if outcome is None else outcome.operations))
    return outcome


def _counts(folder: Path, *, queued: bool) -> dict[str, int]:
    fault = Fault()
    outcome = _check(folder, fault, queued=queued)
    assert outcome is not None
    assert len(outcome.operations) >= ROUNDS
    return dict(fault.calls)


CASES = [
    *[(operation, code) for operation in OPERATIONS for code in (errno.EIO, errno.ENOSPC)],
    ("write", SHORT),
    ("write", SHORT_THEN_FULL),
]


def _id(value: object) -> str:
    names = {SHORT: "short", SHORT_THEN_FULL: "short-then-full"}
    return names.get(value) or errno.errorcode[value] if isinstance(value, int) else str(value)


WAYS = pytest.mark.parametrize("queued", [False, True], ids=["thread", "queue"])


@WAYS
@pytest.mark.parametrize(("operation", "code"), CASES, ids=_id)
def test_no_false_acknowledgement(tmp_path: Path, operation: str, code: int, queued: bool) -> None:
    count = _counts(tmp_path / "count", queued=queued)[operation]
    for nth in sorted(random.Random(code).sample(range(1, count + 1), min(QUICK, count))):
        _check_one(tmp_path / str(nth), Fault(operation, nth, code), queued=queued)


@pytest.mark.soak
@WAYS
@pytest.mark.parametrize(("operation", "code"), CASES, ids=_id)
def test_no_false_acknowledgement_at_any_call(
    tmp_path: Path, operation: str, code: int, queued: bool
) -> None:
    count = _counts(tmp_path / "count", queued=queued)[operation]
    for nth in range(1, count + 1):
        _check_one(tmp_path / str(nth), Fault(operation, nth, code), queued=queued)


def _check_one(folder: Path, fault: Fault, *, queued: bool) -> None:
    outcome = _check(folder, fault, queued=queued)
    if outcome is None or fault.hit is None:
        return  # it did not open, or took another course and never came to the call
    where = f"{fault.operation} {fault.nth} of {fault.hit}"
    in_journal = fault.hit.parent.name == "journal" or fault.hit.name == "journal"
    if fault.code == SHORT:
        assert not outcome.full, where
        assert not outcome.is_read_only, where
    elif fault.operation == "sync" and in_journal:
        # A write past the page cache that found no room is made again, all of it, and synced then.
        is_repeated = queued and fault.code == errno.ENOSPC
        assert outcome.is_read_only or is_repeated, where
    elif fault.code == errno.EIO:
        assert not outcome.full, where
    elif fault.code in (errno.ENOSPC, SHORT_THEN_FULL):
        assert not outcome.is_read_only, where
        # JOURNAL names the file that the next append goes to.
        is_append = in_journal or fault.hit.name == MARK_FILE
        assert is_append or not outcome.full, f"a checkpoint failed an append: {where}"


@pytest.mark.parametrize("code", [errno.ENOSPC, SHORT_THEN_FULL], ids=_id)
def test_full_disk_passes_and_writers_go_on_where_they_were(tmp_path: Path, code: int) -> None:
    """Offsets continue at the durable tail; a producer sends the same sequence number again."""

    async def run() -> None:
        fault = Fault()
        engine = await start(small_settings(tmp_path), files=FaultFiles(fault), make=FaultStore)
        await engine.create("a", BYTES, b"start", closed=False)
        first = await engine.append("a", append(b"one", producer=Producer("p", 0, 0)))
        fault.strike_next("write", code)
        assert await _errors(_burst(engine)) == [DiskFull] * 4
        assert not engine.health().writable
        assert engine.find("a", touch=False).closed is False
        assert [info.path for info in await engine.list_streams("", "", 9)] == ["a"]
        second = await engine.append("a", append(b"two", producer=Producer("p", 0, 1)))
        assert not second.duplicate
        assert engine.health().writable
        assert int(second.offset[-16:]) == int(first.offset[-16:]) + len(b"two")
        assert (await engine.create("b", BYTES, b"", closed=False)).created
        await abandon(engine)
        engine = await start(small_settings(tmp_path))
        assert await read_all(engine, "a") == b"startonetwo"
        await engine.stop()

    asyncio.run(run())


def test_full_disk_without_a_reserve_is_seen_by_readiness_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to write for it to pass: a server that is not ready is sent nothing."""
    monkeypatch.setattr(checkpoint_schedule, "CHECK_INTERVAL_S", 0.001)

    async def run() -> None:
        fault = Fault()
        settings = small_settings(tmp_path, checkpoint_bytes=1 << 30)
        assert settings.disk_reserve_bytes == 0
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        app = App(engine, settings)
        await engine.create("a", BYTES, b"start", closed=False)
        assert _readiness(app) == 200
        fault.strike_next("allocate", errno.ENOSPC, forever=True)
        with pytest.raises(DiskFull):
            await engine.append("a", append(b"x" * 5000))
        tries = fault.calls["allocate"]
        while fault.calls["allocate"] < tries + 3:
            assert _readiness(app) == 503
            await asyncio.sleep(0)
        fault.heal()
        while _readiness(app) != 200:
            await asyncio.sleep(0)
        await engine.append("a", append(b"x" * 3900))
        assert not list((tmp_path / "journal").glob("*.spare")), "the space was taken for it"
        await engine.stop()

    asyncio.run(run())


def test_batch_that_cannot_be_cut_back_makes_the_store_read_only(tmp_path: Path) -> None:
    async def run() -> None:
        fault = Fault()
        engine = await start(small_settings(tmp_path), files=FaultFiles(fault), make=FaultStore)
        await engine.create("a", BYTES, b"start", closed=False)
        await engine.append("a", append(b"one", producer=Producer("p", 0, 0)))
        fault.strike_next("write", errno.ENOSPC, forever=True)
        assert await _errors(_burst(engine)) == [StoreReadOnly] * 4
        fault.heal()
        await _check_read_only(engine)
        assert await read_all(engine, "a") == b"startone"
        await abandon(engine)
        await _check_reopened(tmp_path, [_answered(Operation("a", "create", b"startone"))])

    asyncio.run(run())


def _readiness(app: App) -> int:
    """The status of `/readyz`."""
    request = Request("GET", b"/readyz", headers={b"host": b"localhost"})
    assert app.refuse(request) is None
    answer = app.handle(request)
    assert isinstance(answer, Response)
    return answer.status


def _burst(engine: Engine) -> list[asyncio.Future[Any]]:
    return [
        engine.append("a", append(b"two", producer=Producer("p", 0, 1))),
        engine.append("a", append(b"three", producer=Producer("p", 0, 2))),
        engine.append("a", append(b"", close=True)),
        engine.create("b", BYTES, b"", closed=False),
    ]


async def _errors(futures: list[asyncio.Future[Any]]) -> list[type]:
    return [type(result) for result in await asyncio.gather(*futures, return_exceptions=True)]


def _answered(operation: Operation) -> Operation:
    operation.answered_at = 0
    return operation


@pytest.mark.parametrize("operation", ["open", "write", "sync", "commit"])
def test_checkpoint_on_a_full_disk_is_tried_again_and_fails_no_append(
    tmp_path: Path, operation: str
) -> None:
    async def run() -> None:
        fault = Fault()
        settings = small_settings(tmp_path, checkpoint_bytes=1 << 20, journal_file_bytes=1 << 20)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        await engine.create("a", BYTES, b"x" * 2000, closed=False)
        for attempt in range(3):
            fault.strike_next(operation, errno.ENOSPC)
            assert not await disk(engine).checkpoint()
            assert fault.hit is not None
            fault.heal()
            assert engine.health().writable
            body = b"%d" % attempt * 400
            await engine.append("a", append(body, producer=Producer("p", 0, attempt)))
        assert await disk(engine).checkpoint()
        assert await read_all(engine, "a") == b"x" * 2000 + b"0" * 400 + b"1" * 400 + b"2" * 400
        await abandon(engine)
        engine = await start(settings)
        assert await read_all(engine, "a") == b"x" * 2000 + b"0" * 400 + b"1" * 400 + b"2" * 400
        assert (await engine.append("a", append(b"-", producer=Producer("p", 0, 2)))).duplicate
        await engine.stop()

    asyncio.run(run())
