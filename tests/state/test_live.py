"""Live states against a real server, in both shells and on both backends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import (
    ClientClosed,
    InvalidEvent,
    StateReset,
    StreamClosed,
    StreamNotFound,
)
from penstock.state import (
    Collection,
    MaterializedState,
    SqliteBackend,
    StateSchema,
    delete,
    insert,
    reset,
    snapshot_end,
    snapshot_start,
    up_to_date,
    update,
    upsert,
)
from tests.state.live_driver import WAIT_S, Lives, Recorder


def append(stream: Stream, *events: Any) -> str:
    """Append events in one request; where the stream ends then."""
    return stream.append_many([event.to_json() for event in events]).offset


def users(*numbers: int, city: str = "Oslo") -> list[Any]:
    return [insert("user", str(each), {"id": str(each), "city": city}) for each in numbers]


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return None if request.param == "memory" else SqliteBackend(tmp_path / "state.db")


def test_it_bootstraps_from_many_chunks_and_follows(
    live: Lives, name: str, stream: Stream, backend: Any
) -> None:
    append(stream, *users(*range(200)))
    with live(name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        assert len(state.collection("user")) == 200
        append(stream, update("user", "7", "changed"), delete("user", "8"), upsert("x", "y", 1))
        state.wait_up_to_date(WAIT_S)
        assert state.get("user", "7") == "changed"
        assert state.get("user", "8", "none") == "none"
        assert sorted(state.types) == ["user", "x"]
        fold = MaterializedState()
        fold.apply_json(stream.read().data)
        assert state.to_dict() == fold.to_dict()
        assert state.offset == stream.head().offset
        assert state.up_to_date


def test_an_empty_stream_is_up_to_date(live: Lives, name: str) -> None:
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {}


def test_collections_have_typed_values_and_queries(
    live: Lives, name: str, stream: Stream, backend: Any, schema: StateSchema
) -> None:
    append(stream, *users(1, 2), *users(3, city="Rome"), insert("flag", "on", True))
    with live(name, backend=backend, schema=schema, indexes={"users": ["city"]}) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.users.get("3") == {"id": "3", "city": "Rome"}
        assert sorted(state.users.keys_where(city="Oslo")) == ["1", "2"]
        assert state.users.where(city="Oslo", id="2") == [{"id": "2", "city": "Oslo"}]
        assert state.users.where(lambda user: user["id"] > "1", city="Oslo") == [
            {"id": "2", "city": "Oslo"}
        ]
        assert state.users.where(city="Paris") == []
        assert state.users.where(town="Oslo") == []
        assert state.flags.get("on") is True
        assert "1" in state.users
        assert sorted(state.users) == ["1", "2", "3"]
        append(stream, *users(1, city="Rome"), delete("user", "3"))
        state.wait_up_to_date(WAIT_S)
        assert state.users.keys_where(city="Rome") == ["1"]
        assert state.users.keys_where(city="Oslo") == ["2"]
        with pytest.raises(AttributeError, match="no collection"):
            _ = state.nothing


def test_a_collection_gives_the_schemas_own_kind(live: Lives, name: str, stream: Stream) -> None:
    schema = StateSchema(points=Collection(type="point", schema=tuple[int, int]))
    append(stream, insert("point", "a", [1, 2]))
    with live(name, schema=schema) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.points.values() == [(1, 2)]


def test_changes_are_told_in_order_with_old_and_new(
    live: Lives, name: str, stream: Stream, backend: Any
) -> None:
    append(stream, insert("user", "1", 1), insert("user", "2", 1))
    with live.client() as client, live.not_started(client, name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        recorder = Recorder()
        end = state.on_change(recorder)
        append(stream, update("user", "1", 2), update("user", "1", 2), delete("user", "1"),
               delete("user", "9"), insert("user", "1", 3), reset(), insert("user", "2", 4),
               insert("last", "x", 0))  # fmt: skip
        calls = recorder.until("last")
        assert calls[:3] == [("user", "1", 1, 2), ("user", "1", 2, None), ("user", "1", None, 3)]
        assert sorted(calls[3:5]) == [("user", "1", 3, None), ("user", "2", 1, None)]
        assert calls[5:] == [("user", "2", None, 4), ("last", "x", None, 0)]
        end()
        append(stream, insert("user", "5", 5))
        state.wait_up_to_date(WAIT_S)
        assert len(recorder.calls) == 7


def test_a_listener_that_fails_harms_nobody(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state:
        recorder = Recorder()
        state.on_change(lambda *_: 1 / 0)
        state.on_change(recorder)
        append(stream, insert("user", "1", 1))
        assert recorder.until("user") == [("user", "1", None, 1)]
        assert state.ended is None


def test_control_events_are_heard_and_hints_change_nothing(
    live: Lives, name: str, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Recorder()
    with live(name) as state:
        state.on_control(lambda event: heard(event.control))
        append(stream, snapshot_end(), snapshot_start(), insert("user", "1", 1), up_to_date())
        state.wait_up_to_date(WAIT_S)
        assert state.in_snapshot
        append(stream, snapshot_end(), reset())
        heard.until("reset")
        assert not state.in_snapshot
        assert state.to_dict() == {}
    assert "snapshot-end without a snapshot-start" in caplog.text
    assert [control for (control,) in heard.calls] == [
        "snapshot-end", "snapshot-start", "up-to-date", "snapshot-end", "reset",
    ]  # fmt: skip


def test_a_reset_to_an_offset_ahead_skips_to_it(
    live: Lives, name: str, stream: Stream, backend: Any
) -> None:
    """The offsets are written before there is anything at them: padding makes them known."""
    start = append(stream, insert("user", "0", 0))
    generation, position = start.split("_")

    def size(*events: Any) -> int:
        return sum(len(event.to_json()) + 2 for event in events)

    skipped = users(*range(1, 60))
    target = f"{generation}_{int(position) + size(reset(offset=start), *skipped):016d}"
    append(stream, reset(offset=target), *skipped)
    assert stream.head().offset == target
    append(stream, insert("user", "kept", 1))
    with live(name, backend=backend) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"kept": 1}}
        # Within one live batch now, and with the state where it was.
        near = [insert("user", "no", 1), insert("user", "no", 2)]
        generation, position = state.offset.split("_")
        inside = f"{generation}_{int(position) + size(reset(offset=start), *near):016d}"
        append(stream, reset(offset=inside), *near, insert("user", "yes", 3))
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"yes": 3}}


@pytest.mark.parametrize("offset", ["nonsense", "beyond", "of-another"])
def test_a_reset_to_anywhere_else_goes_on_after_it(
    live: Lives, name: str, stream: Stream, offset: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = append(stream, insert("user", "1", 1))
    where = {
        "nonsense": "somewhere",
        "beyond": start[:-4] + "9999",
        "of-another": f"{0:016d}_{0:016d}",  # no stream has this generation
    }[offset]
    append(stream, insert("user", "2", 2), reset(offset=where), insert("user", "3", 3))
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"3": 3}}
    assert "reset to" in caplog.text


def test_a_reset_can_be_raised(live: Lives, name: str, stream: Stream) -> None:
    append(stream, insert("user", "1", 1))
    with live(name, on_reset="raise") as state:
        state.wait_up_to_date(WAIT_S)
        append(stream, reset(), insert("user", "2", 2))
        with pytest.raises(StateReset):
            state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"1": 1}}
        assert isinstance(state.ended, StateReset)


def test_invalid_events_are_skipped_counted_or_put_aside(
    live: Lives, name: str, stream: Stream, schema: StateSchema
) -> None:
    dead: list[InvalidEvent] = []
    stream.append_many([b'{"no":"event"}', insert("user", "1", "bad").to_json(),
                        insert("flag", "on", True).to_json()])  # fmt: skip
    for policy in ("skip", dead.append):
        with live(name, schema=schema, on_invalid=policy) as state:
            state.wait_up_to_date(WAIT_S)
            assert state.to_dict() == {"flag": {"on": True}}
            assert state.skipped == 2
    assert len(dead) == 2
    with live(name, schema=schema, on_invalid="raise") as state:
        with pytest.raises(InvalidEvent):
            state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {}


def test_txids_can_be_waited_for_before_and_after(live: Lives, name: str, stream: Stream) -> None:
    append(stream, insert("user", "1", 1, txid="early"))
    with live(name) as state:
        state.wait_txid("early", WAIT_S)
        assert state.get("user", "1") == 1
        many = [insert("user", str(each), 2, txid="large") for each in range(200)]
        append(stream, *many)
        state.wait_txid("large", WAIT_S)
        assert len(state.collection("user")) == 200
        state.wait_txid("large", 0)
        with pytest.raises(TimeoutError, match="has not come"):
            state.wait_txid("never", 0.01)


def test_the_end_of_the_stream_ends_waiting(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state:
        stream.close(insert("user", "1", 1).to_json())
        with pytest.raises(StreamClosed):
            state.wait_txid("never", WAIT_S)
        assert state.get("user", "1") == 1
        state.wait_up_to_date(WAIT_S)


def test_a_stream_made_anew_is_read_anew(
    live: Lives, name: str, stream: Stream, tmp_path: Path
) -> None:
    append(stream, insert("user", "1", 1))
    with live(name, backend=SqliteBackend(tmp_path / "state.db")) as state:
        state.wait_up_to_date(WAIT_S)
    stream.delete()
    stream.create()
    append(stream, insert("user", "3", 3))
    with live(name, backend=SqliteBackend(tmp_path / "state.db")) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"user": {"3": 3}}


def test_what_is_missing_is_raised_to_whoever_waits(live: Lives) -> None:
    with live("no-such-stream") as state, pytest.raises(StreamNotFound):
        state.wait_txid("x", WAIT_S)


def test_closing_ends_waiting_and_can_be_done_again(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                state.wait_txid("never", WAIT_S)
            except ClientClosed as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        state.close()
        waiting.join()
        state.close()
        assert len(raised) == 1
        append(stream, insert("user", "1", 1))
        assert state.get("user", "1") is None


def test_it_has_to_be_started_once(live: Lives, name: str) -> None:
    with live.client() as client:
        state = live.not_started(client, name)
        with pytest.raises(RuntimeError, match="call start first"):
            state.wait_txid("x", WAIT_S)
        tx = state.transaction()
        tx.insert("user", "1", 1)
        with pytest.raises(RuntimeError, match="call start first"):
            tx.commit()
        state.start()
        tx.commit()
        with pytest.raises(RuntimeError, match="already"):
            state.start()
        state.close()


def test_names_that_hide_methods_are_refused(live: Lives, name: str) -> None:
    schema = StateSchema(transaction=Collection(type="t", schema=True))
    with live.client() as client, pytest.raises(ValueError, match="another name"):
        live.not_started(client, name, schema=schema)


def test_it_can_start_from_the_state_that_the_server_has(
    live: Lives, name: str, stream: Stream, backend: Any, schema: StateSchema
) -> None:
    append(stream, *users(*range(50)), reset(), *users(1, 2, 3), insert("user", "4", "bad"))
    with live.client() as client:
        state = live.not_started(
            client, name, backend=backend, schema=schema, bootstrap="state",
            indexes={"users": ["city"]},
        )  # fmt: skip
        recorder, heard = Recorder(), Recorder()
        state.on_change(recorder)
        state.on_control(lambda event: heard(event.control))
        with state:
            state.wait_up_to_date(WAIT_S)
            assert sorted(state.users.keys_where(city="Oslo")) == ["1", "2", "3"]
            assert state.skipped == 1
            append(stream, delete("user", "1"), insert("flag", "on", True))
            assert [call[1] for call in recorder.until("flag")] == ["1", "2", "3", "1", "on"]
            assert heard.calls == []


def test_without_such_a_state_the_stream_is_read(live: Lives, name: str, stream: Stream) -> None:
    class Refusing(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            state = request.url.path.startswith("/v1/state/")
            return httpx2.Response(404) if state else super().handle_request(request)

    class AsyncRefusing(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            state = request.url.path.startswith("/v1/state/")
            return httpx2.Response(404) if state else await super().handle_async_request(request)

    append(stream, insert("user", "1", 1, txid="tx"))
    transport = Refusing() if live.kind == "sync" else AsyncRefusing()
    with live(name, bootstrap="state", transport=transport) as state:
        state.wait_txid("tx", WAIT_S)
        assert state.get("user", "1") == 1


@pytest.mark.parametrize("options", [{"bootstrap": "no"},
                                     {"bootstrap": "state", "on_reset": "raise"}])  # fmt: skip
def test_a_bootstrap_that_cannot_keep_the_policies_is_refused(
    live: Lives, name: str, options: Any
) -> None:
    with live.client() as client, pytest.raises(ValueError, match="bootstrap"):
        live.not_started(client, name, **options)
