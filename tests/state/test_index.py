"""The state index against real engines: whatever happens to it, it says what the log says."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.settings import Settings
from penstock.errors import Damaged, Overloaded
from penstock.http.app import App
from penstock.log import open_engine
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.log.requests import Append
from penstock.protocol.lifecycle import StreamConfig
from penstock.state.declaration import META, Declaration, encode
from penstock.state.server import indexer as keeping
from penstock.state.server.index import StateIndex, StateQuery
from penstock.state.server.indexer import FILE, StateIndexer
from tests.helpers.log import abandon
from tests.state.strategies import changes, controls, mutated
from tests.state.test_server_state import RESET, change

JSON = "application/json"
DECLARED = encode(Declaration(version=1, mode="warn", types={}, offset="", ordinal=0))
FOLDER = {"disk_reserve_bytes": 0, "journal_file_bytes": 256 * 1024, "checkpoint_interval_s": 3600}


def fold(messages: list[Any]) -> dict[tuple[str, str], Any]:
    """The state after events: a reset clears, a delete removes, the rest sets."""
    state: dict[tuple[str, str], Any] = {}
    for event in messages:
        headers = event.get("headers", {}) if isinstance(event, dict) else {}
        if headers.get("control") == "reset":
            state.clear()
        elif headers.get("operation") == "delete":
            state.pop((event["type"], event["key"]), None)
        elif "operation" in headers:
            state[event["type"], event["key"]] = event["value"]
    return state


class Rig:
    """An engine with an indexer, asked without HTTP in between."""

    def __init__(self, engine: Engine, indexer: StateIndexer) -> None:
        self.engine = engine
        self.indexer = indexer

    async def create(self, path: str, *, declared: bool = True) -> None:
        await self.engine.create(path, StreamConfig(JSON, None, None), b"", closed=False)
        if declared:
            await self.engine.set_meta(path, META, DECLARED)

    async def append(self, path: str, *events: Any) -> int:
        body = json.dumps(list(events)).encode()
        await self.engine.append(path, Append(body, JSON, False, None, None, None))
        return self.engine.find(path, touch=False).tail

    async def state(self, path: str, at: int | None = None) -> dict[tuple[str, str], Any]:
        stream = self.engine.find(path, touch=False)
        query = StateQuery(stream.id, stream.tail if at is None else at, limit=10**6)
        page = await self.indexer.answer(stream, query.at, lambda index: index.page(query))
        values = {}
        for entry in page.entities:
            end = entry.position + entry.length
            wire = await self.engine.read(stream, entry.position, end)
            values[entry.type, entry.key] = json.loads(wire[:-2])["value"]
            assert entry.value is None or json.loads(entry.value) == json.loads(wire[:-2])["value"]
        return values

    async def progress(self, path: str) -> int | None:
        stream = self.engine.find(path, touch=False)
        progress = await self.indexer.ask(lambda index: index.progress(stream.id))
        return None if progress is None else progress.position


@asynccontextmanager
async def rig(folder: Path | None, *, crash: bool = False, **options: Any) -> AsyncIterator[Rig]:
    """With `crash` the engine and its indexer are abandoned at the end."""
    kind: dict[str, Any] = {"memory": True} if folder is None else {"data_dir": folder, **FOLDER}
    settings = Settings(**{**kind, **options})
    engine = open_engine(settings)
    await engine.start()
    indexer = StateIndexer(engine, settings)
    engine.add_check(META, lambda proposal: indexer.accepted(proposal.stream))
    indexer.start()
    try:
        yield Rig(engine, indexer)
    finally:
        indexer.close()
        if crash:
            engine._reap_task.cancel()
            assert isinstance(engine.store, DiskStore)
            await abandon(engine.store)
        else:
            await engine.stop()


def on_stores(test: Callable[[Path | None], Awaitable[None]]) -> Callable[..., None]:
    @pytest.mark.parametrize("store", ["memory", "disk"])
    def run(store: str, tmp_path: Path) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(None if store == "memory" else tmp_path), 20)

        asyncio.run(bounded())

    run.__name__ = getattr(test, "__name__", "test")
    return run


@given(st.lists(st.lists(changes() | controls() | mutated(), min_size=1, max_size=4), max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_state_at_every_offset_is_the_fold_of_what_is_before_it(batches: list[Any]) -> None:
    index = StateIndex(None)
    index.begin(1, "s")
    checkpoints: list[tuple[int, list[Any]]] = [(0, [])]
    position, events = 0, []
    for batch in batches:
        wire = b""
        for message in batch:
            line = json.dumps(message).encode() + b",\n"
            wire += line
            if _is_event(line[:-2]):
                events.append(message)
            checkpoints.append((position + len(wire), list(events)))
        index.apply(1, position, wire)
        position += len(wire)
        last = index.page(StateQuery(1, 0, latest=True, limit=10**6))
        assert last is not None
        assert last.at == position
        values = {(e.type, e.key): json.loads(e.value or b"") for e in last.entities}
        assert values == fold(events)
    for at, messages in checkpoints:
        page = index.page(StateQuery(1, at, limit=10**6))
        assert page is not None
        expected = fold(messages)
        assert {(entry.type, entry.key) for entry in page.entities} == set(expected)
        for entry in page.entities:
            assert entry.value is None or json.loads(entry.value) == expected[entry[:2]]
        for type, key in expected:
            one = index.page(StateQuery(1, at, type=type, key=key))
            assert one is not None
            locations = [e[:4] for e in page.entities if (e.type, e.key) == (type, key)]
            assert [entry[:4] for entry in one.entities] == locations
    assert index.skipped(1) == len(checkpoints) - 1 - len(events)
    assert index.page(StateQuery(1, position + 1)) is None
    index.close()


def _is_event(raw: bytes) -> bool:
    from penstock.state import InvalidEvent, parse

    try:
        parse(raw, strict_timestamp=False)
    except InvalidEvent:
        return False
    return True


@on_stores
async def test_appends_are_indexed_without_anybody_asking(folder: Path | None) -> None:
    async with rig(folder) as server:
        await server.create("s")
        tail = await server.append("s", change("user", "1", 1))
        while server.indexer.indexed_bytes < tail:
            await asyncio.sleep(0)
        while server.indexer._follows:
            await asyncio.sleep(0)
        assert await server.progress("s") == tail
        assert server.indexer.lag() == (0, 0)
        assert server.engine.stats.watchers == 0


@on_stores
async def test_values_are_those_of_every_moment(folder: Path | None) -> None:
    async with rig(folder) as server:
        await server.create("s")
        sent: list[Any] = []
        tails = [0]
        for number in range(60):
            key = str(number % 7)
            event = change("n", key, number, "delete" if number % 11 == 3 else "upsert")
            sent.append(RESET if number == 30 else event)
            tails.append(await server.append("s", sent[-1]))
        for count, tail in enumerate(tails):
            assert await server.state("s", tail) == fold(sent[:count])


@on_stores
async def test_a_long_stream_is_caught_up_with_in_batches(folder: Path | None) -> None:
    async with rig(folder) as server:
        await server.create("s", declared=False)
        sent = [change("n", str(number % 50), "x" * 900 + str(number)) for number in range(1500)]
        for start in range(0, len(sent), 300):
            await server.append("s", *sent[start : start + 300])
        await server.append("s", change("n", "large", "y" * 600_000))
        await server.engine.set_meta("s", META, DECLARED)
        stream = server.engine.find("s", touch=False)
        server.indexer.follow(stream)
        assert server.indexer.lag() == (1, stream.tail)
        assert stream.tail > keeping.BATCH_BYTES
        assert (await server.state("s")).keys() == {*fold(sent), ("n", "large")}
        assert server.indexer.indexed_bytes == stream.tail


@on_stores
async def test_many_streams_move_at_once_while_they_are_read(folder: Path | None) -> None:
    async with rig(folder) as server:
        paths = [f"s{number}" for number in range(8)]
        for path in paths:
            await server.create(path)

        async def write(path: str) -> None:
            for number in range(40):
                await server.append(path, change("n", str(number % 5), number))

        async def read(path: str) -> None:
            for _ in range(20):
                stream = server.engine.find(path, touch=False)
                at, count = stream.tail, stream.count
                events = [change("n", str(number % 5), number) for number in range(count)]
                assert await server.state(path, at) == fold(events)

        await asyncio.gather(*map(write, paths), *map(read, paths))


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_goes_on_where_the_index_stands(tmp_path: Path, crash: bool) -> None:
    async def first() -> None:
        async with rig(tmp_path, crash=crash) as server:
            await server.create("s")
            await server.append("s", change("user", "1", 1))
            assert await server.state("s") == {("user", "1"): 1}
            # These come to the log, but perhaps not to the index.
            await server.append("s", change("user", "2", 2), change("user", "1", 3))

    async def second() -> None:
        async with rig(tmp_path) as server:
            stream = server.engine.find("s", touch=False)
            assert server.indexer._queue, "it catches up by itself"
            await server.indexer.reach(stream, stream.tail)
            assert server.indexer.indexed_bytes < stream.tail
            assert await server.state("s") == {("user", "1"): 3, ("user", "2"): 2}

    asyncio.run(first())
    asyncio.run(second())


def _lose(path: Path) -> None:
    path.unlink()


def _spoil(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def _age(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()


def _swap(path: Path) -> None:
    """As after restoring a folder: rows that do not belong to this log."""
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE streams SET mark_crc = mark_crc + 1")
        database.execute("UPDATE changes SET key = 'wrong'")
        database.execute("UPDATE entities SET key = 'wrong' || key")
    database.close()


def _run_ahead(path: Path) -> None:
    """As after a log in mode buffered lost its end."""
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE streams SET position = position + 1000")
    database.close()


@pytest.mark.parametrize("harm", [_lose, _spoil, _age, _swap, _run_ahead])
def test_an_index_that_is_of_no_use_is_made_anew(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async def first() -> None:
        async with rig(tmp_path) as server:
            await server.create("s")
            await server.append("s", change("user", "1", 1), change("user", "2", 2))
            assert len(await server.state("s")) == 2

    async def second() -> None:
        async with rig(tmp_path) as server:
            assert await server.state("s") == {("user", "1"): 1, ("user", "2"): 2}
            await server.append("s", change("user", "1", 3))
            assert await server.state("s") == {("user", "1"): 3, ("user", "2"): 2}

    asyncio.run(first())
    harm(tmp_path / FILE)
    asyncio.run(second())


def test_a_database_that_breaks_while_it_is_used_is_made_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as server:
            await server.create("s")
            await server.append("s", change("user", "1", 1))
            assert len(await server.state("s")) == 1

            def broken(stream: int) -> None:
                raise sqlite3.DatabaseError("database disk image is malformed")

            index = server.indexer._index
            assert index is not None
            index.progress = broken  # type: ignore[method-assign]
            with pytest.raises(Overloaded):
                await server.state("s")
            del index.progress
            assert await server.state("s") == {("user", "1"): 1}

    asyncio.run(run())


def test_a_reader_is_not_kept_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WAIT_S", 0.01)

    async def run() -> None:
        async with rig(None) as server:
            await server.create("s")
            await server.append("s", change("user", "1", 1))
            stream = server.engine.find("s", touch=False)
            with pytest.raises(Overloaded):
                await server.indexer.reach(stream, stream.tail + 1)
            assert await server.state("s") == {("user", "1"): 1}

    asyncio.run(run())


@on_stores
async def test_a_stream_that_cannot_be_read_fails_alone_and_is_taken_up_again(
    folder: Path | None,
) -> None:
    async with rig(folder) as server:
        for path in ("bad", "good"):
            await server.create(path)
        plan = server.engine.plan

        async def damaged(stream: Any, *arguments: Any, **options: Any) -> int:
            if stream.path == "bad":
                raise Damaged("a block does not match its checksum")
            return await plan(stream, *arguments, **options)

        server.engine.plan = damaged  # type: ignore[method-assign]
        for path in ("bad", "good"):
            await server.append(path, change("user", "1", 1))
        with pytest.raises(Damaged):
            await server.state("bad")
        assert await server.state("good") == {("user", "1"): 1}
        assert server.engine.stats.watchers == 0
        server.engine.plan = plan  # type: ignore[method-assign]
        await server.append("bad", change("user", "2", 2))
        assert await server.state("bad") == {("user", "1"): 1, ("user", "2"): 2}


@on_stores
async def test_rows_of_deleted_streams_go(folder: Path | None) -> None:
    async with rig(folder) as server:
        for number in range(30):
            await server.create(f"s{number}")
            await server.append(f"s{number}", change("user", "1", 1))
            assert len(await server.state(f"s{number}")) == 1
            await server.engine.delete(f"s{number}")
        streams = await server.indexer.ask(lambda index: index.streams())
        assert len(streams) <= 2


def test_streams_that_were_deleted_before_a_start_are_dropped_by_it(tmp_path: Path) -> None:
    async def first() -> None:
        async with rig(tmp_path) as server:
            for path in ("kept", "gone"):
                await server.create(path)
                await server.append(path, change("user", "1", 1))
                await server.state(path)
            await server.engine.delete("gone")

    async def second() -> None:
        async with rig(tmp_path) as server:
            streams = await server.indexer.ask(lambda index: index.streams())
            assert [path for _, path in streams] == ["kept"]

    asyncio.run(first())
    asyncio.run(second())


def test_a_server_without_state_streams_makes_no_database(tmp_path: Path) -> None:
    async def run() -> None:
        settings = Settings(data_dir=tmp_path, **FOLDER)  # type: ignore[arg-type]
        engine = open_engine(settings)
        await engine.start()
        App(engine, settings).close()
        await engine.stop()

    asyncio.run(run())
    assert not (tmp_path / FILE).exists()
