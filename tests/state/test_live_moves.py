"""Live states that a reset leads on to another stream: before, at and after it they end equal."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import StateMoved, StateReset, StreamClosed
from penstock.state import SqliteBackend, delete, insert, reset, snapshot_end, snapshot_start
from penstock.state.live.moves import relative, resolved
from tests.state.live_driver import WAIT_S, Lives, Recorder

_numbers = itertools.count()


def append(stream: Stream, *events: Any) -> str:
    return stream.append_many([event.to_json() for event in events]).offset


def path_of(stream: Stream) -> str:
    return "/v1/stream/" + stream.url.rpartition("/")[2]


@pytest.fixture
def make(stream: Stream) -> Callable[..., Stream]:
    def create(*events: Any) -> Stream:
        created = stream.client.stream(f"moved-{next(_numbers)}")
        created.create()
        if events:
            append(created, *events)
        return created

    return create


Make = Callable[..., Stream]


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return None if request.param == "memory" else SqliteBackend(tmp_path / "state.db")


def rewritten(make: Make) -> Stream:
    """What `first` below comes to, and something that came after."""
    return make(
        snapshot_start(), insert("a", "1", 1), insert("a", "2", 2), snapshot_end(),
        insert("a", "4", 4),
    )  # fmt: skip


def first(stream: Stream) -> None:
    append(stream, insert("a", "1", 1), insert("a", "2", 2), insert("a", "3", 3))


def moved(state: Any, recorder: Recorder) -> None:
    """Wait until it is where the last change says."""
    recorder.until("b")
    state.wait_up_to_date(WAIT_S)


def test_a_state_at_the_tail_is_told_of_the_differences_alone(
    live: Lives, name: str, stream: Stream, make: Make, backend: Any
) -> None:
    first(stream)
    other = rewritten(make)
    recorder = Recorder()
    with live(name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        state.on_change(recorder)
        stream.close(reset(location=path_of(other)).to_json())
        append(other, insert("b", "end", 0))
        moved(state, recorder)
        assert state.to_dict() == {"a": {"1": 1, "2": 2, "4": 4}, "b": {"end": 0}}
        assert state.ended is None
        assert state.offset == other.head().offset
    changes = [call for call in recorder.calls if call[0] == "a"]
    assert changes == [("a", "3", 3, None), ("a", "4", None, 4)]


def test_a_state_that_begins_after_the_switch_ends_equal(
    live: Lives, name: str, stream: Stream, make: Make, backend: Any
) -> None:
    first(stream)
    other = rewritten(make)
    stream.close(reset(location=other.url).to_json())
    recorder = Recorder()
    with live(name, backend=backend) as state:
        state.on_change(recorder)
        append(other, insert("b", "end", 0))
        moved(state, recorder)
        assert state.to_dict() == {"a": {"1": 1, "2": 2, "4": 4}, "b": {"end": 0}}


def test_what_stands_before_the_reset_in_its_batch_is_shown_and_after_it_is_not(
    live: Lives, name: str, stream: Stream, make: Make
) -> None:
    other = make(snapshot_start(), insert("b", "end", 0))
    recorder, controls = Recorder(), Recorder()
    with live(name) as state:
        state.on_change(recorder)
        state.on_control(lambda event: controls(event.control))
        state.wait_up_to_date(WAIT_S)
        append(stream, insert("a", "1", 1), reset(location=path_of(other)), insert("a", "2", 2))
        assert recorder.until("a") == [("a", "1", None, 1)]
        controls.until("snapshot-start")
        # The snapshot has no end yet: there is no state to take over.
        assert state.to_dict() == {"a": {"1": 1}}
        append(other, snapshot_end())
        recorder.until("b")
        assert state.to_dict() == {"b": {"end": 0}}


def test_a_state_on_disk_goes_on_where_it_was_led(
    live: Lives, name: str, stream: Stream, make: Make, tmp_path: Path
) -> None:
    first(stream)
    other = rewritten(make)
    recorder = Recorder()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        state.on_change(recorder)
        stream.close(reset(location=path_of(other)).to_json())
        append(other, insert("b", "end", 0))
        moved(state, recorder)
    stream.delete()  # nothing of it is needed any more
    recorder = Recorder()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        assert state.get("a", "4") == 4
        state.on_change(recorder)
        append(other, delete("a", "4"))
        recorder.until("a")
        assert state.to_dict() == {"a": {"1": 1, "2": 2}, "b": {"end": 0}}
    # Known by the name of the new stream as well, and from then on by that alone.
    new_name = other.url.rpartition("/")[2]
    recorder = Recorder()
    with live(new_name, backend=SqliteBackend(tmp_path / "state")) as state:
        assert state.get("b", "end") == 0
        state.on_change(recorder)
        append(other, delete("b", "end"))
        recorder.until("b")
        assert state.to_dict() == {"a": {"1": 1, "2": 2}}
    with (
        pytest.raises(ValueError, match="holds the state of"),
        live(name, backend=SqliteBackend(tmp_path / "state")),
    ):
        pass


def test_a_state_on_disk_that_ends_on_its_way_finds_it_again(
    live: Lives, name: str, stream: Stream, make: Make, tmp_path: Path
) -> None:
    first(stream)
    other = make(snapshot_start(), insert("a", "1", 1))
    controls = Recorder()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        state.on_control(lambda event: controls(event.control))
        append(stream, insert("a", "4", 4), reset(location=path_of(other)))
        controls.until("snapshot-start")
    recorder = Recorder()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        assert state.get_type("a") == {"1": 1, "2": 2, "3": 3, "4": 4}
        state.on_change(recorder)
        append(other, insert("b", "end", 0), snapshot_end())
        moved(state, recorder)
        assert state.to_dict() == {"a": {"1": 1}, "b": {"end": 0}}


def test_a_file_of_the_first_format_is_taken_over(
    live: Lives, name: str, stream: Stream, tmp_path: Path
) -> None:
    first(stream)
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        state.wait_up_to_date(WAIT_S)
    with sqlite3.connect(tmp_path / "state") as file:
        file.execute("ALTER TABLE position DROP COLUMN location")
        file.execute("PRAGMA user_version = 1")
    file.close()
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        assert state.to_dict() == {"a": {"1": 1, "2": 2, "3": 3}}
        append(stream, delete("a", "3"))
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"a": {"1": 1, "2": 2}}


def test_streams_that_have_moved_in_turn_are_followed(
    live: Lives, name: str, stream: Stream, make: Make
) -> None:
    last = rewritten(make)
    middle = make(insert("a", "9", 9), reset(location=path_of(last)))
    first(stream)
    append(stream, reset(location=path_of(middle)))
    recorder = Recorder()
    with live(name) as state:
        state.on_change(recorder)
        append(last, insert("b", "end", 0))
        moved(state, recorder)
        assert state.to_dict() == {"a": {"1": 1, "2": 2, "4": 4}, "b": {"end": 0}}


def test_a_circle_ends_the_state_with_an_error(
    live: Lives, name: str, stream: Stream, make: Make
) -> None:
    other = make(reset(location=path_of(stream)))
    append(stream, reset(location=path_of(other)))
    with live(name) as state:
        with pytest.raises(StateMoved, match="circle"):
            state.wait_txid("never", WAIT_S)
        assert isinstance(state.ended, StateMoved)


@pytest.mark.parametrize(
    "location", ["https://127.0.0.1:1/v1/stream/x", "//elsewhere/v1/stream/x", "http://a:b@h/x"]
)
def test_another_server_is_not_followed(
    live: Lives, name: str, stream: Stream, location: str
) -> None:
    append(stream, insert("a", "1", 1), reset(location=location))
    with live(name) as state:
        with pytest.raises(StateMoved, match="another server") as caught:
            state.wait_txid("never", WAIT_S)
        assert caught.value.location.endswith(location)
        assert state.to_dict() == {"a": {"1": 1}}


def test_the_policy_is_asked_first(live: Lives, name: str, stream: Stream, make: Make) -> None:
    other = rewritten(make)
    append(stream, insert("a", "1", 1), reset(location=path_of(other)), insert("a", "2", 2))
    with live(name, on_reset=lambda cause: "keep") as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"a": {"1": 1, "2": 2}}
    with live(name, on_reset="raise") as state, pytest.raises(StateReset):
        state.wait_txid("never", WAIT_S)


def test_transactions_pass_over_the_switch(
    live: Lives, name: str, stream: Stream, make: Make, backend: Any
) -> None:
    first(stream)
    other = rewritten(make)
    with live(name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        with state.transaction() as transaction:
            transaction.insert("c", "1", "old")
        append(other, insert("c", "1", "old"))
        stream.close(reset(location=path_of(other)).to_json())
        # Whether the state has moved by now or not: it is refused there and stored here.
        with state.transaction() as transaction:
            transaction.insert("c", "2", "new")
        with state.transaction() as transaction:
            transaction.insert("c", "3", "newer")
        assert state.get_type("c") == {"1": "old", "2": "new", "3": "newer"}
    written = [event["key"] for event in other.read().messages if event.get("type") == "c"]
    assert written == ["1", "2", "3"]


def test_a_transaction_on_a_stream_that_is_just_closed_fails(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        stream.close()
        with pytest.raises(StreamClosed), state.transaction() as transaction:
            transaction.insert("c", "2", "new")


def test_transactions_that_came_along_are_seen(
    live: Lives, name: str, stream: Stream, make: Make
) -> None:
    first(stream)
    other = make(insert("a", "1", 1, txid="mine"))
    with live(name) as state:
        stream.close(reset(location=path_of(other)).to_json())
        state.wait_txid("mine", WAIT_S)
        assert state.to_dict() == {"a": {"1": 1}}


def test_a_start_from_the_servers_state_finds_the_successors(
    live: Lives, name: str, stream: Stream, make: Make, tmp_path: Path
) -> None:
    first(stream)
    other = rewritten(make)
    answer = httpx2.put(f"{stream.url}/__ds/successor", json={"location": path_of(other)})
    assert answer.json() == {"location": path_of(other)}
    assert stream.head().successor is None  # not closed yet
    stream.close(reset(location=path_of(other)).to_json())
    assert stream.head().successor == path_of(other)
    with live(name, bootstrap="state", backend=SqliteBackend(tmp_path / "state")) as state:
        state.wait_up_to_date(WAIT_S)
        append(other, insert("b", "end", 0))
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"a": {"1": 1, "2": 2, "4": 4}, "b": {"end": 0}}
        with state.transaction() as transaction:
            transaction.insert("c", "2", "new")
    with live(name, backend=SqliteBackend(tmp_path / "state")) as state:
        assert state.get("c", "2") == "new"


def test_writers_that_come_too_late_are_told_where_to_go(stream: Stream, make: Make) -> None:
    other = make()
    url = f"{stream.url}/__ds/successor"
    httpx2.put(url, json={"location": path_of(other)})
    stream.close(reset(location=path_of(other)).to_json())
    with pytest.raises(StreamClosed, match="Append to /v1/stream/moved-") as caught:
        stream.append({"late": True})
    assert caught.value.successor == path_of(other)
    assert httpx2.delete(url).status_code == 204
    with pytest.raises(StreamClosed, match="Append to a new stream") as caught:
        stream.append({"late": True})
    assert caught.value.successor is None
    wrong: Any
    for wrong in ({"location": "http://elsewhere/v1/stream/x"}, {"location": 7}, {}, []):
        assert httpx2.put(url, json=wrong).status_code == 400
    assert httpx2.get(url).json() == {"location": None}


class Appending(threading.Thread):
    """An append whose answer can be waited for."""

    def __init__(self, stream: Stream, event: Any) -> None:
        super().__init__()
        self._stream, self._event = stream, event
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            append(self._stream, self._event)
        except StreamClosed as error:
            self.error = error


def test_a_stream_can_be_held_until_its_readers_are_led_on(stream: Stream, make: Make) -> None:
    other = make()
    url = f"{stream.url}/__ds/successor"
    assert httpx2.put(url, json={"location": path_of(other), "hold": 10}).status_code == 200
    tail = stream.head().offset
    writers = [Appending(stream, insert("a", str(number), number)) for number in range(5)]
    closing = threading.Thread(target=stream.close)  # waits as well
    closing.start()
    for _ in range(20):
        assert stream.head().offset == tail  # nobody has got in
    stream.close(reset(location=path_of(other)).to_json(), if_match=tail)
    for writer in writers:
        writer.join(WAIT_S)
        assert isinstance(writer.error, StreamClosed)
        assert writer.error.successor == path_of(other)
    closing.join(WAIT_S)
    assert len(stream.read().messages) == 1


def test_a_hold_ends_by_itself(stream: Stream, make: Make) -> None:
    other = make()
    url = f"{stream.url}/__ds/successor"
    assert httpx2.put(url, json={"location": path_of(other), "hold": 0.2}).status_code == 200
    writer = Appending(stream, insert("a", "1", 1))
    writer.join(WAIT_S)
    assert writer.error is None
    assert len(stream.read().messages) == 1
    append(stream, insert("a", "2", 2))  # and there is none any more
    for wrong in (-1, 11, "long"):
        answer = httpx2.put(url, json={"location": path_of(other), "hold": wrong})
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("url", "location", "expected"),
    [
        ("http://h/v1/stream/a", "/v1/stream/b/c", "http://h/v1/stream/b/c"),
        ("http://h/v1/stream/a", "http://H/v1/stream/b", "http://H/v1/stream/b"),
        ("http://h/v1/stream/a/b", "c", "http://h/v1/stream/a/c"),
        ("http://h/mounted/v1/stream/a", "/v1/stream/b", "http://h/mounted/v1/stream/b"),
        ("http://h/v1/stream/a", "https://h/v1/stream/b", None),
        ("http://h/v1/stream/a", "http://h:81/v1/stream/b", None),
        ("http://h/v1/stream/a", "http://user@h/v1/stream/b", None),
        ("http://h/v1/stream/a", "/v1/stream/b?offset=now", None),
        ("http://h/v1/stream/a", "/metrics", None),
    ],
)
def test_locations(url: str, location: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(StateMoved):
            resolved(url, location)
    else:
        assert resolved(url, location) == expected
        assert expected.endswith(relative(expected))
