"""Long-poll and SSE: what each reader is sent and when, and that no reader is left over."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from penstock.errors import Damaged
from penstock.http.message import EventBody
from penstock.http.streams import live
from penstock.http.streams.sse import text_end
from tests.helpers.app import Answer, Client, FakeSink, with_app

TEXT = "text/plain"
JSON = "application/json"


async def waiting(client: Client, path: str, query: str) -> asyncio.Task[Answer]:
    """A long-poll that has begun to wait."""
    before = client.app.traffic.long_polls
    task = asyncio.create_task(client.get(path, f"{query}&live=long-poll"))
    while client.app.traffic.long_polls == before and not task.done():
        await asyncio.sleep(0)
    return task


def idle(client: Client) -> bool:
    """Nobody waits and nothing is watched."""
    traffic = client.app.traffic
    return not (traffic.long_polls or traffic.sse_readers or client.engine.stats.watchers)


# Long-poll


@with_app(long_poll_timeout_s=60)
async def test_long_poll_returns_at_once_what_is_there(client: Client) -> None:
    await client.put("a", b"hello", content_type=TEXT)
    read = await client.get("a", "offset=-1&live=long-poll")
    assert (read.status, read.body) == (200, b"hello")
    assert read.headers["stream-cursor"].isdigit()
    assert read.headers["stream-up-to-date"] == "true"
    assert read.headers["etag"]
    assert read.headers["cache-control"].startswith("public, ")


@with_app(long_poll_timeout_s=60)
async def test_long_poll_waits_for_an_append(client: Client) -> None:
    tail = (await client.put("a", b"[1]", content_type=JSON)).offset
    readers = [
        await waiting(client, "a", f"offset={tail}"),
        await waiting(client, "a", "offset=now"),
    ]
    assert client.app.traffic.long_polls == 2
    assert client.engine.stats.watchers == 1, "they share a watcher"
    await client.post("a", b"[2, 3]", content_type=JSON)
    for reader in readers:
        read = await reader
        assert (read.status, read.json()) == (200, [2, 3])
        assert "stream-cursor" in read.headers
    assert idle(client)


@with_app(long_poll_timeout_s=0.01)
async def test_long_poll_ends_empty_after_its_time(client: Client) -> None:
    tail = (await client.put("a", b"x", content_type=TEXT)).offset
    read = await client.get("a", "offset=now&live=long-poll")
    assert (read.status, read.body, read.offset) == (204, b"", tail)
    assert read.headers["stream-up-to-date"] == "true"
    assert read.headers["cache-control"] == "no-store"
    assert read.headers["stream-cursor"].isdigit()
    assert "stream-closed" not in read.headers
    assert idle(client)


@with_app(long_poll_timeout_s=60)
async def test_long_poll_learns_of_closing(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    reader = await waiting(client, "a", "offset=now")
    await client.post("a", b"", stream_closed="true")
    for read in (await reader, await client.get("a", "offset=now&live=long-poll")):
        assert (read.status, read.headers["stream-closed"]) == (204, "true")
        assert read.headers["stream-up-to-date"] == "true"
        assert "stream-cursor" not in read.headers


@with_app(long_poll_timeout_s=60)
async def test_long_poll_gets_the_last_data_together_with_the_close(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    reader = await waiting(client, "a", "offset=now")
    await client.post("a", b"bye", content_type=TEXT, stream_closed="true")
    read = await reader
    assert (read.status, read.body, read.headers["stream-closed"]) == (200, b"bye", "true")


@with_app(long_poll_timeout_s=60)
async def test_long_poll_on_a_deleted_stream_is_404(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    reader = await waiting(client, "a", "offset=now")
    await client.delete("a")
    assert (await reader).status == 404
    assert (await client.get("a", "offset=now&live=long-poll")).status == 404
    assert idle(client)


@with_app(long_poll_timeout_s=60)
async def test_long_poll_of_a_client_that_went_away_is_forgotten(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    reader = await waiting(client, "a", "offset=now")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert idle(client)


@with_app(long_poll_timeout_s=60, sse_timeout_s=60)
async def test_a_stopping_server_lets_everybody_go(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    reader = await waiting(client, "a", "offset=now")
    sink = await client.sse("a")
    client.app.drain()
    assert (await reader).status == 204
    assert sink.closed
    assert not sink.aborted
    assert (await client.get("a", "offset=now&live=long-poll")).status == 204, "no waiting now"
    refused = await client.get("a", "offset=now&live=sse")
    assert (refused.status, refused.json()["code"]) == (503, "shutting-down")
    assert idle(client)


@with_app(long_poll_timeout_s=0.001)
async def test_cursors_never_go_back(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    first = (await client.get("a", "offset=now&live=long-poll")).headers["stream-cursor"]
    query = f"offset=now&live=long-poll&cursor={first}"
    assert int((await client.get("a", query)).headers["stream-cursor"]) > int(first)
    junk = await client.get("a", "offset=now&live=long-poll&cursor=junk")
    assert junk.headers["stream-cursor"] == first


# SSE


@with_app()
async def test_sse_catches_up_and_then_follows(client: Client) -> None:
    await client.put("a", b'[{"n": 1}]', content_type=JSON)
    await client.post("a", b'{"n": 2}', content_type=JSON)
    sink = await client.sse("a")
    assert sink.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    assert [json.loads(data) for data in sink.data] == [[{"n": 1}, {"n": 2}]]
    appended = await client.post("a", b'[3, "four"]', content_type=JSON)
    assert [kind for kind, _ in sink.events] == ["data", "control"] * 2
    assert json.loads(sink.data[1]) == [3, "four"]
    assert sink.controls[-1]["streamNextOffset"] == appended.offset
    for control in sink.controls:
        assert control["upToDate"] is True
        assert control["streamCursor"].isdigit()
        assert "streamClosed" not in control


@with_app()
async def test_sse_at_the_tail_begins_with_a_control_event(client: Client) -> None:
    tail = (await client.put("a", b"old", content_type=TEXT)).offset
    for offset in (tail, "now"):
        sink = await client.sse("a", offset)
        assert not sink.data
        assert sink.controls[0]["streamNextOffset"] == tail
        assert sink.controls[0]["upToDate"] is True


@with_app()
async def test_sse_of_bytes_is_base64_and_says_so(client: Client) -> None:
    await client.put("a", b"\x00\xff")
    sink = await client.sse("a")
    assert sink.headers["stream-sse-data-encoding"] == "base64"
    await client.post("a", b"\r\n\x01", content_type="application/octet-stream")
    assert [base64.b64decode(data) for data in sink.data] == [b"\x00\xff", b"\r\n\x01"]


@with_app()
async def test_sse_in_base64_is_byte_for_byte_what_a_catch_up_read_returns(client: Client) -> None:
    parts = [b"a\rb\r\nc\n", b"\r", b"\n", b"\xff \xe2", b"\x82\xac", b"end\r"]
    await client.put("a", parts[0], content_type=TEXT)
    plain = await client.sse("a")
    sinks = [await client.sse("a", query="sse=base64")]
    for part in parts[1:]:
        await client.post("a", part, content_type=TEXT)
        sinks.append(await client.sse("a", query="sse=base64"))
    read = await client.get("a", "offset=-1")
    assert read.body == b"".join(parts)
    for sink in sinks:
        assert sink.headers["stream-sse-data-encoding"] == "base64"
        assert b"".join(map(base64.b64decode, sink.data)) == read.body
        assert sink.controls[-1]["streamNextOffset"] == read.offset
    assert [base64.b64decode(data) for data in sinks[0].data] == parts, "nothing is held back"
    assert "stream-sse-data-encoding" not in plain.headers


@with_app()
async def test_sse_of_json_in_base64_is_the_array_of_a_catch_up_read(client: Client) -> None:
    await client.put("a", b'[{"n": 1}, "\xe2\x82\xac"]', content_type=JSON)
    sink = await client.sse("a", query="sse=base64")
    assert base64.b64decode(sink.data[0]) == (await client.get("a")).body
    await client.post("a", b"[2, 3]", content_type=JSON)
    assert json.loads(base64.b64decode(sink.data[1])) == [2, 3]


@with_app()
async def test_sse_as_messages_omits_the_type_of_data_events_only(client: Client) -> None:
    for path, kind, body in (("t", TEXT, b"x"), ("j", JSON, b"[1]"), ("b", "", b"\x00")):
        content_type = kind or "application/octet-stream"
        await client.put(path, body, content_type=content_type)
        typed = await client.sse(path)
        sink = await client.sse(path, query="sse=message")
        await client.post(path, body, content_type=content_type)
        assert [kind for kind, _ in sink.events] == ["message", "control"] * 2
        assert [data for kind, data in sink.events if kind == "message"] == typed.data
    both = await client.sse("t", query="sse=message,base64")
    assert both.events[0] == ("message", base64.b64encode(b"xx").decode())


@with_app()
async def test_readers_of_one_form_share_a_channel(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    await client.put("b")
    sinks = [await client.sse("a", query=query) for query in ("", "sse=base64", "sse=base64")]
    bytes_sinks = [await client.sse("b", query=query) for query in ("", "sse=base64")]
    assert client.engine.stats.watchers == 3, "bytes are always base64"
    await client.post("a", b"x", content_type=TEXT)
    assert sinks[1].frames[-1] is sinks[2].frames[-1]
    for sink in (*sinks, *bytes_sinks):
        sink.body.detach()
    assert idle(client)


@with_app()
async def test_a_form_of_events_needs_events(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    for query in ("sse=base64", "live=long-poll&offset=now&sse=message", "live=sse&offset=-1&sse="):
        answer = await client.get("a", query)
        assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")


@with_app()
async def test_sse_ends_with_the_stream(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sink = await client.sse("a")
    await client.post("a", b"last", content_type=TEXT, stream_closed="true")
    assert sink.data == ["last"]
    assert sink.controls[-1]["streamClosed"] is True
    assert "streamCursor" not in sink.controls[-1]
    assert sink.closed
    late = await client.sse("a", "now")
    assert late.headers["stream-closed"] == "true"
    assert [control["streamClosed"] for control in late.controls] == [True]
    assert late.closed
    whole = await client.sse("a")
    assert (whole.data, whole.closed) == (["last"], True)
    assert idle(client)


@with_app()
async def test_sse_readers_hear_of_a_bare_close(client: Client) -> None:
    await client.put("a", b"x", content_type=TEXT)
    sink = await client.sse("a", "now")
    await client.post("a", b"", stream_closed="true")
    assert not sink.data
    assert sink.controls[-1]["streamClosed"] is True
    assert sink.closed


@with_app()
async def test_sse_readers_of_a_deleted_stream_are_ended(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sink = await client.sse("a")
    await client.delete("a")
    assert sink.closed
    assert "streamClosed" not in sink.controls[-1]
    assert idle(client)


@with_app()
async def test_sse_is_ended_if_the_stream_went_while_the_head_was_sent(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    response = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse")
    await client.delete("a")
    sink = FakeSink(response)
    assert isinstance(response.body, EventBody)
    response.body.attach(sink)
    assert sink.closed
    assert idle(client)


@with_app()
async def test_sse_is_ended_if_another_stream_is_there_by_then(client: Client) -> None:
    await client.put("a", b"old", content_type=TEXT)
    response = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse")
    await client.delete("a")
    await client.put("a", b"new", content_type=TEXT)
    sink = FakeSink(response)
    sink.body.attach(sink)
    assert sink.closed
    assert not sink.frames
    assert idle(client)


@with_app()
async def test_what_was_sent_already_is_not_sent_again(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    sink = await client.sse("a")
    stream = client.engine.find("a", touch=False)
    (channel,) = stream.watchers
    channel.advanced(0, stream.tail, b"1,\n", False)
    await client.post("a", b"2", content_type=JSON)
    assert [json.loads(data) for data in sink.data] == [[1], [2]]


@with_app()
async def test_all_readers_share_the_bytes_of_a_commit(client: Client) -> None:
    await client.put("a", content_type=JSON)
    sinks = [await client.sse("a") for _ in range(5)]
    await client.post("a", b"1", content_type=JSON)
    assert len({id(sink.frames[-1]) for sink in sinks}) == 1
    assert client.app.traffic.sse_readers == 5
    for sink in sinks:
        sink.body.detach()
    assert idle(client)


@with_app()
async def test_a_reader_ahead_of_the_clock_keeps_its_cursor(client: Client) -> None:
    await client.put("a", content_type=JSON)
    usual = await client.sse("a")
    current = int(usual.controls[0]["streamCursor"])
    ahead = await client.sse("a", query=f"cursor={current}")
    await client.post("a", b"1", content_type=JSON)
    cursors = [int(control["streamCursor"]) for control in ahead.controls]
    assert cursors[0] == cursors[1] > current
    assert int(usual.controls[-1]["streamCursor"]) == current
    assert ahead.data == usual.data
    client.clock.advance(24 * 3600)
    await client.post("a", b"2", content_type=JSON)
    assert ahead.frames[-1] is usual.frames[-1], "time has caught up with it"


@with_app()
async def test_a_long_catch_up_goes_in_pieces_and_joins_without_gap(client: Client) -> None:
    await client.put("a", content_type=JSON)
    for start in range(0, 3000, 1000):
        body = json.dumps([{"n": n, "pad": "x" * 300} for n in range(start, start + 1000)])
        await client.post("a", body.encode(), content_type=JSON)
    sink = await client.sse("a")
    for n in range(3000, 3020):  # while it is catching up
        await client.post("a", json.dumps({"n": n}).encode(), content_type=JSON)
    await sink.until(lambda sink: _numbers(sink)[-1:] == [3019])
    await client.post("a", b'{"n": 3020}', content_type=JSON)
    assert _numbers(sink) == list(range(3021))
    assert [kind for kind, _ in sink.events] == ["data", "control"] * len(sink.data)
    up_to_date = ["upToDate" in control for control in sink.controls]
    assert not up_to_date[0]
    assert up_to_date[-1]
    assert len(sink.data) >= 5
    offsets = [control["streamNextOffset"] for control in sink.controls]
    assert offsets == sorted(set(offsets))


@with_app()
async def test_a_catch_up_waits_for_a_slow_client(client: Client) -> None:
    await client.put("a", b"x" * 2_000_000)
    response = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse")
    sink = FakeSink(response)
    sink.congested = True
    sink.body.attach(sink)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not sink.frames
    sink.congested = False
    sink.body.drained()
    await sink.until(lambda sink: "upToDate" in sink.controls[-1] if sink.frames else False)
    assert b"".join(base64.b64decode(data) for data in sink.data) == b"x" * 2_000_000
    sink.body.detach()
    assert idle(client)


@with_app(sse_buffer_bytes_max=1000)
async def test_a_reader_joins_only_when_it_has_taken_what_it_got(client: Client) -> None:
    await client.put("a", b"x" * 100_000)
    sink = FakeSink(await client.respond("GET", "/v1/stream/a?offset=-1&live=sse"))
    sink.full_after = 2
    sink.body.attach(sink)
    await sink.until(lambda sink: len(sink.frames) == 2)
    assert sink.controls[-1]["upToDate"] is True
    for _ in range(3):
        await client.post("a", b"y", content_type="application/octet-stream")
    assert not sink.closed, "it is slow, but nothing piles up for it"
    assert len(sink.frames) == 2
    sink.congested, sink.buffered = False, 0
    sink.body.drained()
    await sink.until(lambda sink: len(sink.frames) == 3)
    sent = b"".join(base64.b64decode(data) for data in sink.data)
    assert sent == b"x" * 100_000 + b"yyy"


@with_app()
async def test_a_reader_of_cold_bytes_is_brought_up_by_a_task(client: Client) -> None:
    await client.put("a", b"[1, 2]", content_type=JSON)
    client.engine.read_now = lambda *_: None
    sink = await client.sse("a")
    assert not sink.frames
    await client.post("a", b"3", content_type=JSON)
    await sink.until(lambda sink: "3" in "".join(sink.data))
    messages = [message for data in sink.data for message in json.loads(data)]
    assert messages == [1, 2, 3]
    await client.post("a", b"4", content_type=JSON)
    assert json.loads(sink.data[-1]) == [4]


@with_app()
async def test_a_reader_of_damaged_bytes_is_cut_off(client: Client) -> None:
    async def broken(*_: object) -> bytes:
        raise Damaged("block 7 does not match its checksum")

    await client.put("a", b"x")
    client.engine.read_now = lambda *_: None
    client.engine.read = broken
    sink = await client.sse("a")
    await sink.until(lambda sink: sink.aborted)
    assert not sink.frames
    assert client.app.traffic.errors == {"stored-data-damaged": 1}
    assert idle(client)


@with_app()
async def test_a_reader_that_leaves_during_catch_up_is_forgotten(client: Client) -> None:
    await client.put("a", b"x" * 2_000_000)
    sink = await client.sse("a")
    sink.body.detach()
    assert idle(client)
    written = len(sink.frames)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(sink.frames) == written


@with_app()
async def test_a_reader_that_leaves_while_it_is_slow_leaves_no_task(client: Client) -> None:
    await client.put("a", b"x" * 2_000_000)
    tasks = asyncio.all_tasks()
    sink = FakeSink(await client.respond("GET", "/v1/stream/a?offset=-1&live=sse"))
    sink.congested = True
    sink.body.attach(sink)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == len(tasks) + 1
    sink.body.detach()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks


@with_app(sse_buffer_bytes_max=1000)
async def test_a_reader_that_does_not_keep_up_is_ended(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    slow, healthy = await client.sse("a"), await client.sse("a")
    slow.congested, slow.buffered = True, 1000
    await client.post("a", b"one", content_type=TEXT)
    assert slow.data == ["one"], "a short pause is no reason to end it"
    slow.buffered = 1001
    await client.post("a", b"two", content_type=TEXT)
    assert slow.closed
    assert slow.data == ["one"]
    assert healthy.data == ["one", "two"]
    assert client.app.traffic.sse_dropped == 1
    resumed = await client.sse("a", slow.controls[-1]["streamNextOffset"])
    assert resumed.data == ["two"]


@with_app(sse_timeout_s=0.001)
async def test_sse_ends_cleanly_after_its_time(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sink = await client.sse("a")
    gone = await client.sse("a")
    gone.body.detach()
    await sink.until(lambda sink: sink.closed)
    assert not gone.closed
    assert idle(client)


@with_app(sse_timeout_s=0.001)
async def test_many_readers_whose_time_is_over_are_ended_in_several_turns(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sinks = [await client.sse("a") for _ in range(5)]
    ended: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "SWEEP_READERS_MAX", 2)
        while not ended or ended[-1] < 5:
            count = sum(sink.closed for sink in sinks)
            ended += [count] if ended[-1:] != [count] else []
            await asyncio.sleep(0)
    assert ended == [0, 2, 4, 5]
    assert idle(client)


@with_app()
async def test_text_is_never_cut_inside_a_character_or_line_end(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sink = await client.sse("a")
    euro = "€".encode()
    await client.post("a", b"1 " + euro[:1], content_type=TEXT)
    await client.post("a", euro[1:2], content_type=TEXT)
    late = await client.sse("a")  # joins while part of a character is held back
    inside = await client.sse("a", "now")  # starts in the middle of it
    await client.post("a", euro[2:] + b"\r", content_type=TEXT)
    await client.post("a", b"\nnext", content_type=TEXT)
    assert "".join(sink.data) == "1 €\nnext"
    assert "".join(late.data) == "1 €\nnext"
    assert inside.data == ["\ufffd", "\nnext"], "only what comes after its own offset"
    await client.post("a", euro[:2], content_type=TEXT, stream_closed="true")
    assert sink.data[-1] == "\ufffd", "the end of the stream holds nothing back"
    assert sink.controls[-1]["streamNextOffset"] == (await client.head("a")).offset
    for reader in (sink, late, inside):
        assert reader.closed
    assert idle(client)


@with_app()
async def test_long_text_is_cut_between_characters(client: Client) -> None:
    text = "aé€𝄞\r\n" * 60_000
    await client.put("a", text.encode(), content_type=TEXT)
    sink = await client.sse("a")
    await sink.until(lambda sink: "upToDate" in sink.controls[-1] if sink.frames else False)
    assert len(sink.data) > 2
    assert "".join(sink.data) == text.replace("\r\n", "\n").removesuffix("\n") + "\n"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"abc", 3),
        (b"", 0),
        (b"ab\r", 2),
        (b"\r", 0),
        (b"\r\n", 2),
        ("é".encode(), 2),
        (b"a\xc3", 1),
        (b"\xc3", 0),
        (b"\xf0\x9d\x84", 0),
        (b"ab\xe2\x82", 2),
        (b"\x80\x80\x80\x80", 4),
        (b"a\xff", 2),
    ],
)
def test_only_an_unfinished_end_of_text_is_held_back(data: bytes, end: int) -> None:
    assert text_end(data) == end


@with_app()
async def test_injected_events_stay_data(client: Client) -> None:
    await client.put("a", b'x\r\n\r\nevent: control\rdata: {"bad":true}\n\n.', content_type=TEXT)
    sink = await client.sse("a")
    assert len(sink.data) == len(sink.controls) == 1
    assert "bad" not in sink.controls[0]


@with_app()
async def test_a_live_reader_keeps_a_stream_alive(client: Client) -> None:
    await client.put("a", content_type=TEXT, stream_ttl="5")
    sink = await client.sse("a")
    client.clock.advance(60)
    assert (await client.head("a")).status == 200
    assert not sink.closed


def _numbers(sink: FakeSink) -> list[int]:
    messages: list[Any] = [message for data in sink.data for message in json.loads(data)]
    return [message["n"] for message in messages]
