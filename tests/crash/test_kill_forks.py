"""kill -9 while streams are forked, trimmed, extended and deleted: what was answered is there.

Requests go out one after the other; the last one before each kill is sent and not waited for, so
it has happened or not. Forks, and what is kept for them, are looked at over HTTP alone.
"""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.log.offline.verify import verify
from tests.crash.engines import SOFT_DELETED, Seen
from tests.crash.scenario import Operation, State, apply, is_same, states_after
from tests.crash.test_kill import SMALL
from tests.crash.writers import TIMEOUT_S
from tests.helpers.server import running_server

PATHS = ("a", "b", "c", "d", "e", "f")
HEADERS = {"Content-Type": "application/octet-stream"}


def test_forks_survive_12_kills(tmp_path: Path) -> None:
    _run(tmp_path / "data", kills=12, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_forks_survive_300_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path / "data", kills=300, seed=seed)


def _run(data_dir: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    done: list[Operation] = []
    in_flight: Operation | None = None
    met = 0
    for _ in range(kills):
        with running_server(data_dir=data_dir, args=SMALL) as server:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
            seen = _observe(connection)
            states = states_after(done)
            if not is_same(seen, states):
                assert in_flight is not None, f"{seen} after {done[-5:]}"
                done.append(in_flight)
                apply(states, in_flight)
                assert is_same(seen, states), f"{seen} after {done[-5:]}"
            met += sum(state.soft_deleted for state in states.values())
            for _ in range(chance.randrange(12)):
                operation = _choose(chance, states, len(done))
                status = _send(connection, operation).status
                assert status in (200, 201, 204), (operation, status)
                apply(states, operation)
                done.append(operation)
            in_flight = _choose(chance, states, len(done))
            _request(connection, in_flight)
            server.kill()
            connection.close()
        report = verify(data_dir)
        assert report.problems == []
    kinds = [operation.kind for operation in done]
    assert kinds.count("fork") > kills // 3
    assert kinds.count("trim") > kills // 8
    assert met > kills // 4, "hardly a soft-deleted stream met a kill"


def _choose(chance: random.Random, states: dict[str, State], number: int) -> Operation:
    path = chance.choice(PATHS)
    state = states.get(path)
    body = b"<%d:%s>" % (number, b"x" * chance.choice((5, 200, 3000)))
    if state is None:
        sources = [other for other, each in states.items() if not each.soft_deleted]
        if sources and chance.random() < 0.8:
            return Operation(path, "fork", body, source=chance.choice(sources))
        return Operation(path, "create", body)
    if state.soft_deleted:
        return _choose(chance, states, number)
    draw = chance.random()
    if draw < 0.3:
        return Operation(path, "delete")
    if draw < 0.45 and len(state.payload) > state.earliest:
        return Operation(path, "trim")
    return Operation(path, "append", body)


def _request(connection: HTTPConnection, operation: Operation) -> None:
    target = f"/v1/stream/{operation.path}"
    if operation.kind == "delete":
        connection.request("DELETE", target)
    elif operation.kind == "trim":
        connection.request("POST", f"{target}/__ds/trim", b'{"before": "now"}')
    elif operation.kind == "append":
        connection.request("POST", target, operation.body, HEADERS)
    else:
        source = {"Stream-Forked-From": f"/v1/stream/{operation.source}"}
        headers = HEADERS | (source if operation.kind == "fork" else {})
        connection.request("PUT", target, operation.body, headers)


class _Answer:
    def __init__(self, connection: HTTPConnection) -> None:
        response = connection.getresponse()
        self.status = response.status
        self.body = response.read()


def _send(connection: HTTPConnection, operation: Operation) -> _Answer:
    _request(connection, operation)
    return _Answer(connection)


def _observe(connection: HTTPConnection) -> dict[str, Seen]:
    """What readers see: bytes, or that a stream is there for its forks alone."""
    seen = {}
    for path in PATHS:
        connection.request("GET", f"/v1/stream/{path}")
        answer = _Answer(connection)
        if answer.status == 200:
            seen[path] = Seen(0, answer.body, False)
        elif answer.status == 410:
            assert json.loads(answer.body)["code"] == "stream-soft-deleted"
            seen[path] = Seen(0, SOFT_DELETED, False)
        else:
            assert answer.status == 404
    return seen
