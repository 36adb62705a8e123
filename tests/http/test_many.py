"""Several streams on one response: what each reader is sent, and that it resumes by an id alone."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from typing import Any, NamedTuple

import pytest

from penstock.access.principal import ROOT, Principal
from penstock.access.rules import Rules, parse_rule
from penstock.config.settings import Settings
from penstock.http.message import EventBody
from penstock.http.streams.many import feed as feeds
from penstock.http.streams.many import group as groups
from penstock.http.streams.many import live as many_live
from tests.helpers.app import Client, FakeSink, make_request, run_with_app, with_app

TEXT = "text/plain"
JSON = "application/json"
BYTES = "application/octet-stream"


class Seen(NamedTuple):
    """What a browser has from a response that may be cut anywhere."""

    entries: list[dict[str, Any]]
    last_id: str


def seen(response: bytes) -> Seen:
    """Parse a response as the HTML standard says: an event without its empty line is none."""
    entries: list[dict[str, Any]] = []
    last_id = id_buffer = ""
    lines: list[str] = []
    for line in response.decode("utf-8", "ignore").split("\n")[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            last_id = id_buffer
            if lines:
                entries += json.loads("\n".join(lines))
            lines = []
        elif name == "data":
            lines.append(value)
        elif name == "id":
            id_buffer = value
        else:
            assert name in ("", "retry"), "only fields that every parser knows"
    return Seen(entries, last_id)


def contents(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """All data by stream: lists of messages, or bytes."""
    result: dict[str, Any] = {}
    for entry in entries:
        if entry.get("state") == "deleted":
            result.pop(entry["stream"], None)
        elif "messages" in entry:
            result.setdefault(entry["stream"], []).extend(entry["messages"])
        elif "text" in entry:
            result[entry["stream"]] = result.get(entry["stream"], b"") + entry["text"].encode()
        elif "base64" in entry:
            data = base64.b64decode(entry["base64"])
            result[entry["stream"]] = result.get(entry["stream"], b"") + data
    return result


class Reader:
    """A live response over several streams."""

    def __init__(self, sink: FakeSink) -> None:
        self.sink = sink

    @property
    def raw(self) -> bytes:
        return b"".join(self.sink.frames)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return seen(self.raw).entries

    @property
    def last_id(self) -> str:
        return seen(self.raw).last_id

    @property
    def contents(self) -> dict[str, Any]:
        return contents(self.entries)

    def states(self) -> list[tuple[str, str]]:
        return [(each["stream"], each["state"]) for each in self.entries if "state" in each]

    async def until(self, holds: Any) -> None:
        await self.sink.until(lambda _: holds(self))

    async def up_to_date(self) -> Reader:
        await self.until(lambda reader: {"upToDate": True} in reader.entries)
        return self


async def read(client: Client, query: str, last_id: str = "") -> Reader:
    response = await client.respond("GET", f"/v1/streams/live?{query}", last_event_id=last_id)
    assert response.status == 200, response.body
    assert isinstance(response.body, EventBody)
    sink = FakeSink(response)
    response.body.attach(sink)
    return Reader(sink)


async def code(client: Client, query: str, last_id: str = "") -> tuple[int, str]:
    answer = await client.send("GET", f"/v1/streams/live?{query}", last_event_id=last_id)
    return answer.status, answer.json()["code"]


# -- what is sent


@with_app()
async def test_each_entry_names_its_stream_and_the_offset_after_it(client: Client) -> None:
    first = (await client.put("a", b"[1]", content_type=JSON)).offset
    await client.put("b", b"x", content_type=TEXT)
    reader = await (await read(client, "stream=a@-1&stream=b@now")).up_to_date()
    after = (await client.post("a", b'[2,{"x":"\\n"}]', content_type=JSON)).offset
    tail = (await client.post("b", b"y\r\nz", content_type=TEXT)).offset
    await reader.until(lambda reader: len(reader.contents) == 2)
    data = [entry for entry in reader.entries if "messages" in entry or "text" in entry]
    assert data == [
        {"stream": "a", "offset": first, "messages": [1], "upToDate": True},
        {"stream": "a", "offset": after, "messages": [2, {"x": "\n"}], "upToDate": True},
        {"stream": "b", "offset": tail, "text": "y\r\nz", "upToDate": True},
    ]
    joined = [entry for entry in reader.entries if entry.get("state") == "joined"]
    assert [(entry["stream"], entry["contentType"]) for entry in joined] == [
        ("a", JSON),
        ("b", TEXT),
    ]
    assert reader.sink.headers["content-type"] == "text/event-stream"
    assert reader.raw.startswith(b"retry: 1000\n\n")


@with_app()
async def test_bytes_and_broken_text_come_as_they_are(client: Client) -> None:
    await client.put("b", b"\x00\xff\r\n", content_type=BYTES)
    await client.put("t", b"a\xe2", content_type=TEXT)
    reader = await (await read(client, "stream=b@-1&stream=t@-1")).up_to_date()
    await client.post("t", b"\x82\xac \xff", content_type=TEXT)
    await reader.until(lambda reader: len(reader.contents["t"]) == 6)
    assert reader.contents == {"b": b"\x00\xff\r\n", "t": b"a\xe2\x82\xac \xff"}


@with_app()
async def test_long_text_is_cut_between_characters(client: Client) -> None:
    text = "€" * 20_000
    await client.put("t", text.encode(), content_type=TEXT)
    reader = await (await read(client, "stream=t@-1")).up_to_date()
    assert len([entry for entry in reader.entries if "text" in entry]) > 2
    assert not any("base64" in entry for entry in reader.entries)
    assert reader.contents["t"].decode() == text


@with_app()
async def test_streams_that_match_join_and_leave_by_themselves(client: Client) -> None:
    await client.put("chat/1", b"[1]", content_type=JSON)
    await client.put("other", b"[0]", content_type=JSON)
    reader = await (await read(client, "match=chat/*@now")).up_to_date()
    assert reader.contents == {}
    await client.put("chat/2", b"[2]", content_type=JSON)
    await client.post("chat/2", b"[3]", content_type=JSON)
    await client.put("chat/a/b", b"[9]", content_type=JSON)
    await client.post("other", b"[9]", content_type=JSON)
    await reader.until(lambda reader: reader.contents.get("chat/2") == [2, 3])
    await client.delete("chat/1")
    await client.put("chat/1", b"[4]", content_type=JSON)
    await reader.until(lambda reader: reader.contents.get("chat/1") == [4])
    assert reader.states() == [
        ("chat/1", "joined"),
        ("chat/2", "joined"),
        ("chat/1", "deleted"),
        ("chat/1", "joined"),
    ]
    assert reader.contents == {"chat/1": [4], "chat/2": [2, 3]}


@with_app()
async def test_a_named_stream_that_is_not_there_is_waited_for(client: Client) -> None:
    reader = await (await read(client, "stream=later@now")).up_to_date()
    assert reader.states() == [("later", "not-found")]
    await client.put("later", b"[1]", content_type=JSON)
    await reader.until(lambda reader: reader.contents == {"later": [1]})
    resumed = await (await read(client, "stream=later@now", reader.last_id)).up_to_date()
    assert resumed.entries == [{"upToDate": True}]


@with_app()
async def test_the_response_ends_when_every_stream_is_closed(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON, stream_closed="true")
    await client.put("b", b"[1]", content_type=JSON)
    query = "stream=a@-1&stream=b@-1"
    reader = await (await read(client, query)).up_to_date()
    assert [entry["stream"] for entry in reader.entries if entry.get("closed")] == ["a"]
    await client.post("b", b"[2]", content_type=JSON, stream_closed="true")
    await reader.until(lambda reader: reader.sink.closed)
    assert reader.contents == {"a": [1], "b": [1, 2]}
    assert [entry["stream"] for entry in reader.entries if entry.get("closed")] == ["a", "b"]
    target = f"/v1/streams/live?{query}"
    assert (await client.send("GET", target, last_event_id=reader.last_id)).status == 204
    assert (await client.send("GET", f"{target}&cursor={reader.last_id}")).status == 204
    again = await read(client, query)
    await again.until(lambda reader: reader.sink.closed)
    assert again.contents == {"a": [1], "b": [1, 2]}, "who comes first is told in events"


@with_app()
async def test_a_response_with_a_pattern_stays_open_for_what_may_come(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON, stream_closed="true")
    reader = await (await read(client, "match=*@-1")).up_to_date()
    assert not reader.sink.closed
    resumed = await (await read(client, "match=*@-1", reader.last_id)).up_to_date()
    assert resumed.entries == [{"upToDate": True}], "that it is closed was said before"


@with_app()
async def test_a_close_without_data_is_told(client: Client) -> None:
    tail = (await client.put("a", b"[1]", content_type=JSON)).offset
    await client.put("b", content_type=JSON)
    reader = await (await read(client, "stream=a@now&stream=b@now")).up_to_date()
    await client.post("a", stream_closed="true")
    await reader.until(lambda reader: any(entry.get("closed") for entry in reader.entries))
    assert reader.entries[-1] == {"stream": "a", "offset": tail, "upToDate": True, "closed": True}


@with_app()
async def test_trimmed_data_is_told_and_reading_goes_on_behind_it(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    middle = (await client.post("a", b"[2]", content_type=JSON)).offset
    start = await (await read(client, "stream=a@-1")).up_to_date()
    first_id = start.last_id
    await client.post("a", b"[3]", content_type=JSON)
    last = (await client.post("a", b"[4]", content_type=JSON)).offset
    body = json.dumps({"before": last}).encode()
    await client.send("POST", "/v1/stream/a/__ds/trim", body, content_type=JSON)
    await client.post("a", b"[5]", content_type=JSON)
    for query, last_id in (("stream=a@-1", first_id), (f"stream=a@{middle}", "")):
        reader = await (await read(client, query, last_id)).up_to_date()
        assert {"stream": "a", "offset": last, "state": "trimmed"} in reader.entries
        assert reader.contents == {"a": [5]}


@with_app()
async def test_what_happened_to_streams_while_a_reader_was_away(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.put(f"x/{name}", b"[1]", content_type=JSON)
    query = "match=x/*@now&stream=named@now"
    reader = await (await read(client, query)).up_to_date()
    reader.sink.body.detach()
    await client.post("x/a", b"[2]", content_type=JSON)
    await client.delete("x/b")
    await client.delete("x/c")
    await client.put("x/c", b"[3]", content_type=JSON)
    await client.put("x/d", b"[4]", content_type=JSON)
    await client.put("x/fork", stream_forked_from="/v1/stream/x/a")
    resumed = await (await read(client, query, reader.last_id)).up_to_date()
    assert resumed.entries[0] == {
        "state": "members",
        "streams": ["x/a", "x/c", "x/d", "x/fork"],
    }
    assert resumed.contents == {"x/a": [2], "x/c": [3], "x/d": [4], "x/fork": [1, 2]}


@with_app()
async def test_an_offset_of_a_stream_that_was_recreated_reads_the_new_one(client: Client) -> None:
    old = (await client.put("a", b"[1]", content_type=JSON)).offset
    await client.delete("a")
    await client.put("a", b"[2]", content_type=JSON)
    reader = await (await read(client, f"stream=a@{old}")).up_to_date()
    assert reader.states() == [("a", "deleted"), ("a", "joined")]
    assert reader.contents == {"a": [2]}


@with_app()
async def test_the_offset_of_a_path_wins_over_that_of_a_pattern(client: Client) -> None:
    for name in ("a", "b"):
        await client.put(name, b"[1]", content_type=JSON)
    reader = await (await read(client, "match=*@now&stream=b@-1&match=**@-1")).up_to_date()
    assert reader.contents == {"b": [1]}, "of two patterns the first counts"


@with_app()
async def test_paths_with_an_at_sign_and_escapes(client: Client) -> None:
    await client.put("mail/me@example.com", b"[1]", content_type=JSON)
    await client.put("caf%C3%A9/a%20b", b"[2]", content_type=JSON)
    query = "stream=mail/me@example.com@-1&stream=caf%25C3%25A9/a%2520b%40-1"
    reader = await (await read(client, query)).up_to_date()
    assert reader.contents == {"mail/me@example.com": [1], "caf%C3%A9/a%20b": [2]}


@with_app()
async def test_streams_of_the_server_itself_are_not_matched(client: Client) -> None:
    body = json.dumps({"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"}).encode()
    target = "/v1/stream/__ds/subscriptions/s"
    assert (await client.send("PUT", target, body, content_type=JSON)).status < 300
    reader = await (await read(client, "match=**@-1")).up_to_date()
    assert not [stream for stream, _ in reader.states() if stream.startswith("__ds/")]


# -- cut anywhere


def scripted(client: Client, seed: int) -> Any:
    """Random changes to a few streams; what a reader from the beginning has at the end."""
    rng = random.Random(seed)
    expected: dict[str, Any] = {}
    types = {"x/j": JSON, "x/t": TEXT, "x/b": BYTES, "named": JSON}
    number = 0

    async def change() -> None:
        nonlocal number
        path = rng.choice(list(types))
        kind = types[path]
        if path not in expected:
            await client.put(path, content_type=kind)
            expected[path] = [] if kind == JSON else b""
        for _ in range(rng.randint(1, 3)):
            number += 1
            if kind == JSON:
                values = [number, {"€": "\r\n"}]
                await client.post(path, json.dumps(values).encode(), content_type=kind)
                expected[path] = expected[path] + values
            else:
                data = rng.choice([b"\xe2", b"\x82", b"\xac", b"a\r\nb", "ü".encode(), b"\x00"])
                await client.post(path, data, content_type=kind)
                expected[path] = expected[path] + data

    return change, expected


@pytest.mark.parametrize("seed", range(3))
def test_a_response_that_is_cut_at_any_byte_goes_on_without_loss_or_repeat(seed: int) -> None:
    query = "match=x/*@-1&stream=named@-1"

    async def test(client: Client) -> None:
        change, expected = scripted(client, seed)
        await change()
        reader = await (await read(client, query)).up_to_date()
        for _ in range(8):
            await change()
        await reader.until(lambda reader: nonempty(reader.contents) == nonempty(expected))
        whole = reader.raw
        for cut in range(len(whole) + 1):
            first = seen(whole[:cut])
            rest = await (await read(client, query, first.last_id)).up_to_date()
            both = contents(first.entries + rest.entries)
            assert nonempty(both) == nonempty(expected), whole[:cut]
            order = [each["offset"] for each in first.entries + rest.entries if has_data(each)]
            assert len(order) == len(set(order)), "no entry comes twice"
            rest.sink.body.detach()

    run_with_app(test, Settings(memory=True))


def nonempty(contents: dict[str, Any]) -> dict[str, Any]:
    return {path: data for path, data in contents.items() if data}


def has_data(entry: dict[str, Any]) -> bool:
    return any(name in entry for name in ("messages", "text", "base64"))


@pytest.mark.parametrize("seed", range(6))
def test_readers_that_come_and_go_while_everything_changes_miss_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small limits, so that little data goes through every state.
    monkeypatch.setattr(groups, "EVENT_BYTES", 200)
    monkeypatch.setattr(groups, "PIECE_BYTES", 50)
    monkeypatch.setattr(feeds, "PUBLISH_BYTES_MAX", 60)
    rng = random.Random(seed)
    query = "match=x/*@-1&stream=named@-1"

    async def test(client: Client) -> None:
        change, expected = scripted(client, seed)
        entries: list[dict[str, Any]] = []
        last_id = ""
        reader = await read(client, query)
        for _ in range(80):
            action = rng.random()
            if action < 0.6:
                await change()
            elif action < 0.8:
                for _ in range(rng.randint(1, 20)):
                    await asyncio.sleep(0)
            elif action < 0.9:
                reader.sink.congested = not reader.sink.congested
                if not reader.sink.congested:
                    reader.sink.body.drained()
            else:
                raw = reader.raw
                cut = seen(raw[: rng.randint(0, len(raw))])
                reader.sink.body.detach()
                entries, last_id = entries + cut.entries, cut.last_id or last_id
                if rng.random() < 0.3:
                    client.app.streams.many._close(
                        next(iter(client.app.streams.many._groups.values()))
                    )
                reader = await read(client, query, last_id)
        reader.sink.congested = False
        reader.sink.body.drained()
        await reader.until(
            lambda reader: nonempty(contents(entries + reader.entries)) == nonempty(expected)
        )

    run_with_app(test, Settings(memory=True))


# -- limits and refusals


@with_app(live_streams_max=3, live_parameters_max=4)
async def test_limits_have_their_own_answers(client: Client) -> None:
    for name in "abc":
        await client.put(name, b"[1]", content_type=JSON)
    query = "&".join(f"stream={name}@now" for name in "abcde")
    assert await code(client, query) == (400, "too-many-parameters")
    reader = await (await read(client, "match=*@now")).up_to_date()
    await client.put("d", b"[1]", content_type=JSON)
    await reader.until(lambda reader: reader.sink.closed)
    assert await code(client, "match=*@now", reader.last_id) == (
        400,
        "too-many-streams",
    )
    assert client.engine.stats.watchers == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "invalid-parameter"),
        ("stream=a", "invalid-parameter"),
        ("stream=@now", "invalid-parameter"),
        ("stream=a@", "invalid-parameter"),
        ("stream=a@junk", "invalid-offset"),
        ("stream=a@now&stream=a@-1", "invalid-parameter"),
        ("stream=a@now&stream=%61@-1", "invalid-parameter"),
        ("stream=a/../b@now", "invalid-parameter"),
        ("stream=__ds/x@now", "invalid-parameter"),
        ("stream=a/__ds/trim@now", "invalid-parameter"),
        ("stream=a%ff@now", "invalid-parameter"),
        ("stream=a%2@now", "invalid-parameter"),
        ("match=a@now", "invalid-parameter"),
        ("match=*@0000000000000001_0000000000000000", "invalid-parameter"),
        ("match=*@now&match=*@-1", "invalid-parameter"),
        ("match=a**@now", "invalid-parameter"),
        ("streams=a@now", "unknown-parameter"),
        ("stream=a@now&cursor=1", "invalid-cursor"),
        ("stream=a@now&cursor=x&cursor=y", "invalid-parameter"),
        ("stream=a@0000000000000001_0000000000009999", "offset-beyond-tail"),
        ("stream=a@0000000000000001_0000000000000002", "offset-not-aligned"),
        ("stream=a@0000000000000099_0000000000000000", "invalid-offset"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(query: str, expected: str) -> None:
    async def test(client: Client) -> None:
        await client.put("a", b"[1234567]", content_type=JSON)
        assert await code(client, query) == (400, expected)

    run_with_app(test, Settings(memory=True))


@with_app()
async def test_a_cursor_belongs_to_its_parameters(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    reader = await (await read(client, "stream=a@-1")).up_to_date()
    assert await code(client, "stream=b@-1", reader.last_id) == (
        400,
        "invalid-cursor",
    )
    resumed = await (await read(client, "stream=a@now", reader.last_id)).up_to_date()
    assert resumed.entries == [{"upToDate": True}], "the cursor wins over the offset"


@with_app()
async def test_a_browser_that_comes_to_a_stopping_server_comes_again(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    reader = await (await read(client, "stream=a@-1")).up_to_date()
    client.app.drain()
    assert reader.sink.closed
    target = "/v1/streams/live?stream=a@-1"
    again = await client.send("GET", target, last_event_id=reader.last_id)
    assert (again.status, again.body) == (200, b"retry: 1000\n\n")
    assert await code(client, "stream=a@-1") == (503, "shutting-down")
    assert client.engine.stats.watchers == 0


# -- access


def test_what_may_not_be_read_looks_like_what_does_not_exist() -> None:
    async def test(client: Client) -> None:
        for path in ("chat/1", "chat/2", "secret"):
            await client.put(path, b"[1]", content_type=JSON)
        principal = Principal("ann", Rules([parse_rule("read:chat/1"), parse_rule("read:new/*")]))
        readers = []
        for who in (principal, ROOT):
            request = make_request("GET", f"/v1/streams/live?{query}")
            request.principal = who
            response = await client.app.streams.many.get("", request)  # type: ignore[misc]
            sink = FakeSink(response)
            sink.body.attach(sink)
            readers.append(await Reader(sink).up_to_date())
        ann, root = readers
        assert ann.states() == [("secret", "not-found"), ("chat/1", "joined")]
        assert ann.contents == {"chat/1": [1]}
        for path in ("new/1", "new/2/3", "chat/3"):
            await client.put(path, b"[2]", content_type=JSON)
        for path in ("chat/1", "chat/2", "secret", "new/1"):
            await client.post(path, b"[3]", content_type=JSON)
        await root.until(lambda reader: reader.contents.get("new/1") == [2, 3])
        await ann.until(lambda reader: reader.contents.get("new/1") == [2, 3])
        assert ann.contents == {"chat/1": [1, 3], "new/1": [2, 3]}
        assert set(root.contents) == {"chat/1", "chat/2", "chat/3", "secret", "new/1", "new/2/3"}
        resumed = make_request("GET", f"/v1/streams/live?{query}", last_event_id=root.last_id)
        resumed.principal = principal
        response = await client.app.streams.many.get("", resumed)  # type: ignore[misc]
        sink = FakeSink(response)
        sink.body.attach(sink)
        stolen = await Reader(sink).up_to_date()
        assert stolen.contents == {}
        assert stolen.entries[0] == {"state": "members", "streams": ["chat/1", "new/1"]}

    query = "match=**@-1&stream=secret@-1"
    run_with_app(test, Settings(memory=True))


# -- readers


@with_app(sse_buffer_bytes_max=100)
async def test_a_slow_reader_is_dropped_and_resumes(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    slow, other = [await (await read(client, "stream=a@-1")).up_to_date() for _ in range(2)]
    slow.sink.congested, slow.sink.buffered = True, 101
    await client.post("a", b"[2]", content_type=JSON)
    await other.until(lambda reader: reader.contents == {"a": [1, 2]})
    assert slow.sink.closed
    assert client.app.traffic.sse_dropped == 1
    resumed = await (await read(client, "stream=a@-1", slow.last_id)).up_to_date()
    assert resumed.contents == {"a": [2]}


@with_app()
async def test_a_reader_that_is_behind_holds_one_event_and_gets_all_streams_in_turn(
    client: Client,
) -> None:
    message = json.dumps("x" * 1000).encode()
    for name in "abc":
        await client.put(name, b"[" + b",".join([message] * 200) + b"]", content_type=JSON)
    response = await client.respond("GET", "/v1/streams/live?match=*@-1")
    assert isinstance(response.body, EventBody)
    sink = FakeSink(response)
    sink.full_after = 2  # after `retry` and the first event
    response.body.attach(sink)
    reader = Reader(sink)
    await reader.until(lambda reader: reader.sink.congested)
    await asyncio.sleep(0.05)
    assert len(reader.raw) < 2 * groups.EVENT_BYTES
    counts = [len(reader.contents[name]) for name in "abc"]
    assert max(counts) - min(counts) <= groups.PIECE_BYTES / 1000 + 1
    sink.congested = False
    response.body.drained()
    await reader.up_to_date()
    assert {name: len(data) for name, data in reader.contents.items()} == dict.fromkeys("abc", 200)


@with_app(sse_timeout_s=0.01)
async def test_a_response_ends_after_its_time_and_nobody_is_left_over(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_live, "LINGER_S", 0.0)
        patch.setattr(many_live, "SWEEP_S", 0.02)
        reader = await (await read(client, "match=*@-1")).up_to_date()
        await reader.until(lambda reader: reader.sink.closed)
        while client.engine.stats.watchers:
            await asyncio.sleep(0.01)
    many = client.app.streams.many
    assert (many._groups, many._feeds, many._names) == ({}, {}, {})
    assert client.app.traffic.sse_readers == 0


@with_app(sse_keepalive_s=0.02)
async def test_idle_readers_get_comments(client: Client) -> None:
    reader = await read(client, "match=*@-1")
    await reader.until(lambda reader: reader.sink.frames.count(b":\n\n") >= 2)


@with_app()
async def test_readers_of_the_same_streams_share_what_is_sent(client: Client) -> None:
    await client.put("a", content_type=JSON)
    readers = [await (await read(client, "stream=a@now")).up_to_date() for _ in range(5)]
    other = await (await read(client, "stream=a@now&match=b*@now")).up_to_date()
    assert client.engine.stats.watchers == 1
    await client.post("a", b"[1]", content_type=JSON)
    for reader in [*readers, other]:
        await reader.until(lambda reader: reader.contents == {"a": [1]})
    frames = {id(reader.sink.frames[-1]) for reader in readers}
    assert len(frames) == 1, "one object for all"


@with_app()
async def test_who_joins_while_an_event_waits_does_not_get_it_twice(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "ID_BYTES_PER_S", 0.01)  # events wait until somebody joins
        first = await (await read(client, "stream=a@-1")).up_to_date()
        await client.post("a", b"[2]", content_type=JSON)
        await first.until(lambda reader: reader.contents == {"a": [1, 2]})
        await client.post("a", b"[3]", content_type=JSON)
        second = await (await read(client, "stream=a@-1")).up_to_date()
        assert first.contents == second.contents == {"a": [1, 2, 3]}
    client.app.drain()


@with_app()
async def test_a_thousand_streams_on_one_response(client: Client) -> None:
    for number in range(1000):
        await client.put(f"s/{number}", b"[0]", content_type=JSON)
    reader = await (await read(client, "match=s/*@-1")).up_to_date()
    assert len(reader.contents) == 1000
    for number in range(1000):
        await client.post(f"s/{number}", b"[1]", content_type=JSON)
    await reader.until(lambda reader: reader.raw.count(b'"messages":[1]') == 1000)
    assert len(reader.last_id) < 8000, "it fits into a header that proxies take"
    resumed = await (await read(client, "match=s/*@-1", reader.last_id)).up_to_date()
    assert resumed.entries == [{"upToDate": True}]


@with_app()
async def test_ids_of_a_busy_response_take_a_bounded_share(client: Client) -> None:
    """Events of many streams wait for each other, so that their ids do not outweigh the data."""
    for number in range(200):
        await client.put(f"s/{number}", b"[0]", content_type=JSON)
    reader = await (await read(client, "match=s/*@now")).up_to_date()
    before, started = len(reader.sink.frames), time.monotonic()
    for number in range(400):
        await client.post(f"s/{number % 200}", b"[1]", content_type=JSON)
    await reader.until(lambda reader: reader.raw.count(b'"messages":[1]') == 400)
    elapsed = time.monotonic() - started
    frames = reader.sink.frames[before:]
    ids = sum(len(frame.split(b"\nid: ")[1]) for frame in frames)
    assert ids <= groups.ID_BYTES_PER_S * elapsed + 2 * len(reader.last_id)
