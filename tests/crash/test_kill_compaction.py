"""kill -9 while a state stream is written to and compacted: its state is the one that was told.

A compaction and an append are on their way at each kill, on connections of their own; each has
happened or not. The log is the old one or the new one, whole.
"""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from penstock.log.offline.verify import verify
from tests.crash.test_kill import SMALL
from tests.crash.writers import TIMEOUT_S
from tests.helpers.server import running_server

PATH = "/v1/stream/s"
HEADERS = {"Content-Type": "application/json"}
State = dict[str, Any]


def test_a_state_survives_5_kills(tmp_path: Path) -> None:
    _run(tmp_path / "data", kills=5, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_a_state_survives_200_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path / "data", kills=200, seed=seed)


def _run(data_dir: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    allowed: list[State] = [{}]
    marks = 0
    for number in range(kills):
        with running_server(data_dir=data_dir, args=SMALL) as server:
            writer = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
            other = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
            if number == 0:
                assert _send(writer, "PUT", PATH)[0] == 201
                assert _send(writer, "PUT", "/v1/schema/s", {"types": {}})[0] in (200, 201)
            events = _events(writer)
            marks += _check_marks(events)
            state = _folded(events)
            assert state in allowed, (number, len(state))
            assert _indexed(writer) == state
            for _ in range(chance.randrange(15)):
                event = _event(chance, number)
                assert _send(writer, "POST", PATH, [event])[0] in (200, 204)
                _apply(state, event)
                if chance.random() < 0.2:
                    assert _send(other, "POST", f"{PATH}/__ds/compact")[0] == 200
                    assert _folded(_events(writer)) == state
            last = _event(chance, number)
            changed = dict(state)
            _apply(changed, last)
            allowed = [state, changed]
            if chance.random() < 0.5:
                _request(writer, "POST", PATH, [last])
            _request(other, "POST", f"{PATH}/__ds/compact")
            if chance.random() < 0.3:
                other.getresponse().read()
            server.kill()
            writer.close()
            other.close()
        assert verify(data_dir).problems == []
    assert marks > kills // 2, "hardly a compaction met a kill"


def _event(chance: random.Random, number: int) -> dict[str, Any]:
    event: dict[str, Any] = {"type": "a", "key": str(chance.randrange(20))}
    if chance.random() < 0.3:
        return {**event, "headers": {"operation": "delete"}}
    value = f"{number} {chance.random()}" + "x" * chance.choice((0, 100, 3000))
    return {**event, "headers": {"operation": "upsert"}, "value": value}


def _apply(state: State, event: dict[str, Any]) -> None:
    if event["headers"]["operation"] == "delete":
        state.pop(event["key"], None)
    else:
        state[event["key"]] = event["value"]


def _folded(events: list[dict[str, Any]]) -> State:
    state: State = {}
    for event in events:
        if "operation" in event["headers"]:
            _apply(state, event)
    return state


def _check_marks(events: list[dict[str, Any]]) -> bool:
    """A stream with a snapshot begins with it, and has all of it."""
    marks = [event["headers"].get("control") for event in events]
    if not any(marks):
        return False
    assert marks[0] == "snapshot-start"
    assert marks.count("snapshot-start") == marks.count("snapshot-end") == 1
    return True


def _events(connection: HTTPConnection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    offset = "-1"
    while True:
        connection.request("GET", f"{PATH}?offset={offset}")
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        events += json.loads(body)
        offset = response.headers["stream-next-offset"]
        if "stream-up-to-date" in response.headers:
            return events


def _indexed(connection: HTTPConnection) -> State:
    status, content = _send(connection, "GET", "/v1/state/s")
    assert status == 200
    found: State = content["types"].get("a", {})
    return found


def _request(connection: HTTPConnection, method: str, target: str, body: Any = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    connection.request(method, target, data, HEADERS)


def _send(connection: HTTPConnection, method: str, target: str, body: Any = None) -> Any:
    _request(connection, method, target, body)
    response = connection.getresponse()
    text = response.read()
    return response.status, json.loads(text) if text else None
