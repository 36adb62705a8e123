"""Resets to an offset behind them: everything before that offset is discarded, and nothing else.

The server's index at every offset, live states that start at any moment, and what listeners hear
are compared with a fold that knows the position of each event.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock.client.requests import Request
from penstock.client.sync.stream import Stream
from penstock.state import (
    Collection,
    LiveState,
    SqliteBackend,
    StateBatch,
    StateSchema,
    delete,
    insert,
    reset,
    upsert,
)
from tests.helpers.server import Server
from tests.state.live_driver import QUICK, WAIT_S, Lives

Places = dict[tuple[str, str], tuple[str, Any]]


def append(stream: Stream, *events: Any) -> str:
    return stream.append_many([event.to_json() for event in events]).offset


def declare(stream: Stream) -> None:
    url = stream.url.replace("/v1/stream/", "/v1/schema/")
    assert httpx2.put(url, content=b'{"types": {}}').status_code == 201


def state_at(stream: Stream, offset: str = "now") -> Any:
    url = stream.url.replace("/v1/stream/", "/v1/state/")
    params = {"offset": offset, "limit": "10000"}
    body = stream.client.request(Request("GET", url, params=params)).body
    return json.loads(body)["types"]


class Fold:
    """The state by definition: each entity with the offset of its event."""

    def __init__(self) -> None:
        self.places: Places = {}

    def apply(self, event: Any, offset: str) -> None:
        """Apply an event that begins at an offset."""
        if event.headers.control:
            floor = event.offset
            for entity, (place, _) in list(self.places.items()):
                if floor is None or place < floor:
                    del self.places[entity]
        elif event.operation == "delete":
            self.places.pop((event.type, event.key), None)
        else:
            self.places[event.type, event.key] = (offset, event.value)

    @property
    def types(self) -> dict[str, dict[str, Any]]:
        types: dict[str, dict[str, Any]] = {}
        for (type, key), (_, value) in self.places.items():
            types.setdefault(type, {})[key] = value
        return types


def script(stream: Stream, seed: int, count: int) -> tuple[Fold, dict[str, Any]]:
    """Append random events in random batches; return the state, and those at each offset."""
    chance = random.Random(seed)
    fold = Fold()
    offsets = [stream.head().offset]
    states: dict[str, Any] = {}
    for number in range(count):
        kind, key = chance.random(), f"k{chance.randrange(12)}"
        if kind < 0.03:
            event: Any = reset()
        elif kind < 0.12:
            event = reset(offset=chance.choice(offsets[-30:]))
        elif kind < 0.25:
            event = delete("user", key)
        else:
            event = upsert("user", key, {"n": number, "text": "x" * chance.randrange(80)})
        fold.apply(event, offsets[-1])
        offsets.append(append(stream, event))
        states[offsets[-1]] = fold.types
    return fold, states


@pytest.mark.parametrize("seed", [1, 2])
def test_the_index_at_every_offset_is_the_fold(stream: Stream, seed: int) -> None:
    declare(stream)
    fold, states = script(stream, seed, 120)
    for offset, types in states.items():
        assert state_at(stream, offset) == types
    assert state_at(stream) == fold.types
    stream.compact()
    assert state_at(stream) == fold.types


@pytest.mark.parametrize("seed", [3, 4])
def test_live_states_are_the_fold_whenever_they_start(
    live: Lives, name: str, stream: Stream, seed: int, tmp_path: Path
) -> None:
    heard: dict[tuple[str, str], Any] = {}

    def listen(batch: StateBatch) -> None:
        for change in batch.changes:
            entity = (change.type, change.key)
            assert heard.get(entity) == change.old
            heard[entity] = change.new

    with live.client() as client:
        following = live.not_started(client, name, backend=SqliteBackend(tmp_path / "state"))
        following.on_batch(listen)
        with following:
            fold, _ = script(stream, seed, 200)
            following.wait_up_to_date(WAIT_S)
            assert following.to_dict() == fold.types
    visible = {entity: value for entity, value in heard.items() if value is not None}
    assert visible == {entity: value for entity, (_, value) in fold.places.items()}
    with live(name) as late, live(name, bootstrap="state") as loaded:
        for state in (late, loaded):
            state.wait_up_to_date(WAIT_S)
            assert state.to_dict() == fold.types


def test_a_fork_has_the_resets_that_it_inherits(
    live: Lives, name: str, stream: Stream, server: Server
) -> None:
    append(stream, insert("user", "1", 1))
    before = append(stream, insert("user", "2", 2))
    append(stream, upsert("user", "3", 3), reset(offset=before))
    with penstock.Client(server.url, retry=QUICK) as client:
        fork = client.stream(f"{name}-fork")
        fork.create(forked_from=stream)
        declare(fork)
        assert state_at(fork) == {"user": {"3": 3}}
        own = append(fork, insert("user", "4", 4))
        append(fork, insert("user", "5", 5), reset(offset=before))
        assert state_at(fork) == {"user": {"3": 3, "4": 4, "5": 5}}
        append(fork, reset(offset=own))
        assert state_at(fork) == {"user": {"5": 5}}
        with live(f"{name}-fork") as state:
            state.wait_up_to_date(WAIT_S)
            assert state.to_dict() == {"user": {"5": 5}}


def test_a_snapshot_is_switched_to_by_a_reset_to_its_beginning(
    live: Lives, name: str, stream: Stream
) -> None:
    """The use: the new state is written first, and one event makes it the state."""
    append(stream, *(insert("user", str(number), "old") for number in range(100)))
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        before = stream.head().offset
        append(stream, *(insert("user", str(number), "new") for number in range(50, 60)))
        append(stream, reset(offset=before))
        state.wait_up_to_date(WAIT_S)
        assert state.get_type("user") == {str(number): "new" for number in range(50, 60)}


def test_what_is_invalid_or_not_selected_is_not_retained(
    live: Lives, name: str, stream: Stream
) -> None:
    schema = StateSchema(users=Collection(type="user", schema={"type": "integer"}))
    append(stream, insert("user", "1", 1), insert("user", "2", 2))
    before = stream.head().offset
    append(stream, upsert("user", "1", "bad"), upsert("user", "2", 20), upsert("flag", "1", 1))
    with live(name, schema=schema, type="user") as state:
        state.wait_up_to_date(WAIT_S)
        append(stream, reset(offset=before))
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"2": 20}}


def test_an_offset_that_was_trimmed_retains_what_is_there(stream: Stream, server: Server) -> None:
    append(stream, insert("user", "1", 1))
    before = stream.head().offset
    trimmed = append(stream, insert("user", "2", 2))
    append(stream, insert("user", "3", 3))
    with (
        penstock.Client(server.url, retry=QUICK) as client,
        LiveState(client.stream(stream.url)) as state,
    ):
        state.wait_up_to_date(WAIT_S)
        stream.trim(trimmed)
        append(stream, reset(offset=before), insert("user", "4", 4))
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"3": 3, "4": 4}}


def test_a_live_state_that_is_killed_before_the_reset_applies_it_once_more(
    stream: Stream, server: Server, tmp_path: Path
) -> None:
    append(stream, insert("user", "1", 1))
    before = append(stream, insert("user", "2", 2))
    append(stream, upsert("user", "2", 3))
    with penstock.Client(server.url, retry=QUICK) as client:
        with LiveState(client.stream(stream.url), backend=SqliteBackend(tmp_path / "s")) as state:
            state.wait_up_to_date(WAIT_S)
        append(stream, reset(offset=before))
        for _ in range(2):
            backend = SqliteBackend(tmp_path / "s")
            with LiveState(client.stream(stream.url), backend=backend) as state:
                state.wait_up_to_date(WAIT_S)
                assert state.to_dict() == {"user": {"2": 3}}
