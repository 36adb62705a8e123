"""Reads with `type` and `key`: in every mode only the events that pass, and offsets that move over
all."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.http.streams import filtered
from penstock.state.filtering import EventFilter
from tests.helpers.app import Answer, Client, FakeSink, run_with_app, settings_of, with_app

JSON = "application/json"


def change(type_: str, key: str, value: Any = 0) -> dict[str, Any]:
    return {"type": type_, "key": key, "value": value, "headers": {"operation": "upsert"}}


RESET = {"headers": {"control": "reset"}}
EVENTS: list[Any] = [
    change("user", "1"),
    change("order", "1"),
    RESET,
    "no event at all",
    change("user", "2"),
    change("order", "2"),
    {**change("user", "1"), "value": {"key": "2"}},
]


async def append(client: Client, *events: Any, path: str = "a") -> str:
    answer = await client.post(path, json.dumps(events).encode(), content_type=JSON)
    assert answer.status == 204
    return answer.offset


async def filled(client: Client, path: str = "a", events: list[Any] = EVENTS) -> str:
    await client.put(path, content_type=JSON)
    return await append(client, *events, path=path) if events else (await client.head(path)).offset


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("type=user", [0, 2, 4, 6]),
        ("type=order", [1, 2, 5]),
        ("type=user&type=order", [0, 1, 2, 4, 5, 6]),
        ("key=1", [0, 1, 2, 6]),
        ("type=user&key=1", [0, 2, 6]),
        ("type=order&key=2&key=3", [2, 5]),
        ("type=none", [2]),
    ],
)
def test_a_read_has_the_events_that_pass_and_all_control_events(
    query: str, expected: list[int]
) -> None:
    async def check(client: Client) -> None:
        tail = await filled(client)
        read = await client.get("a", query)
        assert (read.status, read.json()) == (200, [EVENTS[index] for index in expected])
        assert read.offset == tail
        assert read.headers["stream-up-to-date"] == "true"
        names = ", ".join(name for name in ("type", "key") if name + "=" in query)
        assert read.headers["stream-filter"] == names

    run_with_app(check, settings_of("memory", Path()))


@with_app()
async def test_tags_differ_by_filter_and_revalidate(client: Client) -> None:
    await filled(client)
    whole = await client.get("a")
    users, orders = await client.get("a", "type=user"), await client.get("a", "type=order")
    tags = [answer.headers["etag"] for answer in (whole, users, orders)]
    assert len(set(tags)) == 3
    assert (await client.get("a", "type=user", if_none_match=tags[1])).status == 304
    assert (await client.get("a", "type=user", if_none_match=tags[0])).status == 200
    again = await client.get("a", "type=user&type=user", if_none_match=tags[1])
    assert again.status == 304, "the same filter in other words"
    empty = await client.get("a", f"type=none&offset={(await cut(client, 3)).offset}")
    assert (empty.json(), empty.headers["cache-control"]) == ([], "no-cache")
    await client.post("a", stream_closed="true")
    closed = await client.get("a", "type=user", if_none_match=tags[1])
    assert (closed.status, closed.headers["stream-closed"]) == (200, "true")


async def cut(client: Client, count: int) -> Answer:
    """A read of the first messages, for the offset after them."""
    return await client.get("a", f"count={count}")


@with_app()
async def test_a_large_page_is_compressed(client: Client) -> None:
    await filled(client, events=[change("user", str(n), "x" * 50) for n in range(2000)])
    packed = await client.get("a", "type=user", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.headers["etag"].startswith("W/")
    assert json.loads(gzip.decompress(packed.body)) == (await client.get("a", "type=user")).json()


@with_app()
async def test_bounds_and_starts_work_with_a_filter(client: Client) -> None:
    tail = await filled(client)
    page = await client.get("a", "type=user&count=2")
    assert page.json() == [EVENTS[0], RESET], "the count is of what passes"
    assert (await client.get("a", f"type=user&offset={page.offset}")).json() == EVENTS[4::2]
    assert page.offset == (await cut(client, 3)).offset
    until = (await cut(client, 5)).offset
    bounded = await client.get("a", f"type=user&until={until}")
    assert (bounded.json(), bounded.offset) == ([EVENTS[0], RESET, EVENTS[4]], until)
    last = await client.get("a", "type=user&tail=2")
    assert (last.json(), last.offset) == ([EVENTS[6]], tail)
    assert "stream-start-offset" in last.headers
    assert (await client.get("a", "type=user&offset=now")).json() == []


@with_app(chunk_bytes=1024)
async def test_positions_and_ordinals_are_those_of_an_unfiltered_read(client: Client) -> None:
    events = [change("user" if n % 7 == 0 else "noise", str(n), "x" * 300) for n in range(600)]
    await filled(client, events=events)
    starts = [0]
    for event in events:
        starts.append(starts[-1] + len(json.dumps(event)) + 2)
    for query in ("type=user", "type=user&tail=500", "type=user&count=3&tail=590"):
        read = await client.get("a", f"{query}&positions=true")
        assert read.headers["stream-filter"] == "type, positions"
        page = read.json()
        assert len(page["messages"]) in (86, 71, 3)
        assert [events[ordinal] for ordinal in page["ordinals"]] == page["messages"]
        assert [starts[ordinal] for ordinal in page["ordinals"]] == page["positions"]
        assert page["messages"] == (await client.get("a", query)).json()
    empty = (await client.get("a", "type=none&positions=true")).json()
    assert empty == {"positions": [], "ordinals": [], "messages": []}


@pytest.mark.parametrize(
    "query",
    [
        "type=",
        "key=&type=a",
        "splits=2&type=a",
        "type=%FF",
        "typ=a",
        "positions=true",
        "type=a&positions=1",
        "type=a&positions=true&live=sse&offset=-1",
        "kye=1",
        "key=1&" * 100 + "key=1",
    ],
)
def test_wrong_filters_are_refused(query: str) -> None:
    async def check(client: Client) -> None:
        await filled(client)
        refused = await client.get("a", query)
        assert refused.status == 400, query

    run_with_app(check, settings_of("memory", Path()))


@with_app()
async def test_only_json_streams_have_events(client: Client) -> None:
    await client.put("a", b"text", content_type="text/plain")
    for query in ("type=a", "key=a&offset=-1&live=sse", "type=a&offset=-1&live=long-poll"):
        refused = await client.get("a", query)
        assert (refused.status, refused.json()["code"]) == (400, "invalid-parameter")
        assert "text/plain" in refused.json()["detail"]


@with_app(filter_scan_bytes_max=150_000)
async def test_a_read_searches_so_many_bytes_and_answers_with_where_it_is(client: Client) -> None:
    noise = [change("noise", str(n), "x" * 200) for n in range(2000)]
    tail = await filled(client, events=[*noise, change("user", "1")])
    result, pages, offset, up_to_date = [], 0, "-1", False
    while not up_to_date:
        page = await client.get("a", f"type=user&offset={offset}")
        result += page.json()
        offset, pages = page.offset, pages + 1
        up_to_date = "stream-up-to-date" in page.headers
    assert (result, offset) == ([change("user", "1")], tail)
    assert 3 <= pages <= 5
    polled = await client.get("a", "type=user&offset=-1&live=long-poll")
    assert (polled.status, polled.json()) == (200, []), "it does not wait: there is more to search"
    assert "stream-up-to-date" not in polled.headers


@with_app()
async def test_others_have_a_turn_while_a_read_searches(client: Client) -> None:
    noise = [change("noise", str(n), "x" * 3000) for n in range(500)]
    await filled(client, events=noise)
    read = asyncio.ensure_future(client.get("a", "type=user"))
    turns = 0
    while not read.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20


@with_app(long_poll_timeout_s=10)
async def test_a_large_event_is_searched_beside_the_event_loop(client: Client) -> None:
    """One message is one piece, however long: nobody else would have a turn while it is parsed."""
    large = change("user", "1", "x" * 4 * filtered.PIECE_BYTES)
    await filled(client, events=[])
    threads: list[str] = []
    original = EventFilter.spans

    def spans(self: EventFilter, wire: bytes) -> list[tuple[int, int]]:
        if len(wire) > filtered.PIECE_BYTES:
            threads.append(threading.current_thread().name)
        return original(self, wire)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventFilter, "spans", spans)
        sinks = [await client.sse("a", "-1", "type=user") for _ in range(4)]
        waiting = await poll(client, "type=user&offset=now")
        tail = await append(client, large)
        assert (await waiting).json() == [large]
        for sink in sinks:
            await sink.until(lambda sink: sink.controls[-1]["streamNextOffset"] == tail)
            assert messages(sink) == [large]
        assert (await client.get("a", "type=user")).json() == [large]
    assert len(threads) == 3, "for all readers, for the poll, and for the read"
    assert threading.main_thread().name not in threads


# -- long-polls


async def poll(client: Client, query: str, path: str = "a") -> asyncio.Task[Answer]:
    """A long-poll that waits."""
    before = client.app.traffic.long_polls
    task = asyncio.create_task(client.get(path, f"{query}&live=long-poll"))
    while client.app.traffic.long_polls == before and not task.done():
        await asyncio.sleep(0)
    return task


@with_app(long_poll_timeout_s=0.05)
async def test_a_long_poll_without_a_match_moves_over_what_it_has_seen(client: Client) -> None:
    tail = await filled(client)
    answer = await client.get("a", "type=none&key=x&offset=now&live=long-poll")
    assert (answer.status, answer.offset) == (204, tail)
    waiting = await poll(client, f"type=user&offset={tail}")
    moved = await append(client, change("order", "7"))
    answer = await waiting
    assert (answer.status, answer.body, answer.offset) == (204, b"", moved)
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["stream-filter"] == "type"
    assert "stream-cursor" in answer.headers


@with_app(long_poll_timeout_s=10)
async def test_a_long_poll_is_answered_when_something_passes(client: Client) -> None:
    tail = await filled(client)
    waiting = [await poll(client, f"type=user&offset={tail}") for _ in range(3)]
    for key in range(5):
        await append(client, change("order", str(key)))
    assert not any(each.done() for each in waiting)
    last = await append(client, change("order", "9"), change("user", "9"))
    for answer in await asyncio.gather(*waiting):
        assert (answer.status, answer.json(), answer.offset) == (200, [change("user", "9")], last)
    ending = await poll(client, f"type=user&offset={last}")
    await client.post("a", stream_closed="true")
    answer = await ending
    assert (answer.status, answer.headers["stream-closed"]) == (204, "true")


@with_app(long_poll_timeout_s=10)
async def test_a_long_poll_sees_a_match_in_a_large_commit(client: Client) -> None:
    tail = await filled(client)
    waiting = await poll(client, f"key=z&offset={tail}")
    noise = [change("noise", str(n), "x" * 200) for n in range(1000)]
    last = await append(client, *noise, change("user", "z"))
    answer = await waiting
    assert (answer.json(), answer.offset) == ([change("user", "z")], last)


@with_app(long_poll_timeout_s=10)
async def test_a_stop_and_a_deletion_end_the_wait(client: Client) -> None:
    tail = await filled(client)
    waiting = await poll(client, f"key=z&offset={tail}")
    await client.delete("a")
    assert (await waiting).status == 404
    tail = await filled(client, "b")
    waiting = await poll(client, f"key=z&offset={tail}", "b")
    client.app.drain()
    assert (await waiting).status == 204


# -- events


def messages(sink: FakeSink) -> list[Any]:
    return [message for data in sink.data for message in json.loads(data)]


@with_app()
async def test_events_are_those_that_pass(client: Client) -> None:
    await filled(client)
    sink = await client.sse("a", "-1", "type=user")
    assert sink.headers["stream-filter"] == "type"
    assert messages(sink) == [EVENTS[0], RESET, EVENTS[4], EVENTS[6]]
    await append(client, change("order", "8"))
    await append(client, change("order", "9"), change("user", "9"))
    await sink.until(lambda sink: change("user", "9") in messages(sink))
    assert change("order", "8") not in messages(sink)
    last = await append(client, change("order", "10"))
    await client.post("a", stream_closed="true")
    await sink.until(lambda sink: sink.closed)
    assert sink.controls[-1]["streamNextOffset"] == last
    assert sink.controls[-1]["streamClosed"] is True


@with_app()
async def test_every_filter_has_its_own_events_and_the_unfiltered_ones_stay(client: Client) -> None:
    await filled(client, events=[])
    sinks = [await client.sse("a", "-1", query) for query in ("", "type=user", "key=1&sse=base64")]
    await append(client, *EVENTS)
    await sinks[0].until(lambda sink: bool(sink.data))
    assert messages(sinks[0]) == EVENTS
    assert messages(sinks[1]) == [EVENTS[0], RESET, EVENTS[4], EVENTS[6]]
    assert sinks[2].headers["stream-sse-data-encoding"] == "base64"
    assert len(sinks[2].data) == 1


@with_app()
async def test_a_commit_is_searched_once_for_all_readers_of_a_filter(client: Client) -> None:
    await filled(client, events=[])
    searched: list[int] = []
    original = EventFilter.spans

    def spans(self: EventFilter, wire: bytes) -> list[tuple[int, int]]:
        searched.append(len(wire))
        return original(self, wire)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventFilter, "spans", spans)
        sinks = [await client.sse("a", "-1", "type=user&key=1") for _ in range(5)]
        polls = [await poll(client, "key=1&type=user&offset=now") for _ in range(2)]
        searched.clear()
        await append(client, change("order", "1"))
        assert len(searched) == 1
        await append(client, change("user", "1"))
        assert [messages(sink) for sink in sinks] == [[change("user", "1")]] * 5
        assert [(await each).json() for each in polls] == [[change("user", "1")]] * 2
        assert len(searched) <= 4, "each poll reads for itself what has passed"


@with_app(long_poll_timeout_s=10)
async def test_a_long_poll_does_not_search_again_what_woke_nobody(client: Client) -> None:
    await filled(client, events=[])
    waiting = await poll(client, "type=user&offset=now")
    for key in range(5):
        tail = await append(client, change("order", str(key)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventFilter, "spans", None)
        client.app.drain()
        answer = await waiting
    assert (answer.status, answer.offset) == (204, tail)


@with_app()
async def test_a_reader_without_a_match_learns_its_offset_now_and_then(client: Client) -> None:
    await filled(client)
    sink = await client.sse("a", "now", "type=none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtered, "SILENT_S", 1000.0)
        count = len(sink.controls)
        await append(client, change("order", "1"))
        await append(client, change("order", "2"))
        assert len(sink.controls) <= count + 1
        patch.setattr(filtered, "SILENT_S", 0.0)
        last = await append(client, change("order", "3"))
        assert sink.controls[-1]["streamNextOffset"] == last
        assert sink.controls[-1]["upToDate"] is True
        assert sink.data == []


@with_app(filter_scan_bytes_max=2_000_000)
async def test_a_reader_far_behind_is_brought_up_and_ends_after_so_many_bytes(
    client: Client,
) -> None:
    noise = [change("noise", str(n), "x" * 1000) for n in range(1500)]
    await filled(client, events=noise)
    tail = await append(client, *noise, change("user", "1"))
    first = await client.sse("a", "-1", "type=user")
    await first.until(lambda sink: sink.closed)
    assert first.data == []
    assert 1 <= len(first.controls) <= 4
    offset = first.controls[-1]["streamNextOffset"]
    second = await client.sse("a", offset, "type=user")
    await second.until(lambda sink: bool(sink.controls) and "upToDate" in sink.controls[-1])
    assert messages(second) == [change("user", "1")]
    assert second.controls[-1]["streamNextOffset"] == tail


@with_app()
async def test_a_large_commit_reaches_joined_readers_whole(client: Client) -> None:
    await filled(client)
    sinks = [await client.sse("a", "now", "type=user") for _ in range(3)]
    noise = [change("noise", str(n), "x" * 200) for n in range(1000)]
    tail = await append(client, change("user", "a"), *noise, change("user", "z"))
    for sink in sinks:
        await sink.until(lambda sink: sink.controls[-1]["streamNextOffset"] == tail)
        assert messages(sink) == [change("user", "a"), change("user", "z")]
    last = await append(client, change("user", "after"))
    for sink in sinks:
        await sink.until(lambda sink: sink.controls[-1]["streamNextOffset"] == last)
        assert messages(sink)[-1] == change("user", "after")


@with_app(filter_scan_bytes_max=50_000_000)
async def test_readers_that_come_at_any_time_get_each_event_once(client: Client) -> None:
    chance = random.Random(5)
    await filled(client, events=[])
    events: list[Any] = []
    offsets = [(await client.head("a")).offset]
    readers: list[tuple[FakeSink, int]] = []
    for _ in range(60):
        size = chance.choice([0, 30, 30, 3000, 40_000])
        commit = [
            change(chance.choice(["user", "noise"]), str(len(events) + n), "x" * size)
            for n in range(chance.choice([1, 1, 2, 5]))
        ]
        events += commit
        last = await append(client, *commit)
        offsets += [""] * (len(commit) - 1) + [last]
        if chance.random() < 0.4:
            start = chance.choice([n for n, offset in enumerate(offsets) if offset])
            readers.append((await client.sse("a", offsets[start], "type=user"), start))
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    await client.post("a", stream_closed="true")
    assert len(readers) > 10
    for sink, start in readers:
        await sink.until(lambda sink: sink.closed)
        assert messages(sink) == [event for event in events[start:] if event["type"] == "user"]
        assert sink.controls[-1]["streamClosed"] is True
