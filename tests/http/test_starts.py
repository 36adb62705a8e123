"""Reads from a time (`at`) and of the last messages (`tail`), in every mode of reading."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock import limits
from penstock.http.message import EventBody
from tests.helpers.app import Client, FakeSink, run_with_app, settings_of, with_app

JSON = "application/json"
TEXT = "text/plain"
BEGAN_MS = 1_800_000_000_000  # of the clock of these tests


async def numbers(client: Client, path: str = "a", count: int = 5) -> list[str]:
    """A message every ten seconds from BEGAN_MS on; returns the offset before each, and the
    tail."""
    created = await client.put(path, content_type=JSON)
    offsets = [created.offset]
    for number in range(count):
        offsets.append((await client.post(path, b"%d" % number, content_type=JSON)).offset)
        client.clock.advance(10)
    return offsets


@with_app()
async def test_a_read_starts_at_the_first_message_from_a_time_on(client: Client) -> None:
    offsets = await numbers(client)
    for at, first in (
        ("0", 0),
        (str(BEGAN_MS), 0),
        (str(BEGAN_MS + 1), 1),
        (str(BEGAN_MS + 10_000), 1),
        (str(BEGAN_MS + 39_999), 4),
        ("2027-01-15T08:00:25Z", 3),
        ("2027-01-15T08:00:10.001Z", 2),
        ("2027-01-15T09:00:25+01:00", 3),  # the plus is a space in a query
        (quote("2027-01-15T09:00:25+01:00"), 3),
        (str(BEGAN_MS + 50_000), 5),
        ("9999-12-31T23:59:59Z", 5),
    ):
        read = await client.get("a", f"at={at}")
        assert (read.status, read.json()) == (200, list(range(first, 5))), at
        assert read.headers["stream-start-offset"] == offsets[first]
        assert read.offset == offsets[-1]
        assert read.headers["cache-control"] == "no-cache", "another read may start elsewhere"
        head = await client.send("HEAD", f"/v1/stream/a?at={at}")
        assert (head.status, head.headers["stream-start-offset"]) == (200, offsets[first])
        assert (head.offset, head.headers["cache-control"]) == (offsets[-1], "no-store")


@with_app()
async def test_a_read_has_the_last_messages(client: Client) -> None:
    offsets = await numbers(client)
    for tail, first in ((0, 5), (1, 4), (2, 3), (5, 0), (6, 0), (10**15, 0)):
        read = await client.get("a", f"tail={tail}")
        assert (read.status, read.json()) == (200, list(range(first, 5)))
        assert read.headers["stream-start-offset"] == offsets[first]
        assert read.headers["cache-control"] == "no-cache"
        assert read.headers["stream-up-to-date"] == "true"
    tag = (await client.get("a", "tail=2")).headers["etag"]
    again = await client.get("a", "tail=2", if_none_match=tag)
    assert (again.status, again.headers["stream-start-offset"]) == (304, offsets[3])
    await client.post("a", b"5", content_type=JSON)
    assert (await client.get("a", "tail=2", if_none_match=tag)).json() == [4, 5]


@with_app()
async def test_bounds_work_from_such_a_start_too(client: Client) -> None:
    offsets = await numbers(client)
    assert (await client.get("a", "tail=3&count=2")).json() == [2, 3]
    assert (await client.get("a", f"at={BEGAN_MS + 5}&until={offsets[3]}")).json() == [1, 2]
    split = await client.get("a", "tail=4&splits=2")
    assert split.json()["offsets"][0] == offsets[1] == split.headers["stream-start-offset"]


@with_app(chunk_bytes=1024)
async def test_a_long_tail_is_paged_as_every_read(client: Client) -> None:
    messages = [{"n": n, "pad": "x" * 80} for n in range(100)]
    await client.put("a", json.dumps(messages).encode(), content_type=JSON)
    page = await client.get("a", "tail=60")
    result = page.json()
    assert 1 < len(result) < 60
    assert "stream-up-to-date" not in page.headers
    while "stream-up-to-date" not in page.headers:
        page = await client.get("a", f"offset={page.offset}")
        result += page.json()
    assert result == messages[-60:]


@with_app()
async def test_the_last_lines_of_text(client: Client) -> None:
    text = b"one\n\nthree\r\nfour"
    await client.put("a", text, content_type=TEXT)
    for tail, expected in (
        (0, b""),
        (1, b"four"),
        (2, b"three\r\nfour"),
        (3, b"\nthree\r\nfour"),
        (4, text),
        (9, text),
    ):
        assert (await client.get("a", f"tail={tail}")).body == expected
    await client.post("a", b"\n", content_type=TEXT)
    assert (await client.get("a", "tail=1")).body == b"four\n", "a line feed ends the last line"
    await client.post("a", b"\n", content_type=TEXT)
    assert (await client.get("a", "tail=2")).body == b"four\n\n"


def test_lines_are_searched_in_a_bounded_part_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(client: Client) -> None:
        await client.put("a", b"0123456789\n" * 5, content_type=TEXT)
        assert (await client.get("a", "tail=1")).body == b"0123456789\n"
        refused = await client.get("a", "tail=3")
        assert (refused.status, refused.json()["code"]) == (400, "invalid-parameter")
        assert "ask for fewer" in refused.json()["detail"]

    monkeypatch.setattr(limits, "TAIL_LINES_BYTES_MAX", 20)
    run_with_app(check, settings_of("memory", Path()))


@with_app()
async def test_bytes_have_no_last_messages_but_times(client: Client) -> None:
    await client.put("a", b"ab", content_type="application/octet-stream")
    client.clock.advance(1)
    await client.post("a", b"cd", content_type="application/octet-stream")
    refused = await client.get("a", "tail=1")
    assert refused.status == 400
    assert "application/octet-stream" in refused.json()["detail"]
    assert (await client.get("a", f"at={BEGAN_MS + 1000}")).body == b"cd"


@pytest.mark.parametrize(
    "query",
    [
        "at=",
        "at=yesterday",
        "at=2027-01-15T08:00:25",
        "at=2023-11-14",
        "at=-1",
        "at=1.5",
        "at=now",
        "at=1&at=2",
        "tail=",
        "tail=-1",
        "tail=x",
        "tail=1.0",
        "at=1&tail=1",
        "at=1&offset=-1",
        "tail=1&offset=now",
        "tail=1&tail=1",
        "ta=1",
        "tails=3",
        "tail=1&live=sse&count=1",
    ],
)
def test_wrong_starts_are_refused(query: str) -> None:
    async def check(client: Client) -> None:
        await numbers(client)
        for method in ("GET", "HEAD"):
            if method == "HEAD" and ("offset" in query or "live" in query):
                continue
            answer = await client.send(method, f"/v1/stream/a?{query}")
            assert answer.status == 400, query
        assert (await client.get("none", "tail=1")).status == 404

    run_with_app(check, settings_of("memory", Path()))


@with_app(long_poll_timeout_s=0.01)
async def test_a_long_poll_starts_there(client: Client) -> None:
    offsets = await numbers(client)
    read = await client.get("a", "tail=2&live=long-poll")
    assert (read.status, read.json()) == (200, [3, 4])
    assert read.headers["stream-start-offset"] == offsets[3]
    assert read.headers["cache-control"] == "no-cache"
    later = await client.get("a", f"at={BEGAN_MS + 60_000}&live=long-poll")
    assert (later.status, later.offset) == (204, offsets[5])
    assert later.headers["stream-start-offset"] == offsets[5]
    assert later.headers["cache-control"] == "no-store"


@with_app()
async def test_events_start_there_unless_a_browser_resumes(client: Client) -> None:
    offsets = await numbers(client)
    for last_id, expected in (("", [3, 4]), (offsets[1], [1, 2, 3, 4])):
        target = "/v1/stream/a?tail=2&live=sse"
        response = await client.respond("GET", target, last_event_id=last_id)
        start = dict(response.headers).get(b"stream-start-offset")
        assert start == (None if last_id else offsets[3].encode())
        assert isinstance(response.body, EventBody)
        sink = FakeSink(response)
        response.body.attach(sink)
        assert [json.loads(data) for data in sink.data] == [expected]


@with_app()
async def test_after_a_trim_the_earliest_message_is_the_first(client: Client) -> None:
    offsets = await numbers(client)
    await client.post("a/__ds/trim", json.dumps({"before": offsets[2]}).encode())
    for query in ("at=0", f"at={BEGAN_MS}", "tail=99"):
        read = await client.get("a", query)
        assert (read.json(), read.headers["stream-start-offset"]) == ([2, 3, 4], offsets[2])
    assert (await client.get("a", f"at={BEGAN_MS + 30_000}")).json() == [3, 4]


@with_app()
async def test_closed_and_forked_streams_have_them_as_others(client: Client) -> None:
    offsets = await numbers(client)
    await client.put(
        "b", content_type=JSON, stream_forked_from="/v1/stream/a", stream_fork_offset=offsets[3]
    )
    await client.post("b", b"[7,8]", content_type=JSON)
    assert (await client.get("b", "tail=3")).json() == [2, 7, 8]
    assert (await client.get("b", f"at={BEGAN_MS + 15_000}")).json() == [2, 7, 8]
    assert (await client.get("b", "tail=3")).headers["stream-start-offset"] == offsets[2]
    await client.post("a", stream_closed="true")
    read = await client.get("a", "tail=1")
    assert (read.json(), read.headers["stream-closed"]) == ([4], "true")
    await client.delete("a")
    assert (await client.get("a", "tail=1")).status == 410
    assert (await client.get("b", "tail=4")).json() == [1, 2, 7, 8]
