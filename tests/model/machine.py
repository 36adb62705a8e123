"""Drives a disk engine, a memory engine and the reference with the same operations."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.log import requests
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.log.memory import MemoryStore
from penstock.log.mutations import Barrier
from penstock.log.requests import Append, Appended
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from tests.helpers.log import TINY, abandon
from tests.helpers.tiered import cold_store
from tests.model.reference import Reference, Refused

T = TypeVar("T")


class Outcome(NamedTuple):
    """What a caller can tell: the answer, or the error's code and headers."""

    answer: object
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Create(NamedTuple):
    path: str
    config: StreamConfig
    body: bytes
    closed: bool

    def on_engine(self, engine: Engine) -> asyncio.Future[Any]:
        return engine.create(self.path, self.config, self.body, closed=self.closed)

    def on_reference(self, reference: Reference) -> Any:
        return reference.create(*self)


class Post(NamedTuple):
    path: str
    body: bytes
    content_type: str | None
    close: bool
    producer: Producer | None
    seq: str | None
    expected: str | None

    def on_engine(self, engine: Engine) -> asyncio.Future[Any]:
        return engine.append(self.path, Append(*self[1:]))

    def on_reference(self, reference: Reference) -> Any:
        return reference.append(*self)


class Delete(NamedTuple):
    path: str

    def on_engine(self, engine: Engine) -> asyncio.Future[Any]:
        return engine.delete(self.path)

    def on_reference(self, reference: Reference) -> Any:
        return reference.delete(self.path)


class Fork(NamedTuple):
    path: str
    source: str
    offset: str | None
    sub_offset: int
    requested: ForkConfig
    body: bytes
    closed: bool

    def on_engine(self, engine: Engine) -> asyncio.Future[Any]:
        fork = requests.Fork(self.source, self.offset, self.sub_offset)
        return engine.fork(self.path, fork, self.requested, self.body, closed=self.closed)

    def on_reference(self, reference: Reference) -> Any:
        return reference.fork(*self)


class Trim(NamedTuple):
    path: str
    before: str

    def on_engine(self, engine: Engine) -> asyncio.Future[Any]:
        return engine.trim(self.path, self.before)

    def on_reference(self, reference: Reference) -> Any:
        return reference.trim(self.path, self.before)


Write = Create | Post | Delete | Fork | Trim


def refused(error: Refused | PenstockError) -> Outcome:
    return Outcome(None, error.code, tuple(sorted(error.headers.items())))


