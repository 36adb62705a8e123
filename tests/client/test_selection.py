"""Reads from a time, of the last messages, and of some types and keys, with both clients."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import MemoryCheckpoint, errors
from penstock.client import requests
from penstock.client.answers import Answer
from penstock.client.follow import Follower, FollowOptions
from penstock.client.operations import Operations, ReadOptions
from penstock.client.requests import Filter, Start
from penstock.client.retry import NO_RETRY
from tests.client.test_rules_follow import URL, Script, chunk, event
from tests.helpers.server import Server


def change(type_: str, key: str) -> dict[str, Any]:
    return {"type": type_, "key": key, "value": 1, "headers": {"operation": "upsert"}}


@pytest.fixture
def dated(json_stream: Any) -> tuple[Any, datetime]:
    """Two messages, a moment, and two more."""
    json_stream.append_many([0, 1])
    before = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= before:
        pass
    moment = datetime.fromtimestamp((before + 1) / 1000, UTC)
    json_stream.append_many([2, 3])
    return json_stream, moment


def test_a_read_starts_at_a_time_or_before_the_end(dated: tuple[Any, datetime]) -> None:
    stream, moment = dated
    read = stream.read(at=moment)
    assert read.messages == [2, 3]
    assert read.offset == stream.start_offset(at=moment) != "-1"
    assert stream.read_json(at=int(moment.timestamp() * 1000)) == [2, 3]
    assert stream.read_json(at=(moment - timedelta(days=1)).isoformat()) == [0, 1, 2, 3]
    assert stream.read_json(at="9999-01-01T00:00:00Z") == []
    assert stream.read_json(tail=3) == [1, 2, 3]
    assert stream.read_json(tail=3, count=2) == [1, 2]
    assert [batch.messages for batch in stream.iter_batches(tail=1)] == [[3]]
    assert stream.read_bytes(tail=1) == b"[3]"


@pytest.mark.parametrize("mode", ["auto", "sse", "long-poll"])
def test_following_starts_there_too(dated: tuple[Any, datetime], mode: str) -> None:
    stream, moment = dated
    stream.close(4)
    for options in ({"at": moment}, {"tail": 3}):
        messages = [m for batch in stream.follow(mode=mode, **options) for m in batch.messages]
        assert messages == [2, 3, 4]


def test_a_checkpoint_wins_over_a_start(json_stream: Any) -> None:
    json_stream.append_many([0, 1, 2])
    json_stream.close()
    checkpoint = MemoryCheckpoint()
    for expected in ([2], []):
        batches = json_stream.follow(tail=1, checkpoint=checkpoint)
        assert [m for batch in batches for m in batch.messages] == expected


@pytest.mark.parametrize(
    "options",
    [{"at": 1, "tail": 1}, {"offset": "now", "tail": 1}, {"at": datetime(2026, 1, 1)}],  # noqa: DTZ001 - that is what is refused
)
def test_wrong_starts_are_refused_before_anything_is_sent(
    json_stream: Any, options: dict[str, Any]
) -> None:
    for method in (json_stream.read, json_stream.follow):
        with pytest.raises(ValueError, match=r"Pass|time zone"):
            method(**options)


def test_events_of_some_types_and_keys(json_stream: Any) -> None:
    events = [change(type_, key) for type_ in ("user", "order") for key in ("1", "2")]
    json_stream.append_many(events)
    assert json_stream.read_json(types="user") == events[:2]
    assert json_stream.read_json(types=["user", "order"], keys=["2"]) == events[1::2]
    assert json_stream.read_json(keys="1", count=1) == events[:1]
    assert json_stream.read_json(types="none") == []
    assert json_stream.read(tail=3, keys="1").messages == events[2:3]


def test_a_filtered_read_goes_on_over_pages_without_a_match(json_stream: Any) -> None:
    noise = [{**change("noise", str(n)), "value": "x" * 500} for n in range(20)]
    json_stream.append_many([*noise, change("user", "1")])
    read = json_stream.read(types="user")
    assert (read.messages, read.up_to_date) == ([change("user", "1")], True)


@pytest.mark.parametrize("mode", ["auto", "sse", "long-poll"])
def test_following_keeps_the_filter_over_reconnects(
    json_stream: Any, server: Server, name: str, mode: str
) -> None:
    json_stream.append_many([change("user", "0"), change("order", "0")])

    def more() -> None:
        with penstock.Client(server.url) as writer:
            target = writer.stream(name)
            for number in range(1, 30):
                target.append(change("order", str(number)))
                target.append(change("user", str(number)))
            target.append_many([change("order", "end")])
            target.close()

    messages, thread = [], None
    for batch in json_stream.follow(mode=mode, types=["user"]):
        messages += batch.messages
        if thread is None:
            thread = threading.Thread(target=more)
            thread.start()
    assert messages == [change("user", str(number)) for number in range(30)]
    assert thread is not None
    thread.join()


# -- servers that do not know these parameters


def test_a_server_that_ignores_a_filter_or_a_start_is_not_believed() -> None:
    options = {
        "Stream-Filter: type, key": ReadOptions(filter=Filter(("a",), ("b",))),
        "know `tail`": ReadOptions(start=Start("tail", "3")),
    }
    for words, option in options.items():
        flow = Operations(URL, NO_RETRY, None).batches(option)
        next(flow)
        with pytest.raises(errors.ProtocolError, match=words):
            flow.send(chunk(b"[1]", "0_3"))
    script = Script(*[chunk(b"[1]", "0_3")] * 3, filter=Filter(("a",)), protocol_errors_max=1)
    with pytest.raises(errors.ProtocolError, match="Stream-Filter"):
        script.run()


def test_every_request_of_a_follower_has_the_filter_and_the_offset_moves_without_news() -> None:
    headers = {"stream-filter": "type"}
    checkpoint = MemoryCheckpoint()

    def with_filter(answer: Answer) -> Answer:
        return answer._replace(headers={**answer.headers, **headers})

    script = Script(
        with_filter(chunk(b"[]", "0_9")),
        with_filter(Answer(200, {"content-type": "text/event-stream"})),
        event(b"", "0_12"),
        None,
        with_filter(Answer(200, {"content-type": "text/event-stream"})),
        event(b"", "0_15", closed=True),
        filter=Filter(("a",)),
        checkpoint=checkpoint,
    )
    script.run()
    assert [request.params["type"] for request in script.requests] == [["a"]] * 3
    assert [request.params["offset"] for request in script.requests] == ["-1", "0_9", "0_12"]
    assert checkpoint.load(URL) == "0_15"


def test_parameters_that_repeat_are_sent_one_by_one() -> None:
    request = requests.read("http://host/x", "-1", filter=Filter(("a", "b"), ("c",)))
    assert request.params == {"type": ["a", "b"], "key": ["c"], "offset": "-1"}
    follower = Follower(URL, FollowOptions(start=Start("tail", "1"), mode="sse"), NO_RETRY)
    assert follower.mode == "catch-up", "the start is resolved first"
