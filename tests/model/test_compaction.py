"""Compaction under concurrent writers: at every moment the stream from its earliest offset folds to
what its whole history does, and readers who were anywhere end with the same state."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import StreamTrimmed
from penstock.log.disk.store import DiskStore
from penstock.log.stream import Stream
from penstock.state import ControlEvent, MaterializedState
from tests.helpers.app import Client, run_with_app
from tests.state.test_server_schema import JSON, declare, post
from tests.state.test_server_state import ANY, RESET, change, types

WRITES = 150
"""At least; more until enough has happened beside them."""
COMPACTIONS = 4
LOOKS = 10
KEYS = 12


class History:
    """Everything that was ever appended by writers, as a state at each position where it ended.

    Watches the stream, so it hears of each commit at the moment when readers can see it. Only the
    server writes snapshots here, which is how they are told from the rest.
    """

    def __init__(self, stream: Stream) -> None:
        self._state = MaterializedState()
        self._in_snapshot = False
        self.states = {stream.tail: self._state.copy()}
        self.snapshots = 0

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        position = start
        for line in wire.split(b"\n")[:-1]:
            self._add(json.loads(line.removesuffix(b",")))
            position += len(line) + 1
        assert position == end
        self.states[end] = self._state.copy()

    def ended(self) -> None: ...

    def _add(self, event: dict[str, Any]) -> None:
        control = event["headers"].get("control")
        if control is None:
            if not self._in_snapshot:
                self._state.apply_json(json.dumps([event]))
        elif control == "reset":
            self._state.clear()
        else:
            self._in_snapshot = control == "snapshot-start"
            self.snapshots += self._in_snapshot


class Reader:
    """Folds the stream as a client does, from page to page; told that its place is gone, it starts
    anew from the earliest offset."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.state = MaterializedState()
        self.offset = "-1"
        self.restarts = 0

    async def step(self, count: int) -> bool:
        """Read some messages; whether that was all there is."""
        answer = await self._client.get("s", f"offset={self.offset}&count={count}")
        if answer.status == 410:
            self.state.clear()
            self.offset = "-1"
            self.restarts += 1
            return False
        assert answer.status == 200, answer.body
        _fold(self.state, answer.body)
        self.offset = answer.offset
        return "stream-up-to-date" in answer.headers


def _fold(state: MaterializedState, array: bytes) -> None:
    def control(event: ControlEvent) -> None:
        if event.control == "reset":
            state.clear()

    state.apply_json(array, on_control=control)


class Run:
    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._chance = random.Random(seed)
        self._stream = client.engine.find("s", touch=False)
        self._history = History(self._stream)
        client.engine.watch(self._stream, self._history)
        self._writing = True
        self.compactions = 0
        self._looks = 0
        self._others: list[asyncio.Future[None]] = []
        self.readers = [Reader(client) for _ in range(4)]

    @property
    def _saw_enough(self) -> bool:
        """However slow the machine is, nothing is proved by a run in which nothing met. One of the
        others that has ended has found something wrong."""
        if any(other.done() for other in self._others):
            return True
        restarts = sum(reader.restarts for reader in self.readers)
        return self.compactions >= COMPACTIONS and self._looks >= LOOKS and restarts > 0

    async def run(self) -> None:
        self._others = [
            asyncio.ensure_future(self._compact()),
            asyncio.ensure_future(self._look()),
            *[asyncio.ensure_future(self._read(reader)) for reader in self.readers],
        ]
        await asyncio.gather(*[self._write(name) for name in range(3)])
        self._writing = False
        await asyncio.gather(*self._others)
        await self._check()

    async def _pause(self) -> None:
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)

    async def _write(self, name: int) -> None:
        waiting: list[asyncio.Future[Any]] = []
        number = 0
        while number < WRITES // 3 or not self._saw_enough:
            number += 1
            events = [
                self._event(f"{name}-{number}") for _ in range(self._chance.choice((1, 1, 4)))
            ]
            waiting.append(asyncio.ensure_future(post(self._client, "s", *events)))
            await self._pause()
            if self._chance.random() < 0.3:
                assert all(answer.status in (200, 204) for answer in await asyncio.gather(*waiting))
                waiting = []
        await asyncio.gather(*waiting)

    def _event(self, value: str) -> dict[str, Any]:
        draw, key = self._chance.random(), str(self._chance.randrange(KEYS))
        kind = self._chance.choice(("a", "b"))
        if draw < 0.02:
            return RESET
        if draw < 0.25:
            return change(kind, key, operation="delete")
        size = self._chance.choice((1, 1, 1, 300, 5000))
        return change(kind, key, value + "x" * size, self._chance.choice(("insert", "upsert")))

    async def _compact(self) -> None:
        while self._writing:
            answer = await self._client.send("POST", "/v1/stream/s/__ds/compact")
            assert answer.status == 200, answer.body
            self.compactions += 1
            store = self._client.engine.store
            if isinstance(store, DiskStore) and self._chance.random() < 0.2:
                assert await store.checkpoint()
            await self._pause()

    async def _look(self) -> None:
        """The whole stream as it is at one moment, again and again."""
        engine, stream = self._client.engine, self._stream
        while self._writing:
            start, end = stream.earliest, stream.tail
            try:
                wire = await engine.read(stream, start, end)
            except StreamTrimmed:
                wire = None  # by a compaction while it was read
            if wire is not None:
                state = MaterializedState()
                _fold(state, b"[" + wire.removesuffix(b",\n") + b"]")
                assert state == self._history.states[end]
                self._looks += 1
            await self._pause()
            await asyncio.sleep(0)

    async def _read(self, reader: Reader) -> None:
        while self._writing:
            await reader.step(self._chance.choice((1, 3, 50)))
            for _ in range(self._chance.choice((1, 10, 60))):
                await asyncio.sleep(0)

    async def _check(self) -> None:
        expected = self._history.states[self._stream.tail]
        for reader in self.readers:
            while not await reader.step(1000):
                pass
            assert reader.state == expected
        assert await types(self._client, "s") == expected.to_dict()
        assert self._history.snapshots == self.compactions


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_compaction_is_seen_by_nobody(tmp_path: Path, store: str, seed: int) -> None:
    _test(tmp_path, store, seed)


@pytest.mark.soak
@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(10, 60))
def test_compaction_is_seen_by_nobody_for_long(tmp_path: Path, store: str, seed: int) -> None:
    _test(tmp_path, store, seed)


def _test(folder: Path, store: str, seed: int) -> None:
    small: dict[str, Any] = {
        "data_dir": folder,
        "durability": "buffered",
        "disk_reserve_bytes": 0,
        "journal_file_bytes": 64 * 1024,
        "segment_bytes_max": 16 * 1024,
        "checkpoint_bytes": 64 * 1024,
        "inline_bytes_max": 500,
    }

    async def test(client: Client) -> None:
        await client.put("s", content_type=JSON)
        await declare(client, "s", ANY)
        await Run(client, seed).run()

    run_with_app(test, Settings(**(small if store == "disk" else {"memory": True})))
