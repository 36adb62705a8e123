"""A live state in SQLite: killed at any point, it goes on where it was, exactly once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import StoreLocked, StoreTooNew
from penstock.state import (
    MaterializedState,
    SqliteBackend,
    StateSchema,
    delete,
    insert,
    reset,
    snapshot_start,
    upsert,
)
from penstock.state.live.plan import Position
from penstock.state.lookup import token
from tests.helpers.server import ROOT, Server
from tests.state.live_driver import WAIT_S, Lives, Recorder

KILLS = 8

# Says where it stands after each batch, after which its listeners may be called.
FOLLOWER = """
import sys, penstock
from penstock.state import LiveState, SqliteBackend

url, name, path = sys.argv[1:]
state = LiveState(penstock.Client(url).stream(name), backend=SqliteBackend(path),
                  indexes={"user": ["city"]})
state.on_change(lambda *_: print(state.offset, flush=True))
with state:
    state.wait_txid("never")
"""


@contextmanager
def following(server: Server, name: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, server.url, name, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def changes(chance: random.Random, count: int) -> list[bytes]:
    """Changes of few entities, so that each of them counts; now and then everything goes."""
    messages = []
    for _ in range(count):
        key, kind = str(chance.randrange(40)), chance.random()
        if kind < 0.005:
            messages.append(reset().to_json())
        elif kind < 0.2:
            messages.append(delete("user", key).to_json())
        else:
            value = {"city": chance.choice(["Oslo", "Rome"]), "n": chance.randrange(1000)}
            messages.append(upsert("user", key, value).to_json())
    return messages


def fold(data: bytes) -> dict[str, Any]:
    state = MaterializedState()

    def on_control(_: object) -> None:
        state.clear()

    if data:
        state.apply_json(data, on_control=on_control)
    return state.to_dict()


def stored(path: Path, url: str) -> tuple[str, dict[str, Any], dict[str, set[str]]]:
    """What is in the file: the offset, the entities, and the keys by city."""
    backend = SqliteBackend(path)
    try:
        offset = backend.open(url, {"user": ["city"]}).offset
        state = MaterializedState()
        for key, raw in backend.items("user"):
            state.apply_json(
                b'[{"type":"user","key":"%s","value":%s,"headers":{"operation":"insert"}}]'
                % (key.encode(), raw)
            )
        cities = {
            city: {key for key, _ in backend.find("user", "city", token(city))}
            for city in ("Oslo", "Rome")
        }
        return offset, state.to_dict(), cities
    finally:
        backend.close()


def check(path: Path, stream: Stream) -> str:
    """The file is exactly what the stream says up to the file's own offset."""
    offset, entities, cities = stored(path, stream.url)
    assert entities == fold(b"" if offset == "-1" else stream.read_bytes(until=offset))
    users = entities.get("user", {})
    for city, keys in cities.items():
        assert keys == {key for key, user in users.items() if user["city"] == city}
    return offset


def test_killed_at_random_it_is_always_the_fold_of_the_stream(
    server: Server, stream: Stream, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    chance = random.Random(4)
    offsets = []
    for _ in range(KILLS):
        stream.append_many(changes(chance, 400))
        with following(server, name, path) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 250)):
                assert process.stdout.readline()
        offsets.append(check(path, stream))
    assert offsets == sorted(set(offsets))
    tail = stream.head().offset
    with following(server, name, path) as process:
        assert process.stdout is not None
        assert any(line.strip() == tail for line in process.stdout)
    assert check(path, stream) == tail


def test_a_restart_has_the_state_at_once_and_reads_only_what_is_new(
    live: Lives, name: str, stream: Stream, tmp_path: Path
) -> None:
    stream.append_many([insert("user", str(each), each).to_json() for each in range(100)])
    stream.append(snapshot_start().to_json())
    with live(name, backend=SqliteBackend(tmp_path / "state.db")) as state:
        state.wait_up_to_date(WAIT_S)
        offset = state.offset
    stream.append(insert("new", "x", 1).to_json())
    with live.client() as client:
        state = live.not_started(client, name, backend=SqliteBackend(tmp_path / "state.db"))
        assert state.offset == offset
        assert state.in_snapshot
        assert len(state.collection("user")) == 100
        recorder = Recorder()
        state.on_change(recorder)
        with state:
            assert recorder.until("new") == [("new", "x", None, 1)]


def test_a_commit_that_fails_half_way_leaves_everything_as_it_was(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "state.db")
    backend.open("stream", {})
    backend.commit(Position(), Position("1"), {("user", "1"): b"1"}, clear=False)
    unfit: Any = {("user", "1"): b"2", ("user", "2"): object()}
    with pytest.raises(sqlite3.Error):
        backend.commit(Position("1"), Position("2"), unfit, clear=True)
    assert backend.items("user") == [("1", b"1")]
    backend.close()
    again = SqliteBackend(tmp_path / "state.db")
    assert again.open("stream", {}) == Position("1")
    assert again.items("user") == [("1", b"1")]
    again.close()


def test_two_writers_of_one_file_are_told_apart(tmp_path: Path) -> None:
    one, two = (SqliteBackend(tmp_path / "state.db") for _ in range(2))
    for backend in (one, two):
        backend.open("stream", {})
    one.commit(Position(), Position("1"), {("user", "1"): b"1"}, clear=False)
    with pytest.raises(StoreLocked):
        two.commit(Position(), Position("1"), {("user", "1"): b"2"}, clear=False)
    assert one.get("user", "1") == b"1"
    one.close()
    two.close()


def test_a_file_belongs_to_one_stream(tmp_path: Path) -> None:
    for name, opened in ((None, "a"), ("b", "moved")):
        backend = SqliteBackend(tmp_path / f"{opened}.db", name=name)
        backend.open(opened, {})
        backend.close()
    other = SqliteBackend(tmp_path / "a.db")
    with pytest.raises(ValueError, match="holds the state of a"):
        other.open("b", {})
    other.close()
    moved = SqliteBackend(tmp_path / "moved.db", name="b")
    moved.open("elsewhere", {})
    moved.close()


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreTooNew):
        SqliteBackend(tmp_path / "state.db")


def test_indexes_can_be_added_and_dropped_later(
    live: Lives, name: str, stream: Stream, schema: StateSchema, tmp_path: Path
) -> None:
    stream.append_many([
        insert("user", each, {"id": each, "city": "Oslo"}).to_json() for each in "ab"
    ])  # fmt: skip
    for indexes in ({}, {"users": ["city", "id"]}, {"users": ["id"]}, {"users": ["city"]}):
        backend = SqliteBackend(tmp_path / "state.db")
        with live(name, backend=backend, schema=schema, indexes=indexes) as state:
            state.wait_up_to_date(WAIT_S)
            assert sorted(state.users.keys_where(city="Oslo")) == ["a", "b"]
            assert state.users.keys_where(id="b") == ["b"]
            with state.transaction() as tx:
                tx.users.update({"id": "b", "city": "Oslo"})
    rows = sqlite3.connect(tmp_path / "state.db")
    assert rows.execute("SELECT count(*) FROM lookup").fetchone() == (2,)
    rows.close()
