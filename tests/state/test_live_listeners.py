"""Live states that report every event, hold a selection, and start at an offset; in both shells."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from penstock import Client
from penstock.client.batches import Batch
from penstock.client.message_offsets import message_ends
from penstock.client.sync.stream import Stream
from penstock.errors import BadRequest, ClientClosed, PenstockError, StreamNotFound
from penstock.state import SqliteBackend, StateBatch, StateChange, delete, insert, reset, upsert
from tests.helpers.server import running_server
from tests.state.live_driver import WAIT_S, Lives, shells


def append(stream: Stream, *events: Any) -> str:
    return stream.append_many([event.to_json() for event in events]).offset


class Batches:
    """A listener that records batches."""

    def __init__(self) -> None:
        self.batches: list[StateBatch] = []

    def __call__(self, batch: StateBatch) -> None:
        self.batches.append(batch)

    @property
    def changes(self) -> list[StateChange]:
        return [change for batch in self.batches for change in batch.changes]


def followed(live: Lives, name: str, **options: Any) -> tuple[Batches, dict[str, Any]]:
    """What a listener hears of a closed stream, and the state at its end."""
    listener = Batches()
    with live.client() as client:
        state = live.not_started(client, name, **options)
        state.on_batch(listener)
        with state:
            state.wait_end(WAIT_S)
            return listener, state.to_dict()


def test_each_event_is_reported_with_operation_offset_and_values_as_written(
    live: Lives, name: str, stream: Stream
) -> None:
    offsets = [
        append(stream, event)
        for event in (
            insert("user", "1", {"n": 1}, txid="tx-1"),
            upsert("user", "1", {"n": 1}),
            delete("user", "absent"),
            delete("user", "1"),
        )
    ]
    stream.append(b'{"type":"user","key":"2","value":1.100,"headers":{"operation":"update"}}')
    offsets.append(stream.head().offset)
    offsets.append(append(stream, reset()))
    stream.close()
    heard, _ = followed(live, name)
    assert [(each.key, each.operation, each.old_raw, each.new_raw) for each in heard.changes] == [
        ("1", "insert", None, b'{"n":1}'),
        ("1", "upsert", b'{"n":1}', b'{"n":1}'),
        ("absent", "delete", None, None),
        ("1", "delete", b'{"n":1}', None),
        ("2", "update", None, b"1.100"),
        ("2", "reset", b"1.100", None),
    ]
    assert [each.offset for each in heard.changes] == offsets
    assert heard.changes[0].txid == "tx-1"
    assert (heard.changes[1].old, heard.changes[1].new) == ({"n": 1}, {"n": 1})
    assert heard.batches[-1].offset == offsets[-1]
    assert heard.batches[-1].url == stream.url


def test_each_message_of_one_request_has_its_own_offset(
    live: Lives, name: str, stream: Stream
) -> None:
    stream.append_many([insert("user", str(number), "é" * number).to_json() for number in range(5)])
    stream.append({"no": "event"})
    last = append(stream, insert("user", "5", 5))
    stream.close()
    heard, _ = followed(live, name)
    assert heard.changes[-1].offset == last
    for change in heard.changes:
        # Reading on from the offset of a change begins with the message after it.
        messages = stream.read(change.offset).messages
        after = [each["key"] for each in messages if "key" in each]
        assert after == [str(key) for key in range(int(change.key) + 1, 6)]


def test_offsets_of_a_server_that_does_not_count_bytes_are_those_of_the_batch() -> None:
    batch = Batch(
        offset="a", next_offset="b", up_to_date=True, closed=False,
        content_type="application/json", data=b"[1,22,333]",
    )  # fmt: skip
    assert message_ends(batch) == ["a", "a", "b"]


def test_events_behind_an_overlay_are_reported_when_they_come(live: Lives, name: str) -> None:
    with live(name) as state:
        listener = Batches()
        remove = state.on_batch(listener)
        with state.transaction() as tx:
            tx.insert("user", "1", "mine")
            assert listener.changes == []  # it is not in the stream yet
        assert [(each.key, each.new, each.txid) for each in listener.changes] == [
            ("1", "mine", tx.txid)
        ]
        remove()
        with state.transaction() as tx:
            tx.delete("user", "1")
        assert len(listener.changes) == 1


@pytest.mark.parametrize(
    ("selection", "entities"),
    [
        ({"type": "user"}, {"user": {"a1": 1, "a2": 2, "b1": 3}}),
        ({"type": "user", "prefix": "a"}, {"user": {"a1": 1, "a2": 2}}),
        ({"type": "flag", "key": "a1"}, {"flag": {"a1": 4}}),
        ({"type": "none"}, {}),
    ],
)
@pytest.mark.parametrize("bootstrap", ["stream", "state"])
def test_a_selection_bounds_what_is_held_and_reported(
    live: Lives, name: str, stream: Stream, selection: Any, entities: Any, bootstrap: str
) -> None:
    append(stream, insert("user", "a1", 1), insert("user", "a2", 2), insert("user", "b1", 3))
    append(stream, insert("flag", "a1", 4), insert("flag", "b2", 5))
    stream.close()
    heard, state = followed(live, name, bootstrap=bootstrap, **selection)
    assert state == entities
    reported = {(each.type, each.key) for each in heard.changes}
    assert reported == {(type, key) for type, keys in entities.items() for key in keys}
    expected = "load" if bootstrap == "state" else "insert"
    assert {each.operation for each in heard.changes} <= {expected}


def test_a_selection_holds_no_overlay_of_other_entities(live: Lives, name: str) -> None:
    with live(name, type="user") as state:
        with state.transaction() as tx:
            tx.insert("user", "1", 1)
            tx.insert("flag", "1", 2)
            assert state.to_dict() == {"user": {"1": 1}}
        assert state.to_dict() == {"user": {"1": 1}}


@pytest.mark.parametrize("file_name", [None, "people"])
def test_a_file_belongs_to_one_selection(
    live: Lives, name: str, stream: Stream, tmp_path: Path, file_name: str | None
) -> None:
    append(stream, insert("user", "1", 1), insert("flag", "1", 2))

    def backend() -> SqliteBackend:
        return SqliteBackend(tmp_path / "state.db", name=file_name)

    with live(name, backend=backend(), type="user") as state:
        state.wait_up_to_date(WAIT_S)
    with live(name, backend=backend(), type="user") as state:
        assert state.to_dict() == {"user": {"1": 1}}
    with live.client() as client, pytest.raises(ValueError, match="another file"):
        live.not_started(client, name, backend=backend())


def test_at_an_offset_it_starts_with_the_state_there(
    live: Lives, name: str, stream: Stream
) -> None:
    append(stream, insert("user", "1", 1), insert("user", "2", 1))
    middle = append(stream, upsert("user", "1", 2))
    append(stream, upsert("user", "1", 3))
    stream.close()
    heard, state = followed(live, name, at=middle)
    assert state == {"user": {"1": 3, "2": 1}}
    assert [(each.key, each.operation, each.old, each.new) for each in heard.changes] == [
        ("1", "load", None, 2),
        ("2", "load", None, 1),
        ("1", "upsert", 2, 3),
    ]
    assert {each.offset for each in heard.changes[:2]} == {middle}
    assert [each.operation for each in followed(live, name, at="now")[0].changes] == ["load"] * 2
    assert [each.new for each in followed(live, name, at="-1")[0].changes] == [1, 1, 2, 3]


def test_a_start_that_the_server_cannot_give_ends_the_state(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name, at="nonsense") as state, pytest.raises(BadRequest):
        state.wait_end(WAIT_S)
    with live("absent", at="now") as state, pytest.raises(StreamNotFound):
        state.wait_end(WAIT_S)


def test_wait_end_raises_what_ended_the_state(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state:
        state.close()
        with pytest.raises(ClientClosed):
            state.wait_end(WAIT_S)
    with live(name) as state:
        with pytest.raises(TimeoutError, match="not closed"):
            state.wait_end(0)
        stream.close()
        state.wait_end(WAIT_S)
    with live(name, at="now") as state:
        state.wait_end(WAIT_S)
        assert state.get_raw("user", "1") is None


@pytest.mark.parametrize(
    "options",
    [
        {"key": "1"},
        {"prefix": "a"},
        {"type": "user", "key": "1", "prefix": "a"},
        {"at": "now", "on_reset": "raise"},
    ],
)
def test_options_that_do_not_go_together_are_refused(live: Lives, name: str, options: Any) -> None:
    with live.client() as client, pytest.raises(ValueError, match=r"type|either|on_reset"):
        live.not_started(client, name, **options)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_outage_and_its_end_are_reported(kind: str, tmp_path: Path) -> None:
    outages: queue.Queue[PenstockError | None] = queue.Queue()
    data = tmp_path / "data"
    with running_server(data_dir=data) as server, shells(kind, server.url) as lives:
        with Client(server.url) as client:
            client.stream("team").create()
            append(client.stream("team"), insert("user", "1", 1))
        with lives("team", on_outage=outages.put) as state:
            state.wait_up_to_date(WAIT_S)
            server.kill()
            assert outages.get(timeout=WAIT_S) is not None
            with running_server(data_dir=data, args=["--port", str(server.port)]):
                assert outages.get(timeout=WAIT_S) is None
                assert state.to_dict() == {"user": {"1": 1}}
