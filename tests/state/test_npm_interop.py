"""Both ways with npm `@durable-streams/state` 0.3.1, through a real server.

Its MaterializedState and its StreamDB read our streams and agree with ours; ours reads what its
helpers wrote. Two ways of StreamDB are its own and left out of the comparison: an update keeps the
fields that the new value lacks, and a reset ends it (with @tanstack/db 0.6.11, a
collection cannot be emptied outside a transaction).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from penstock.client.sync.stream import Stream
from penstock.state import LiveState
from tests.conformance.suite import find_node
from tests.helpers.server import Server, running_server
from tests.state.npm_state import PACKAGES, NpmState, npm_state
from tests.state.readers import declare, ours

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(
        find_node() is None or not all(package.exists() for package in PACKAGES),
        reason="Node or the npm packages are missing: `make test` installs both",
    ),
]

TYPES = ["user", "message"]
SCHEMA = {
    "types": {
        type: {
            "schema": {
                "type": "object",
                "required": ["id", "n"],
                "properties": {"id": {"type": "string"}, "n": {"type": "integer"}},
            }
        }
        for type in TYPES
    }
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(args=["--chunk-size", "4KiB"]) as running:
        yield running


@pytest.fixture(scope="module")
def npm() -> Iterator[NpmState]:
    with npm_state() as running:
        yield running


def change(operation: str, type: str, key: str, n: int, **headers: str) -> dict[str, Any]:
    event = {"type": type, "key": key, "headers": {"operation": operation, **headers}}
    return event if operation == "delete" else {**event, "value": {"id": key, "n": n}}


def random_events(seed: int, count: int, *, resets: bool) -> list[dict[str, Any]]:
    chosen = random.Random(seed)
    keys = ["1", "02", "é", "a/b", "__proto__", "\u2028", "👍", "constructor"]
    controls = ["snapshot-start", "snapshot-end", "up-to-date"] + ["reset"] * resets
    events: list[dict[str, Any]] = []
    for number in range(count):
        if chosen.random() < 0.05:
            events.append({"headers": {"control": chosen.choice(controls)}})
            continue
        operation = chosen.choice(["insert", "update", "upsert", "upsert", "delete"])
        key = chosen.choice(keys if resets else keys[:4] + keys[5:7])
        events.append(change(operation, chosen.choice(TYPES), key, number))
    return events


@pytest.mark.parametrize("seed", range(4))
def test_its_materialized_state_agrees_with_ours(stream: Stream, npm: NpmState, seed: int) -> None:
    events = random_events(seed, 400, resets=True)
    stream.append_many(events)
    answer = npm.ask("materialize", url=stream.url)
    assert {(type, key): value for type, key, value in answer["entries"]} == ours(stream)
    sent = [event["headers"]["control"] for event in events if "control" in event["headers"]]
    assert answer["controls"] == sent
    assert "reset" in sent


@pytest.mark.parametrize("declared", [True, False])
def test_its_stream_db_agrees_with_ours_and_follows(
    stream: Stream, npm: NpmState, declared: bool
) -> None:
    if declared:
        declare(stream, SCHEMA)
    stream.append_many(random_events(9, 400, resets=False))
    entries = npm.entries("open", url=stream.url, types=TYPES)
    assert len(entries) > 4
    assert entries == ours(stream)
    for number in range(3):
        stream.append_many(random_events(number, 50, resets=False))
        stream.append(change("upsert", "user", "last", number, txid=f"tx-{number}"))
        assert npm.entries("db", txid=f"tx-{number}") == ours(stream)
    assert npm.ask("db")["offset"] == stream.head().offset


def test_ours_reads_what_its_helpers_wrote(stream: Stream, npm: NpmState) -> None:
    declare(stream, SCHEMA)
    one, two = {"id": "1", "n": 1}, {"id": "1", "n": 2}
    headers = {"txid": "tx-1", "timestamp": "2025-01-15T10:30:00Z", "from": "npm"}
    changes: list[dict[str, Any]] = [
        {"type": "user", "operation": "insert", "value": one, "headers": headers},
        {"type": "user", "operation": "update", "value": two, "oldValue": one},
        {"type": "user", "operation": "upsert", "key": "2", "value": one},
        {"type": "user", "operation": "upsert", "value": {"id": "3", "n": 3, "more": None}},
        {"type": "user", "operation": "delete", "oldValue": {"id": "3", "n": 3}},
        {"type": "message", "operation": "insert", "value": {"id": "é 👍", "n": 4}},
        {"type": "message", "operation": "delete", "key": "never"},
    ]
    written = npm.ask("write", url=stream.url, changes=changes)["events"]
    assert stream.read_json() == written
    assert ours(stream) == {
        ("user", "1"): two,
        ("user", "2"): one,
        ("message", "é 👍"): {"id": "é 👍", "n": 4},
    }
    assert npm.entries("materialize", url=stream.url) == ours(stream)
    url = stream.url.replace("/v1/stream/", "/v1/state/")
    params = {"type": "user", "key": "1", "history": "true"}
    steps = httpx2.get(url, params=params).json()["history"]
    assert [(step["operation"], step["value"]) for step in steps] == [
        ("insert", one),
        ("update", two),
    ]
    assert (steps[0]["txid"], steps[0]["timestamp"]) == ("tx-1", headers["timestamp"])
    with LiveState(stream) as state:
        state.wait_txid("tx-1", 20)


def test_what_its_helpers_write_is_refused_if_the_declaration_says_so(
    stream: Stream, npm: NpmState
) -> None:
    declare(stream, SCHEMA)
    change = {"type": "user", "operation": "insert", "value": {"id": "1", "n": "one"}}
    refused = npm.tell("write", url=stream.url, changes=[change])
    assert "422" in refused["error"]
    assert ours(stream) == {}


def test_transactions_are_seen_from_both_sides(stream: Stream, npm: NpmState) -> None:
    assert npm.entries("open", url=stream.url, types=TYPES) == {}
    with LiveState(stream) as state:
        state.wait_up_to_date(20)
        with state.transaction() as transaction:
            transaction.insert("user", "1", {"id": "1", "n": 1})
            transaction.insert("message", "m", {"id": "m", "n": 2})
        assert npm.entries("db", txid=transaction.txid) == ours(stream)
        changes = [
            {"type": "user", "operation": "update", "value": {"id": "1", "n": 3}},
            {"type": "message", "operation": "delete", "key": "m"},
        ]
        theirs = npm.entries("transact", changes=changes, txid="from-npm")
        state.wait_txid("from-npm", 20)
        assert state.to_dict() == {"user": {"1": {"id": "1", "n": 3}}}
        assert theirs == ours(stream)


def test_control_events_that_it_appends_mean_the_same_here(stream: Stream, npm: NpmState) -> None:
    declare(stream, SCHEMA)
    events = [
        change("insert", "user", "old", 1),
        {"headers": {"control": "reset"}},
        {"headers": {"control": "snapshot-start"}},
        change("insert", "user", "new", 2),
        {"headers": {"control": "snapshot-end", "offset": stream.head().offset}},
    ]
    npm.ask("append", url=stream.url, events=events)
    assert ours(stream) == {("user", "new"): {"id": "new", "n": 2}}
    assert npm.entries("materialize", url=stream.url) == ours(stream)
    heard: list[str] = []
    state = LiveState(stream)
    state.on_control(lambda event: heard.append(event.control))
    with state:
        state.wait_up_to_date(20)
        assert not state.in_snapshot
    assert heard == ["reset", "snapshot-start", "snapshot-end"]
