"""Several streams on one connection: every message once, by both clients, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock import Retry, Timeouts
from penstock.client.many import many_url
from penstock.errors import BadRequest, ProtocolError, TooManyParameters
from tests.client.conftest import QUICK
from tests.client.driver import Connect
from tests.helpers.faults import Kind, fault_proxy, seeded
from tests.helpers.server import Server, running_server

JSON, TEXT, BINARY = "application/json", "text/plain", "application/octet-stream"
BROKEN: tuple[Kind, ...] = ("refuse", "reset", "truncate", "half-close", "delay")


def collected(batches: Iterable[Any]) -> dict[str, Any]:
    """All data by stream; that every batch begins where the last one has ended."""
    result: dict[str, Any] = {}
    ends: dict[str, str] = {}
    for batch in batches:
        if batch.state == "joined":
            ends[batch.stream] = batch.next_offset
        elif batch.data:
            assert ends.get(batch.stream, batch.offset) == batch.offset
            ends[batch.stream] = batch.next_offset
            if batch.messages:
                result.setdefault(batch.stream, []).extend(batch.messages)
            else:
                result[batch.stream] = result.get(batch.stream, b"") + batch.data
    return result


def test_streams_and_patterns_until_they_are_up_to_date(client: Any, name: str) -> None:
    middle = ""
    for kind, each in ((JSON, "j"), (TEXT, "t"), (BINARY, "b")):
        client.stream(f"{name}/{each}").create(kind)
    client.stream(f"{name}/j").append_many([1, {"a": "é"}])
    middle = client.stream(f"{name}/t").append("olé\r").offset
    client.stream(f"{name}/t").append("\nolé")
    client.stream(f"{name}/b").append(b"\x00\xff")
    with client.follow_many(
        {f"{name}/t": middle}, match=[f"{name}/*"], stop_when_up_to_date=True
    ) as follow:
        batches = list(follow)
    assert collected(batches) == {
        f"{name}/j": [1, {"a": "é"}],
        f"{name}/t": "\nolé".encode(),
        f"{name}/b": b"\x00\xff",
    }
    assert {batch.stream: batch.content_type for batch in batches if batch.data} == {
        f"{name}/j": JSON,
        f"{name}/t": TEXT,
        f"{name}/b": BINARY,
    }
    assert [batch.text for batch in batches if batch.text] == ["\nolé"]
    assert (batches[-1].stream, batches[-1].state) == ("", "up-to-date")
    assert follow.offsets[f"{name}/t"] == client.stream(f"{name}/t").head().offset


def test_new_streams_join_and_deleted_ones_leave(client: Any, name: str) -> None:
    first = client.stream(f"{name}/a")
    first.create(body="old")
    with client.follow_many(match={f"{name}/*": "now"}) as follow:
        assert (next(follow).state, next(follow).state) == ("joined", "up-to-date")
        client.stream(f"{name}/b").create(body="new")
        joined, data = next(follow), next(follow)
        assert (joined.stream, joined.state, data.messages) == (f"{name}/b", "joined", ["new"])
        first.append("more")
        assert next(follow).messages == ["more"]
        first.delete()
        gone = next(follow)
        assert (gone.stream, gone.state) == (f"{name}/a", "deleted")
        first.create(body="anew")
        assert [next(follow).state, next(follow).messages] == ["joined", ["anew"]]


def test_a_stream_that_is_not_there_is_waited_for(client: Any, name: str) -> None:
    with client.follow_many([name]) as follow:
        assert (next(follow).state, next(follow).state) == ("not-found", "up-to-date")
        client.stream(name).create(body=1)
        assert [next(follow).state, next(follow).messages] == ["joined", [1]]


def test_it_ends_when_every_stream_is_closed(client: Any, name: str) -> None:
    for each in "ab":
        client.stream(name + each).create(body=each)
        client.stream(name + each).close()
    batches = list(client.follow_many([name + "a", name + "b"]))
    assert collected(batches) == {name + "a": ["a"], name + "b": ["b"]}
    assert [batch.stream for batch in batches if batch.closed] == [name + "a", name + "b"]
    with client.follow_many([name + "a", name + "b"]) as follow:
        list(follow)
    assert list(client.follow_many([name + "a", name + "b"], cursor=follow.cursor)) == []


def test_a_cursor_resumes_and_tells_what_went_meanwhile(client: Any, name: str) -> None:
    for each in "abc":
        client.stream(f"{name}/{each}").create(body=each)
    pattern = [f"{name}/*"]
    with client.follow_many(match=pattern, stop_when_up_to_date=True) as follow:
        list(follow)
        cursor = follow.cursor
    client.stream(f"{name}/a").append("more")
    client.stream(f"{name}/d").create(body="d")
    with client.follow_many(match=pattern, cursor=cursor, stop_when_up_to_date=True) as follow:
        assert collected(follow) == {f"{name}/a": ["more"], f"{name}/d": ["d"]}


def test_a_checkpoint_resumes_where_the_consumer_was(
    client: Any, name: str, tmp_path: Path
) -> None:
    stream = client.stream(name)
    stream.create()
    runs = []
    for run in range(3):
        stream.append(run)
        checkpoint = penstock.FileCheckpoint(tmp_path / "cursor.json")
        options = {"checkpoint": checkpoint, "stop_when_up_to_date": True}
        runs.append(collected(client.follow_many([name], **options)))
    assert runs == [{name: [0]}, {name: [1]}, {name: [2]}]


def test_a_deletion_while_the_client_was_away_is_told(connect: Connect, tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path) as first:
        client = connect(first.url, retry=QUICK)
        for each in "ab":
            client.stream(f"x/{each}").create(body=each)
        follow = client.follow_many(match=["x/*"])
        while next(follow).state != "up-to-date":
            pass
        first.terminate()
    with running_server(data_dir=tmp_path) as other, penstock.Client(other.url) as writer:
        writer.stream("x/a").delete()
    with running_server(data_dir=tmp_path, args=["--port", str(first.port)]):
        gone = next(follow)
        assert (gone.stream, gone.state) == ("x/a", "deleted")
        follow.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_message_is_seen_exactly_once_through_broken_connections(
    connect: Connect, server: Server, name: str, seed: int
) -> None:
    writer = penstock.Client(server.url)
    paths = [f"{name}/{number}" for number in range(5)]
    for path in paths[:4]:
        writer.stream(path).create()
    expected = {path: [{"n": n, "text": "é" * (n * 7 % 300)} for n in range(60)] for path in paths}
    begun = threading.Event()

    def write() -> None:
        begun.wait(30)
        writer.stream(paths[4]).create()
        for n in range(60):
            for path in paths:
                writer.stream(path, content_type=JSON).append(expected[path][n])
        for path in paths:
            writer.stream(path).close()

    thread = threading.Thread(target=write)
    thread.start()
    plan = seeded(seed, faults=25, kinds=BROKEN, bytes_max=6000)
    with fault_proxy(server.url, plan) as proxy, writer:
        timeouts = Timeouts(connect_s=5, read_s=0.4, live_s=1.5)
        client = connect(proxy.url, timeout_s=timeouts, retry=QUICK)
        retry = Retry(first_s=0.001, max_s=0.02, attempts_max=None)
        batches = []
        closed: set[str] = set()
        with client.follow_many([paths[4]], match=[f"{name}/*"], retry=retry) as follow:
            for batch in follow:
                begun.set()
                batches.append(batch)
                if batch.closed:
                    closed.add(batch.stream)
                if len(closed) == len(paths):
                    break
        thread.join()
    assert collected(batches) == expected
    assert sum(proxy.injected.values()) >= 5


def test_outlives_a_server_that_is_killed_and_tells_of_the_outage(
    connect: Connect, tmp_path: Path
) -> None:
    outages: list[Any] = []
    with running_server(data_dir=tmp_path / "data") as first:
        client = connect(first.url, retry=QUICK)
        for each in "ab":
            client.stream(each).create(body=0)
        follow = client.follow_many(["a", "b", "c"], on_outage=outages.append)
        while next(follow).state != "up-to-date":
            pass
        first.kill()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(follow))
    started = threading.Event()

    def restart() -> None:
        started.wait(30)
        args = ["--port", str(first.port)]
        with running_server(data_dir=tmp_path / "data", args=args) as second:
            with penstock.Client(second.url) as writer:
                writer.stream("c").create(body=1)
                for each in "abc":
                    writer.stream(each).append(2)
                    writer.stream(each).close()
            thread.join(30)

    restarting = threading.Thread(target=restart)
    thread.start()
    restarting.start()
    threading.Timer(0.3, started.set).start()
    restarting.join(60)
    assert collected(seen) == {"a": [2], "b": [2], "c": [1, 2]}
    assert [type(each).__name__ for each in outages] == ["ConnectionFailed", "NoneType"]


def test_it_ends_when_it_is_idle(client: Any, name: str) -> None:
    client.stream(name).create(body=1)
    batches = list(client.follow_many([name], idle_timeout_s=0.3))
    assert collected(batches) == {name: [1]}


def test_refusals_are_raised(client: Any, name: str) -> None:
    names = [f"{name}/{number}" for number in range(300)]
    with pytest.raises(TooManyParameters):
        next(client.follow_many(names))
    with pytest.raises(BadRequest, match="no wildcard"):
        client.follow_many(match=["a?"])
    with pytest.raises(BadRequest, match="not at '5'"):
        client.follow_many(match={"a*": "5"})
    with pytest.raises(BadRequest, match="not a stream of"):
        client.follow_many(["http://elsewhere.example/v1/stream/a"])
    with pytest.raises(TypeError, match="a list of names"):
        client.follow_many("ab")
    with pytest.raises(ValueError, match="at least one"):
        client.follow_many()


def test_messages_can_be_raw_or_typed(client: Any, name: str) -> None:
    client.stream(name).create()
    client.stream(name).append_many([1, 2])
    options = {"stop_when_up_to_date": True}
    (raw,) = [each for each in client.follow_many([name], decode=False, **options) if each.data]
    assert (raw.data, raw.messages) == (b"[1,2]", [])
    (typed,) = [
        each for each in client.follow_many([name], message_type=float, **options) if each.data
    ]
    assert [type(each) for each in typed.messages] == [float, float]


def test_names_are_encoded_as_those_of_streams() -> None:
    url = many_url("http://x:1/", {"a b@c": "now", "http://x:1/v1/stream/d%20e": "-1"}, {})
    assert url == "http://x:1/v1/streams/live?stream=a%2520b@c@now&stream=d%2520e@-1"
    assert many_url("http://x", {}, {"ä/*": "-1"}).endswith("live?match=%25C3%25A4/*@-1")


@pytest.mark.parametrize(
    "event",
    [
        b"data:[\ndata:]\n\n",
        b"data:{}\nid: 1x\n\n",
        b'data:[{"stream":"a","base64":"!"}]\nid: 1x\n\n',
        b'data:[{"stream":"a","messages":[1]}]\nid: 1x\n\n',
        b'data:[{"stream":"a","offset":"1","base64":"!"}]\nid: 1x\n\n',
    ],
)
def test_broken_events_are_an_error_of_the_protocol(connect: Connect, event: bytes) -> None:
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(
            200, headers={"Content-Type": "text/event-stream"}, content=event
        )
    )
    client = connect("http://x", transport=transport, retry=QUICK)
    with pytest.raises(ProtocolError):
        next(client.follow_many(["a"], protocol_errors_max=1))
