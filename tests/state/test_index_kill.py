"""kill -9 while a declared stream is indexed and appended to: answers still equal the log replayed.

When a server is killed is decided by what it has acknowledged or indexed, not by the clock. Readers
ask for the state all the while; each of their answers is compared with a replay too.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock.cli.messages import Splitter
from tests.helpers.server import running_server
from tests.state.live_driver import QUICK

WAIT_S = 30.0
SMALL = [
    *("--checkpoint-bytes", "512KiB"),
    *("--journal-file-bytes", "1MiB"),
    *("--segment-bytes-max", "512KiB"),
    *("--chunk-size", "256KiB"),
    *("--disk-reserve-bytes", "0"),
    *("--log-level", "warning"),
]
JUNK = [1, "two", {"no": "event"}, {"type": "user", "headers": {"operation": "insert"}}]
Log = list[tuple[str, Any]]
State = dict[tuple[str, str], Any]


def test_kill_5_times(tmp_path: Path) -> None:
    _run(tmp_path / "data", kills=5, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_kill_60_times(tmp_path: Path, seed: int) -> None:
    _run(tmp_path / "data", kills=60, seed=seed)


def _run(data_dir: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    answers: list[dict[str, Any]] = []
    for number in range(kills):
        with running_server(data_dir=data_dir, args=SMALL) as server:
            if number == 0:
                _declare(server.url)
            if chance.random() < 0.3:
                _check(server.url, chance, answers)
            with _load(server.url, seed * 1000 + number, answers) as load:
                if chance.random() < 0.5:
                    load.wait_for_appends(chance.randrange(1, 12))
                else:
                    _wait_for_index(server.url, chance.randrange(1, 400_000))
                server.kill()
        if chance.random() < 0.3:
            shutil.rmtree(data_dir / "state", ignore_errors=True)
    with running_server(data_dir=data_dir, args=SMALL) as server:
        _check(server.url, chance, answers)
        assert _metric(server.url, "penstock_state_lag_bytes") == 0
        assert server.terminate() == 0
    assert len(answers) == 0


def _declare(url: str) -> None:
    with penstock.Client(url, retry=QUICK) as client:
        stream = client.stream("s")
        stream.create()
        stream.append_many(JUNK)
    httpx2.put(f"{url}/v1/schema/s", json={"types": {}}).raise_for_status()


class _Load(threading.Thread):
    """Appends events, and reads the state as often, until the server is gone."""

    def __init__(self, url: str, seed: int, answers: list[dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._chance = random.Random(seed)
        self._answers = answers
        self._changed = threading.Condition()
        self._appended = 0

    def run(self) -> None:
        try:
            with httpx2.Client(base_url=self._url, timeout=WAIT_S) as http:
                while True:
                    events = [_event(self._chance) for _ in range(self._chance.randrange(1, 120))]
                    http.post("/v1/stream/s", json=events).raise_for_status()
                    with self._changed:
                        self._appended += 1
                        self._changed.notify_all()
                    answer = http.get("/v1/state/s", params={"limit": "10000"})
                    if answer.status_code == 200:
                        self._answers.append(answer.json())
        except httpx2.TransportError:
            pass

    def wait_for_appends(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._appended >= count, WAIT_S)


@contextmanager
def _load(url: str, seed: int, answers: list[dict[str, Any]]) -> Iterator[_Load]:
    load = _Load(url, seed, answers)
    load.start()
    yield load
    load.join(WAIT_S)
    assert not load.is_alive()


def _event(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.002:
        return {"headers": {"control": "reset"}}
    place = {"type": chance.choice(["user", "flag"]), "key": f"k{chance.randrange(40)}"}
    if chance.random() < 0.2:
        return {**place, "headers": {"operation": "delete"}}
    # Beyond 4 KiB a value is only in the log.
    size = chance.choice([0, 10, 100, 1000, 5000])
    value = {"n": chance.randrange(10**9), "text": "x" * size}
    return {**place, "value": value, "headers": {"operation": "upsert"}}


def _wait_for_index(url: str, count: int) -> None:
    """Until this server has indexed so many bytes."""
    while _metric(url, "penstock_state_indexed_bytes_total") < count:
        pass


def _metric(url: str, name: str) -> float:
    text = httpx2.get(f"{url}/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])


def _check(url: str, chance: random.Random, answers: list[dict[str, Any]]) -> None:
    """The state now, at any offset, the histories, and what readers were told: as the log says."""
    log = _read(url)
    offsets = chance.sample([offset for offset, _ in log], min(12, len(log)))
    states = _replay(log, {log[-1][0], *offsets, *(answer["offset"] for answer in answers)})
    with httpx2.Client(base_url=url, timeout=WAIT_S) as http:
        now = _state(http)
        assert now["offset"] == log[-1][0]
        for answer in [now, *answers]:
            assert _flat(answer) == states[answer["offset"]]
        for offset in offsets:
            assert _flat(_state(http, offset=offset)) == states[offset]
        for _ in range(6):
            _check_history(http, log, chance)
    answers.clear()


def _read(url: str) -> Log:
    """Every message with the offset after it."""
    with penstock.Client(url, retry=QUICK) as client:
        splitter = Splitter("s")
        return [
            (message.next_offset, json.loads(message.data))
            for batch in client.stream("s").iter_batches(decode=False)
            for message in splitter.split(batch)
        ]


def _replay(log: Log, offsets: set[str]) -> dict[str, State]:
    """The states at some offsets."""
    state: State = {}
    states = {}
    for offset, event in log:
        if event not in JUNK:
            if "control" in event["headers"]:
                state = {}
            else:
                state[event["type"], event["key"]] = event.get("value")
                if event["headers"]["operation"] == "delete":
                    del state[event["type"], event["key"]]
        if offset in offsets:
            states[offset] = dict(state)
    return states


def _state(http: httpx2.Client, **params: str) -> dict[str, Any]:
    """All pages of a state as one."""
    state: dict[str, Any] = {"types": {}}
    params = {"limit": "7", **params}
    while True:
        answer = http.get("/v1/state/s", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert state.setdefault("offset", page["offset"]) == page["offset"]
        for type, values in page["types"].items():
            state["types"].setdefault(type, {}).update(values)
        if page["next"] is None:
            return state
        params = {**params, "offset": page["offset"], "after": page["next"]}


def _flat(answer: dict[str, Any]) -> State:
    return {
        (type, key): value for type, keys in answer["types"].items() for key, value in keys.items()
    }


def _check_history(http: httpx2.Client, log: Log, chance: random.Random) -> None:
    type, key = chance.choice(["user", "flag"]), f"k{chance.randrange(40)}"
    params = {"type": type, "key": key, "history": "true", "limit": "10000"}
    steps: list[dict[str, Any]] = []
    while True:
        page = http.get("/v1/state/s", params=params).json()
        steps += page["history"]
        if page["next"] is None:
            break
        params = {**params, "offset": page["offset"], "after": page["next"]}
    expected: list[dict[str, Any]] = []
    for ordinal, (offset, event) in enumerate(log):
        step: dict[str, Any] = {"offset": offset, "ordinal": ordinal}
        if event in JUNK:
            continue
        if "control" in event["headers"]:
            if expected:  # resets before it was there say nothing about it
                expected.append({**step, "control": "reset"})
        elif (event["type"], event["key"]) == (type, key):
            step["operation"] = event["headers"]["operation"]
            expected.append({**step, **({"value": event["value"]} if "value" in event else {})})
    assert steps == expected
