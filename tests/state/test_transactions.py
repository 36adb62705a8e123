"""Transactions on live states: optimistic, all or nothing, and taken back when they fail."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import (
    ConnectionFailed,
    StreamClosed,
    TailMoved,
    ValidationFailed,
)
from penstock.state import StateSchema, insert, update
from tests.state.live_driver import WAIT_S, Lives, Recorder


class Faults:
    """What a transport does to appends: it loses so many answers, or requests."""

    def __init__(self) -> None:
        self.lost_answers = 0
        self.lost_requests = 0

    def before(self, request: httpx2.Request) -> None:
        if request.method == "POST" and self.lost_requests:
            self.lost_requests -= 1
            raise httpx2.WriteError("lost", request=request)

    def after(self, request: httpx2.Request) -> bool:
        if request.method != "POST" or not self.lost_answers:
            return False
        self.lost_answers -= 1
        return True

    def transport(self, kind: str) -> Any:
        faults = self

        class Sync(httpx2.HTTPTransport):
            def handle_request(self, request: httpx2.Request) -> httpx2.Response:
                faults.before(request)
                response = super().handle_request(request)
                if faults.after(request):
                    response.read()
                    raise httpx2.ReadError("lost", request=request)
                return response

        class Async(httpx2.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                faults.before(request)
                response = await super().handle_async_request(request)
                if faults.after(request):
                    await response.aread()
                    raise httpx2.ReadError("lost", request=request)
                return response

        return Sync() if kind == "sync" else Async()


def alice(city: str) -> dict[str, str]:
    return {"id": "alice", "city": city}


def events(stream: Stream) -> list[Any]:
    return stream.read_json()


def test_changes_show_at_once_and_are_stored_together_under_one_txid(
    live: Lives, name: str, stream: Stream, schema: StateSchema
) -> None:
    with live(name, schema=schema, indexes={"users": ["city"]}) as state:
        recorder = Recorder()
        state.on_change(recorder)
        with state.transaction() as tx:
            tx.users.insert(alice("Oslo"))
            tx.flags.insert(True, key="on")
            tx.insert("other", "x", 1)
            assert state.users.get("alice") == alice("Oslo")
            assert state.users.keys_where(city="Oslo") == ["alice"]
            assert sorted(state.types) == ["flag", "other", "user"]
            assert len(state.users) == 1
            assert events(stream) == []
        assert state.offset == stream.head().offset
        assert state.to_dict() == {
            "user": {"alice": alice("Oslo")}, "flag": {"on": True}, "other": {"x": 1},
        }  # fmt: skip
        assert {event["headers"]["txid"] for event in events(stream)} == {tx.txid}
        state.wait_txid(tx.txid, 0)
        with state.transaction(txid="mine") as tx:
            tx.users.update(alice("Rome"))
            tx.users.upsert(alice("Paris"))
            tx.users.delete("alice")
            assert state.users.where(city="Oslo") == []
            assert "alice" not in state.users
        assert [event["headers"]["operation"] for event in events(stream)[3:]] == [
            "update", "upsert", "delete",
        ]  # fmt: skip
        # The echo shows nobody anything new.
        assert recorder.calls == [
            ("user", "alice", None, alice("Oslo")), ("flag", "on", None, True),
            ("other", "x", None, 1), ("user", "alice", alice("Oslo"), alice("Rome")),
            ("user", "alice", alice("Rome"), alice("Paris")),
            ("user", "alice", alice("Paris"), None),
        ]  # fmt: skip


def test_an_error_in_the_block_takes_the_changes_back(
    live: Lives, name: str, stream: Stream, schema: StateSchema
) -> None:
    with live(name, schema=schema) as state:
        recorder = Recorder()
        state.on_change(recorder)
        with pytest.raises(ValidationFailed), state.transaction() as tx:  # noqa: PT012 - a block
            tx.users.insert(alice("Oslo"))
            tx.users.insert({"id": "bob"})
        assert state.to_dict() == {}
        assert events(stream) == []
        assert recorder.calls[1:] == [("user", "alice", alice("Oslo"), None)]
        with pytest.raises(RuntimeError, match="has ended"):
            tx.users.insert(alice("Rome"))


def test_an_empty_transaction_and_one_rolled_back_append_nothing(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        with state.transaction():
            pass
        with state.transaction() as tx:
            tx.insert("user", "1", 1)
            tx.rollback()
            assert state.get("user", "1") is None
        assert events(stream) == []


def test_an_append_that_is_refused_takes_the_changes_back(
    live: Lives, name: str, stream: Stream
) -> None:
    stream.append(insert("user", "1", "theirs").to_json())
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        tx = state.transaction()
        tx.update("user", "1", "mine")
        assert state.get("user", "1") == "mine"
        stream.close()
        with pytest.raises(StreamClosed):
            tx.commit()
        assert state.get("user", "1") == "theirs"


def test_a_lost_answer_is_asked_for_again_and_stored_once(
    live: Lives, name: str, stream: Stream
) -> None:
    faults = Faults()
    with live(name, transport=faults.transport(live.kind)) as state:
        for number in range(3):
            faults.lost_answers = 2
            with state.transaction() as tx:
                tx.insert("user", str(number), number)
        assert [event["key"] for event in events(stream)] == ["0", "1", "2"]


def test_an_append_that_never_arrives_takes_the_changes_back_and_the_next_one_works(
    live: Lives, name: str, stream: Stream
) -> None:
    faults = Faults()
    with live(name, transport=faults.transport(live.kind)) as state:
        with state.transaction() as tx:
            tx.insert("user", "0", 0)
        faults.lost_requests = 100
        with pytest.raises(ConnectionFailed), state.transaction() as tx:
            tx.insert("user", "1", 1)
        assert state.to_dict() == {"user": {"0": 0}}
        faults.lost_requests = 0
        with state.transaction() as tx:
            tx.insert("user", "2", 2)
        assert [event["key"] for event in events(stream)] == ["0", "2"]


def test_a_txid_that_was_used_before_does_not_count_as_the_echo(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        for number in range(2):
            with state.transaction(txid="again") as tx:
                tx.insert("user", "1", number)
            assert state._core.backend.get("user", "1") == str(number).encode()
        stream.close()
        with pytest.raises(StreamClosed), state.transaction(txid="again") as tx:
            tx.insert("user", "1", 3)
        assert state.get("user", "1") == 1


def test_an_echo_settles_an_append_whose_answers_are_all_lost(
    live: Lives, name: str, stream: Stream
) -> None:
    """Whether it raises depends on which comes first; the state is what the stream says."""
    faults = Faults()
    with live(name, transport=faults.transport(live.kind)) as state:
        faults.lost_answers = 100
        tx = state.transaction()
        tx.insert("user", "1", 1)
        try:
            tx.commit()
        except ConnectionFailed:
            pass
        state.wait_txid(tx.txid, WAIT_S)
        assert state.get("user", "1") == 1
        faults.lost_answers = 0
        with state.transaction() as tx:
            tx.insert("user", "2", 2)
        assert [event["key"] for event in events(stream)] == ["1", "2"]


def test_a_conditional_transaction_fails_when_somebody_else_was_faster(
    live: Lives, name: str, stream: Stream
) -> None:
    stream.append(insert("user", "1", 1).to_json())
    with live(name) as state:
        state.wait_up_to_date(WAIT_S)
        with state.transaction(conditional=True) as tx:
            tx.update("user", "1", 2)
        tx = state.transaction(conditional=True)
        tx.update("user", "1", state.get("user", "1") + 1)
        stream.append(update("user", "1", 10).to_json())
        with pytest.raises(TailMoved):
            tx.commit()
        state.wait_up_to_date(WAIT_S)
        assert state.get("user", "1") == 10
        with state.transaction(conditional=True) as tx:
            tx.update("user", "1", state.get("user", "1") + 1)
        assert state.get("user", "1") == 11


def test_otherwise_the_last_write_wins(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state:
        tx = state.transaction()
        tx.insert("user", "1", "mine")
        stream.append(insert("user", "1", "theirs").to_json())
        state.wait_up_to_date(WAIT_S)
        assert state.get("user", "1") == "mine"
        tx.commit()
        assert state.get("user", "1") == "mine"
        assert [event["value"] for event in events(stream)] == ["theirs", "mine"]


def test_what_came_under_an_overlay_shows_when_it_is_taken_back(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        recorder = Recorder()
        state.on_change(recorder)
        tx = state.transaction()
        tx.insert("user", "1", "mine")
        stream.append(insert("user", "1", "theirs").to_json())
        state.wait_up_to_date(WAIT_S)
        tx.rollback()
        assert state.get("user", "1") == "theirs"
        assert recorder.calls == [
            ("user", "1", None, "mine"), ("user", "1", "mine", "theirs"),
        ]  # fmt: skip


def test_many_threads_can_have_transactions_at_once(live: Lives, name: str, stream: Stream) -> None:
    with live(name) as state, ThreadPoolExecutor(8) as pool:

        def change(number: int) -> Any:
            with state.transaction() as tx:
                tx.insert("user", str(number), number)
                tx.insert("copy", str(number), number)
            return state.get("user", str(number))

        assert list(pool.map(change, range(40))) == list(range(40))
        messages = events(stream)
        assert len(messages) == 80
        assert all(
            one["headers"]["txid"] == two["headers"]["txid"]
            for one, two in zip(messages[::2], messages[1::2], strict=True)
        )


def test_a_transaction_larger_than_a_chunk_is_seen_as_a_whole(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        with state.transaction() as tx:
            for number in range(200):
                tx.insert("user", str(number), {"number": number})
        assert state._core._overlays == ()
        assert len(state.collection("user")) == 200


@pytest.mark.parametrize("live", ["sync"], indirect=True)  # async callbacks cannot block
def test_a_late_echo_is_a_timeout_and_the_change_stays(
    live: Lives, name: str, stream: Stream
) -> None:
    """The follower is held up by a callback, so that the echo cannot be seen."""
    held, release = threading.Event(), threading.Event()

    def hold(event: Any) -> None:
        held.set()
        release.wait(WAIT_S)

    with live(name) as state:
        state.on_control(hold)
        stream.append(b'{"headers":{"control":"up-to-date"}}')
        assert held.wait(WAIT_S)
        tx = state.transaction()
        tx.insert("user", "1", 1)
        with pytest.raises(TimeoutError, match="is stored"):
            tx.commit(timeout_s=0.05)
        assert state.get("user", "1") == 1
        release.set()
        state.wait_txid(tx.txid, WAIT_S)
        assert state._core._overlays == ()


@pytest.mark.parametrize("live", ["sync"], indirect=True)  # async callbacks cannot block
def test_a_callback_cannot_wait_for_what_comes_after_it(
    live: Lives, name: str, stream: Stream
) -> None:
    with live(name) as state:
        recorder = Recorder()

        def wait(event: Any) -> None:
            try:
                state.wait_txid("x")
            except RuntimeError as error:
                recorder("raised", str(error))

        state.on_control(wait)
        stream.append(b'{"headers":{"control":"up-to-date"}}')
        assert "cannot wait" in recorder.until("raised")[0][1]