def attempt(call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(call())
    except (Refused, PenstockError) as error:
        return refused(error)


def must_equal(actual: object, expected: object) -> None:
    assert actual == expected, f"\nfound    {actual}\nexpected {expected}"


def _values(answer: Any) -> tuple[Any, ...] | None:
    """What an engine answers, as the reference does."""
    if isinstance(answer, Appended):
        state = answer.producer
        return answer.offset, answer.closed, answer.duplicate, state, answer.ordinal
    return None if answer is None else tuple(answer)


async def write_all(engine: Engine, writes: list[Write]) -> list[Outcome]:
    """Ask for everything in one turn of the loop, before any of it is durable."""
    pending: list[asyncio.Future[Any] | Outcome] = []
    for write in writes:
        try:
            pending.append(write.on_engine(engine))
        except PenstockError as error:
            pending.append(refused(error))
    outcomes = []
    for each in pending:
        if isinstance(each, Outcome):
            outcomes.append(each)
            continue
        try:
            answer = await asyncio.wait_for(each, 20)
            outcomes.append(Outcome(_values(answer)))
        except PenstockError as error:
            outcomes.append(refused(error))
    return outcomes


class Trio:
    """The three, their clock, and what can happen to them."""

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.clock = ManualClock()
        self.settings = Settings(data_dir=self.folder, **{**TINY, **options})
        self.reference = Reference()
        self.reference.now = self.clock.now_us()
        self.memory = Engine(MemoryStore(self.settings), self.settings, clock=self.clock)
        self.run(self.memory.start())
        self.open_disk()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open_disk(self) -> None:
        if self.settings.tier_url:
            self.store: DiskStore = cold_store(self.folder, self.clock, settings=self.settings)
        else:
            self.store = DiskStore(self.settings, clock=self.clock)
        self.disk = Engine(self.store, self.settings, clock=self.clock)
        self.run(self.disk.start())

    def engines(self) -> tuple[Engine, Engine]:
        return self.disk, self.memory

    def close(self) -> None:
        for engine in self.engines():
            self.run(engine.stop())
        self.run(asyncio.sleep(0))
        self.loop.close()
        shutil.rmtree(self.folder)

    # -- what clients do

    def write(self, writes: list[Write]) -> list[Outcome]:
        expected = [attempt(lambda w=write: w.on_reference(self.reference)) for write in writes]  # type: ignore[misc]
        # Each fork looks up its offset first: of two equal ones either may be the one that creates.
        are_equal_forks = isinstance(writes[0], Fork) and writes.count(writes[0]) == len(writes)
        compared = sorted(expected, key=repr) if are_equal_forks else expected
        for engine in self.engines():
            outcomes = self.run(write_all(engine, writes))
            must_equal(sorted(outcomes, key=repr) if are_equal_forks else outcomes, compared)
        self.settle_expiry()
        return expected

    def ask(self, call: Callable[[Engine], Coroutine[Any, Any, object]], expected: Outcome) -> None:
        for engine in self.engines():
            try:
                outcome = Outcome(self.run(call(engine)))
            except PenstockError as error:
                outcome = refused(error)
            must_equal(outcome, expected)
        self.settle_expiry()

    # -- what happens to the disk engine alone

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.reference.now = self.clock.now_us()

    def reap(self) -> None:
        async def reap(engine: Engine) -> None:
            await engine.reap()
            await asyncio.wait_for(write_barrier(engine), 20)

        self.reference.reap()
        for engine in self.engines():
            self.run(reap(engine))

    def settle(self) -> None:
        """Wait until everything is durable or has failed."""
        for engine in self.engines():
            self.run(asyncio.wait_for(write_barrier(engine), 20))

    def settle_expiry(self) -> None:
        """Wait until the expired streams that were asked for are gone. Who asked was answered at
        once; until their end is durable, a stream that only they need is still there."""
        if self.reference.has_noticed_expiry:
            self.settle()
            self.reference.has_noticed_expiry = False

    def notice_expiry(self) -> None:
        """End whatever has expired, on the reference and on both engines."""
        for path in list(self.reference.lines):
            attempt(lambda path=path: self.reference.find(path, touch=False))  # type: ignore[misc]
            for engine in self.engines():
                attempt(lambda path=path, engine=engine: engine.find(path, touch=False))  # type: ignore[misc]
        self.settle()

    def checkpoint(self) -> None:
        assert self.run(self.store.checkpoint())

    def checkpoint_beside(self, writes: list[Write]) -> None:
        """The same writes, decided and committed while a checkpoint runs."""
        expected = [attempt(lambda w=write: w.on_reference(self.reference)) for write in writes]  # type: ignore[misc]

        async def both() -> list[Outcome]:
            checkpoint = asyncio.create_task(self.store.checkpoint())
            await asyncio.sleep(0)
            outcomes = await write_all(self.disk, writes)
            assert await checkpoint
            return outcomes

        must_equal(self.run(both()), expected)
        must_equal(self.run(write_all(self.memory, writes)), expected)
        self.settle_expiry()

    def read_beside(self, path: str, start: int, writes: list[Write]) -> None:
        """A reader goes through a stream while it is trimmed, extended and checkpointed."""
        line = self.reference.lines[path]
        least = len(line.data)

        async def read(engine: Engine) -> tuple[bytes, str | None]:
            stream, parts, position = engine.find(path, touch=False), [], start
            try:
                while position < stream.tail:
                    end = await engine.plan(stream, position, max_bytes=60)
                    parts.append(await engine.read(stream, position, end))
                    position = end
                    await asyncio.sleep(0)
            except PenstockError as error:
                return b"".join(parts), error.code
            return b"".join(parts), None

        async def all_at_once(engine: Engine) -> tuple[list[Outcome], tuple[bytes, str | None]]:
            reading = asyncio.create_task(read(engine))
            if engine is self.memory:
                return await write_all(engine, writes), await reading
            checkpoint = asyncio.create_task(self.store.checkpoint())
            outcomes = await write_all(engine, writes)
            assert await checkpoint
            return outcomes, await reading

        expected = [attempt(lambda w=write: w.on_reference(self.reference)) for write in writes]  # type: ignore[misc]
        for engine in self.engines():
            outcomes, (data, code) = self.run(all_at_once(engine))
            must_equal(outcomes, expected)
            must_equal(data, line.data[start : start + len(data)])
            assert code == "stream-trimmed" or (code is None and start + len(data) >= least), code

    def checkpoint_fails(self) -> None:
        """Segments are written, then the catalog says no."""
        commit = self.store._catalog.commit

        def refuse(changes: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        self.store._catalog.commit = refuse  # type: ignore[method-assign]
        assert not self.run(self.store.checkpoint())
        self.store._catalog.commit = commit  # type: ignore[method-assign]

    def journal_is_full(self, writes: list[Write]) -> None:
        """Writes that the disk refuses leave nothing behind; whatever else is said stays true."""
        self.notice_expiry()
        journal = self.store._journal
        write, stage = journal.write, journal.stage

        def refuse(first_lsn: int, parts: object) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        journal.write = refuse  # type: ignore[method-assign]
        journal.stage = lambda *_: False  # type: ignore[method-assign] # all takes `write`
        outcomes = self.run(write_all(self.disk, writes))
        self.settle()  # What nobody waits for fails as well.
        journal.write = write  # type: ignore[method-assign]
        journal.stage = stage  # type: ignore[method-assign]
        for outcome in outcomes:
            # A trim is answered with two values, and may have nothing to do.
            is_new = isinstance(outcome.answer, tuple) and not (
                len(outcome.answer) == 2 or outcome.answer[1] is False or outcome.answer[2] is True
            )
            assert not is_new, f"{outcome} was given for what is not on disk"
        self.agree_on_generations()
        self.touch_all()

    def restart(self) -> None:
        self.run(self.disk.stop())
        self.open_disk()

    def crash(self) -> None:
        """Everything acknowledged is there again; no TTL ends before it had its grace."""
        self.reap()
        self.disk._reap_task.cancel()
        self.disk._retention_task.cancel()
        self.run(abandon(self.store))
        self.open_disk()
        self.agree_on_generations()
        self.touch_all()

    def agree_on_generations(self) -> None:
        """A creation that failed may use up a generation, one that was acknowledged has its own."""
        next_id = self.store._counters.next_id
        assert next_id > self.reference.last_generation, "a generation would be given out again"
        self.reference.next_generation = next_id
        store = self.memory.store
        assert isinstance(store, MemoryStore)
        store._next_id = next_id

    def touch_all(self) -> None:
        """What an unclean stop may forget, the time of the last read, is the same again."""
        for path in self.reference.list("", "", 1000):
            self.reference.find(path, touch=True)
            for engine in self.engines():
                engine.find(path, touch=True)

    # -- what must be equal at any time

    def compare_lists(self) -> None:
        lines = self.reference.lines
        expected = [
            (
                *(path, line.id, *line.config, len(line.data), len(line.messages), line.closed),
                *(line.earliest, line.earliest_ordinal, line.source_path),
            )
            for path in self.reference.list("", "", 1000)
            for line in [lines[path]]
        ]
        for engine in self.engines():
            actual = [
                (
                    *(info.path, info.id, info.content_type, info.ttl_s, info.expires_at_us),
                    *(info.tail, info.messages, info.closed),
                    *(info.earliest, info.earliest_ordinal, info.forked_from),
                )
                for info in self.run(engine.list_streams("", "", 1000))
            ]
            must_equal(actual, expected)

    def compare_all(self) -> None:
        self.settle()
        for path in self.reference.list("", "", 1000):
            line = self.reference.find(path, touch=False)

            async def everything(engine: Engine, path: str = path) -> object:
                stream = engine.find(path, touch=False)
                data = await engine.read(stream, stream.earliest, stream.tail)
                fields = (stream.count, stream.closed, stream.config, stream.created_us)
                return data, *fields, stream.forks

            data = line.data[line.earliest :]
            forks = len(self.reference.forks(line))
            actual = (data, len(line.messages), line.closed, line.config, line.created, forks)
            self.ask(everything, Outcome(actual))
        for path in self.reference.soft_deleted:

            async def only_kept(engine: Engine, path: str = path) -> object:
                return engine.find(path, touch=False)

            self.ask(only_kept, Outcome(None, "stream-soft-deleted"))


async def write_barrier(engine: Engine) -> None:
    """Return when all that was submitted so far is durable, or has failed."""
    barrier = Barrier()
    barrier.future = asyncio.get_running_loop().create_future()
    engine.store.submit(barrier)
    with suppress(PenstockError):
        await barrier.future
