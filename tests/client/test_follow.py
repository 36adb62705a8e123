"""Following real streams, with both clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock import FileCheckpoint, MemoryCheckpoint, errors
from penstock.client.retry import NO_RETRY
from tests.client.conftest import QUICK
from tests.client.driver import Connect
from tests.helpers.server import Server, running_server

MODES = ["auto", "sse", "long-poll"]


def in_background(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.mark.parametrize("mode", MODES)
def test_catches_up_and_tails_until_the_stream_is_closed(
    stream: Any, server: Server, name: str, mode: str
) -> None:
    stream.create()
    stream.append_many(list(range(1000)))

    def more() -> None:
        with penstock.Client(server.url) as writer:
            target = writer.stream(name)
            for number in range(1000, 1050):
                target.append(number)
            target.close("end")

    messages: list[Any] = []
    thread = None
    for batch in stream.follow(mode=mode):
        messages += batch.messages
        if thread is None and batch.up_to_date:
            thread = in_background(more)
    assert messages == [*range(1050), "end"]
    assert thread is not None
    thread.join()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("text/plain", "  lines\nand é€😀\n\n data: x\n\n".encode()),
        ("application/octet-stream", bytes(range(256)) * 20),
        ("application/json", b'[{"a":" x "},2]'),
    ],
)
def test_every_kind_of_stream_arrives_as_it_is(
    stream: Any, mode: str, content_type: str, data: bytes
) -> None:
    stream.create(content_type)
    stream.append(data)
    with stream.follow(mode=mode) as follow:
        first = next(follow)
        while not first.up_to_date:
            first = next(follow)
        stream.append(data)
        second = [next(follow)]
        while not second[-1].up_to_date:
            second.append(next(follow))
    if content_type == "application/json":
        assert second[0].messages == [[{"a": " x "}, 2]]
    else:
        assert b"".join(batch.data for batch in second) == data
    if content_type == "text/plain":
        assert second[0].text == data.decode()


def test_starts_at_the_offset_it_is_given(json_stream: Any) -> None:
    middle = json_stream.append(1).offset
    json_stream.append(2)
    json_stream.close()
    assert [message for batch in json_stream.follow(middle) for message in batch.messages] == [2]


@pytest.mark.parametrize("mode", MODES)
def test_now_skips_what_is_there(json_stream: Any, mode: str) -> None:
    json_stream.append("old")
    with json_stream.follow("now", mode=mode, idle_timeout_s=20) as follow:
        if mode == "long-poll":  # answers only when there is news, or its time is up
            json_stream.close()
        assert next(follow).messages == []
        if mode != "long-poll":
            json_stream.append("new")
            assert next(follow).messages == ["new"]


@pytest.mark.parametrize("mode", MODES)
def test_outlasts_the_time_limits_of_the_server(connect: Connect, name: str, mode: str) -> None:
    # Live responses end after the shortest time that can be set; the writer waits for a few.
    limits = ["--long-poll-timeout", "1", "--sse-timeout", "1"]
    with running_server(memory=True, args=limits) as short:
        with penstock.Client(short.url) as writer:
            writer.stream(name).create(body=0)
        requests = 0
        several = threading.Event()

        def count() -> str:
            nonlocal requests
            requests += 1
            if requests == 4:
                several.set()
            return str(requests)

        def later() -> None:
            with penstock.Client(short.url) as writer:
                assert several.wait(60)
                writer.stream(name).close(1)

        thread = in_background(later)
        stream = connect(short.url, retry=QUICK, headers={"X-Count": count}).stream(name)
        assert [m for batch in stream.follow(mode=mode) for m in batch.messages] == [0, 1]
        thread.join()


def test_stops_when_up_to_date(json_stream: Any) -> None:
    json_stream.append_many(list(range(2000)))
    batches = list(json_stream.follow(stop_when_up_to_date=True))
    assert sum(len(batch.messages) for batch in batches) == 2000
    assert len(batches) > 2


@pytest.mark.parametrize("mode", MODES)
def test_ends_when_it_is_idle(json_stream: Any, mode: str) -> None:
    json_stream.append(1)
    batches = list(json_stream.follow(mode=mode, idle_timeout_s=0.2))
    assert [batch.messages for batch in batches] == [[1]]


@pytest.mark.parametrize("mode", MODES)
def test_missing_stream_is_raised(stream: Any, mode: str) -> None:
    with pytest.raises(errors.StreamNotFound):
        next(stream.follow(mode=mode))


@pytest.mark.parametrize("mode", MODES)
def test_stream_that_is_deleted_meanwhile_is_raised(json_stream: Any, mode: str) -> None:
    json_stream.append(1)
    follow = json_stream.follow(mode=mode)
    assert next(follow).messages == [1]
    json_stream.delete()
    with pytest.raises(errors.StreamNotFound):
        next(follow)


def test_stream_that_was_made_anew_is_a_reset(stream: Any) -> None:
    stream.create()
    old = stream.append("old").offset
    stream.delete()
    stream.create()
    stream.append("new")
    stream.close()
    with pytest.raises(errors.StreamRecreated):
        next(stream.follow(old))
    assert [m for b in stream.follow(old, on_reset="restart") for m in b.messages] == ["new"]
    seen: list[errors.Gone] = []

    def start_again(error: errors.Gone) -> str:
        seen.append(error)
        return "-1"

    assert [m for b in stream.follow(old, on_reset=start_again) for m in b.messages] == ["new"]
    assert isinstance(seen[0], errors.StreamRecreated)


def test_checkpoint_goes_on_where_the_consumer_was_done(json_stream: Any, tmp_path: Path) -> None:
    checkpoint = FileCheckpoint(tmp_path / "offsets.json")
    for number in range(3):
        json_stream.append({"n": number, "pad": "x" * 3000})  # a chunk each
    with json_stream.follow(checkpoint=checkpoint) as follow:
        assert [m["n"] for m in next(follow).messages] == [0]
        assert [m["n"] for m in next(follow).messages] == [1]  # and the consumer dies here
    rest = json_stream.follow(checkpoint=checkpoint, stop_when_up_to_date=True)
    assert [m["n"] for batch in rest for m in batch.messages] == [1, 2]
    again = json_stream.follow(checkpoint=checkpoint, stop_when_up_to_date=True)
    assert [m["n"] for batch in again for m in batch.messages] == []


def test_checkpoints_of_two_consumers_have_their_own_keys(json_stream: Any) -> None:
    json_stream.append(1)
    checkpoint = MemoryCheckpoint()
    for key in ("a", "b"):
        follow = json_stream.follow(
            checkpoint=checkpoint, checkpoint_key=key, stop_when_up_to_date=True
        )
        assert [m for batch in follow for m in batch.messages] == [1]


def test_raw_batches_are_not_decoded(json_stream: Any) -> None:
    json_stream.append_many([1, 2])
    json_stream.close()
    (batch,) = json_stream.follow(decode=False)
    assert (batch.messages, batch.data) == ([], b"[1,\n2]")


TEXT_PARTS = (b"a\r\n", b"b\r", b"\nc\r\rd\n\n", b" e\xff", b"\xe2", b"\x82", b"\xac\x00\r")


@pytest.mark.parametrize("mode", ["auto", "sse", "long-poll"])
@pytest.mark.parametrize("decode", [True, False])
def test_text_has_the_same_bytes_live_as_in_a_read(stream: Any, mode: str, decode: bool) -> None:
    stream.create("text/plain")
    batches = []
    with stream.follow(mode=mode, decode=decode) as follow:
        next(follow)
        for part in TEXT_PARTS:
            stream.append(part)
            batches.append(next(follow))
        stream.close()
        batches += list(follow)
        assert follow.mode == ("long-poll" if mode == "long-poll" else "sse")
    read = stream.read()
    assert read.data == b"".join(TEXT_PARTS)
    assert b"".join(batch.data for batch in batches) == read.data
    assert "".join(batch.text for batch in batches) == (read.text if decode else "")


def test_offset_and_mode_can_be_asked_for(json_stream: Any) -> None:
    tail = json_stream.append(1).offset
    with json_stream.follow() as follow:
        assert (follow.offset, follow.mode) == ("-1", "catch-up")
        next(follow)
        assert (follow.offset, follow.mode) == (tail, "sse")


def test_server_that_is_not_there_is_given_up_if_told_to(connect: Connect) -> None:
    stream = connect("http://127.0.0.1:9", retry=NO_RETRY).stream("x")
    with pytest.raises(errors.ConnectionFailed):
        next(stream.follow())


@pytest.mark.parametrize("mode", MODES)
def test_outlives_a_server_that_is_killed_and_started_again(
    connect: Connect, name: str, mode: str, tmp_path: Path
) -> None:
    with running_server(data_dir=tmp_path / "data") as first:
        port = first.port
        stream = connect(first.url, retry=QUICK).stream(name)
        stream.create()
        stream.append(1)
        follow = stream.follow(mode=mode)
        assert next(follow).messages == [1]
        first.kill()
    with running_server(data_dir=tmp_path / "data", args=["--port", str(port)]) as second:
        assert second.port == port
        with penstock.Client(second.url) as writer:
            writer.stream(name).append(2)
            writer.stream(name).close()
        assert [m for batch in follow for m in batch.messages] == [2]


def test_leaving_the_block_ends_the_connection(connect: Connect) -> None:
    closed: list[bool] = []

    class Events(httpx2.SyncByteStream, httpx2.AsyncByteStream):
        def __iter__(self) -> Any:
            yield b'event: control\ndata:{"streamNextOffset":"1","streamCursor":"1"}\n\n'
            yield b'event: data\ndata:x\n\nevent: control\ndata:{"streamNextOffset":"2",'
            yield b'"streamCursor":"1"}\n\n'

        async def __aiter__(self) -> Any:
            for piece in self.__iter__():
                yield piece

        def close(self) -> None:
            closed.append(True)

        async def aclose(self) -> None:
            closed.append(True)

    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(
            200, headers={"Content-Type": "text/event-stream"}, stream=Events()
        )
    )
    client = connect("http://host", transport=transport)
    stream = client.stream("x", content_type="text/plain")
    with stream.follow(mode="sse") as follow:
        assert next(follow).text == "x"
        assert closed == []
    assert closed == [True]
