"""Live states of a stream that is compacted under them: whatever they had seen, they end equal."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client.sync.stream import Stream
from penstock.state import MaterializedState, SqliteBackend
from tests.state.live_driver import WAIT_S, Lives, Recorder

WRITES = 120


@pytest.fixture
def declared(stream: Stream) -> Stream:
    url = stream.url.replace("/v1/stream/", "/v1/schema/", 1)
    assert httpx2.put(url, content=b'{"types": {}}').status_code in (200, 201)
    return stream


class Writer:
    """Appends changes, and knows what they come to."""

    def __init__(self, stream: Stream, seed: int) -> None:
        self._stream = stream
        self._chance = random.Random(seed)
        self.state = MaterializedState()

    def write(self, count: int) -> None:
        for _ in range(count):
            event: dict[str, Any] = {"type": "a", "key": str(self._chance.randrange(30))}
            if self._chance.random() < 0.3:
                event |= {"headers": {"operation": "delete"}}
            else:
                event |= {"headers": {"operation": "upsert"}, "value": self._chance.random()}
            self._stream.append(event)
            self.state.apply_json(json.dumps([event]))


def test_live_states_follow_through_compactions(live: Lives, name: str, declared: Stream) -> None:
    writer = Writer(declared, 1)
    writer.write(10)
    done = threading.Event()
    compactions = 0

    def compact() -> None:
        nonlocal compactions
        while not done.is_set():
            declared.compact()
            compactions += 1

    with live(name) as first, live(name, bootstrap="state") as second:
        thread = threading.Thread(target=compact)
        thread.start()
        try:
            writer.write(WRITES)
            with live(name) as third:  # from -1, in the middle of it
                writer.write(WRITES)
                while compactions < 3 and thread.is_alive():
                    writer.write(1)
                done.set()
                thread.join()
                for state in (first, second, third):
                    state.wait_up_to_date(WAIT_S)
                    assert state.to_dict() == writer.state.to_dict()
        finally:
            done.set()
            thread.join()
    assert compactions >= 3


def test_a_state_on_disk_that_was_left_behind_begins_anew(
    live: Lives, name: str, declared: Stream, tmp_path: Path
) -> None:
    """Else what was deleted while nobody looked would be in it for ever."""
    writer = Writer(declared, 2)
    writer.write(40)
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        state.wait_up_to_date(WAIT_S)
        before = state.to_dict()
        assert before == writer.state.to_dict()
    writer.write(40)
    declared.compact()
    writer.write(5)
    assert before["a"].keys() - writer.state.to_dict()["a"].keys()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == writer.state.to_dict()


def test_a_state_at_the_tail_is_not_cleared(live: Lives, name: str, declared: Stream) -> None:
    writer = Writer(declared, 3)
    writer.write(40)
    resets: list[object] = []

    def on_reset(cause: object) -> None:
        resets.append(cause)

    with live(name, on_reset=on_reset) as state:
        state.wait_up_to_date(WAIT_S)
        declared.compact()
        writer.write(1)
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == writer.state.to_dict()
        assert not state.in_snapshot
    assert resets == []


def numbered(count: int, *, txid: str | None = None) -> list[dict[str, Any]]:
    """Enough for a snapshot of many chunks."""
    headers = {"operation": "insert", **({} if txid is None else {"txid": txid})}
    return [
        {"type": "n", "key": f"{number:04d}", "value": {"n": number}, "headers": headers}
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_callbacks_at_the_tail_hear_of_nothing_that_stays_as_it_is(
    live: Lives, name: str, declared: Stream, tmp_path: Path, kind: str
) -> None:
    declared.append_many(numbered(300))
    backend = None if kind == "memory" else SqliteBackend(tmp_path / "state")
    recorder, controls = Recorder(), Recorder()
    with live(name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        before = state.to_dict()
        state.on_change(recorder)
        state.on_control(lambda event: controls(event.control))
        for number in range(3):
            declared.compact()
            declared.append({**numbered(1)[0], "value": number})
        declared.append({**numbered(1)[0], "type": "end"})
        changes = recorder.until("end")
        assert [call[1:] for call in changes[:-1]] == [
            ("0000", {"n": 0}, 0), ("0000", 0, 1), ("0000", 1, 2),
        ]  # fmt: skip
        assert [call[0] for call in controls.calls] == ["snapshot-start", "snapshot-end"] * 3
        assert len(state.collection("n")) == 300
        assert state.get_type("n") == {**before["n"], "0000": 2}
        assert not state.in_snapshot


def test_transactions_are_waited_for_through_a_compaction(
    live: Lives, name: str, declared: Stream
) -> None:
    declared.append_many(numbered(200, txid="early"))
    with live(name) as state:
        state.wait_txid("early", WAIT_S)
        assert len(state.collection("n")) == 200
        recorder = Recorder()
        state.on_change(recorder)
        transaction = state.transaction()
        transaction.update("n", "0001", "mine")
        declared.compact()
        declared.append(numbered(1)[0] | {"key": "after"})
        state.wait_up_to_date(WAIT_S)
        # The snapshot has the old value, and the old txid; what was changed here stays shown.
        assert state.get("n", "0001") == "mine"
        transaction.commit(WAIT_S)
        assert [call[1:] for call in recorder.calls] == [
            ("0001", {"n": 1}, "mine"), ("after", None, {"n": 0}),
        ]  # fmt: skip
        with pytest.raises(TimeoutError):
            state.wait_txid("never", 0.01)


def test_who_begins_with_the_snapshot_sees_a_transaction_whole(
    live: Lives, name: str, declared: Stream
) -> None:
    """Its rows are next to each other there, also when they are cut into chunks."""
    declared.append_many(numbered(20))
    declared.append_many([each | {"type": "t"} for each in numbered(200, txid="whole")])
    declared.append_many([each | {"key": f"x{each['key']}"} for each in numbered(20)])
    declared.compact()
    with live(name) as state:
        state.wait_txid("whole", WAIT_S)
        assert len(state.collection("t")) == 200
