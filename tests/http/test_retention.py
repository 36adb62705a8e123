"""Trim and retention over HTTP: what goes, what readers are told, and what nobody can take away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import StreamTrimmed
from penstock.http.message import RangeBody
from penstock.log.disk.store import DiskStore
from tests.helpers.app import Answer, Client, FakeSink, run_with_app, with_app

TEXT = "text/plain"
JSON = "application/json"


async def trim(client: Client, path: str, before: str) -> Answer:
    body = json.dumps({"before": before}).encode()
    return await client.send("POST", f"/v1/stream/{path}/__ds/trim", body)


async def keep(client: Client, path: str, **limits: Any) -> Answer:
    target = f"/v1/stream/{path}/__ds/retention"
    return await client.send("PUT", target, json.dumps(limits).encode())


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["code"]


@with_app()
async def test_what_is_trimmed_is_gone_and_offsets_stay(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    middle = (await client.post("a", b"2", content_type=JSON)).offset
    tail = (await client.post("a", b"3", content_type=JSON)).offset
    done = await trim(client, "a", middle)
    assert (done.status, done.json()) == (200, {"earliest": middle})
    assert (await client.get("a")).json() == [3]
    head = (await client.head("a")).headers
    assert head["stream-earliest-offset"] == middle
    assert head["stream-next-offset"] == tail
    assert (await client.get("a", f"offset={0:016d}_{0:016d}")).json() == [3]
    listed = (await client.send("GET", "/v1/streams")).json()["streams"][0]
    assert (listed["messages"], listed["bytes"], listed["offset"]) == (1, 3, tail)
    assert listed["trimmed"] == 2
    again = await trim(client, "a", middle)
    assert (again.status, again.json()) == (200, {"earliest": middle})


@with_app()
async def test_a_read_of_what_is_gone_says_where_to_go_on(client: Client) -> None:
    first = (await client.put("a", b"[1]", content_type=JSON)).offset
    tail = (await client.post("a", b"[2,3]", content_type=JSON)).offset
    await trim(client, "a", "now")
    await client.post("a", b"4", content_type=JSON)
    for query in ("", "&live=long-poll", "&live=sse", "&count=1", "&splits=2"):
        gone = await client.get("a", f"offset={first}{query}")
        assert code(gone) == (410, "stream-trimmed"), query
        assert gone.headers["stream-earliest-offset"] == gone.json()["earliest"] == tail
    assert (await client.get("a", f"offset={tail}")).json() == [4]


@with_app()
async def test_the_three_ways_to_be_gone_have_codes_of_their_own(client: Client) -> None:
    old = (await client.put("a", b"x", content_type=TEXT)).offset
    await client.delete("a")
    await client.put("a", b"y", content_type=TEXT)
    assert code(await client.get("a", f"offset={old}")) == (410, "stream-recreated")
    start = (await client.head("a")).headers["stream-earliest-offset"]
    await client.post("a", b"z", content_type=TEXT)
    await trim(client, "a", "now")
    assert start.endswith("_" + "0" * 16)
    one = f"{start[:17]}{1:016d}"
    assert code(await client.get("a", f"offset={one}")) == (410, "stream-trimmed")
    await client.put("b", stream_forked_from="/v1/stream/a")
    await client.delete("a")
    assert code(await client.get("a")) == (410, "stream-soft-deleted")


@with_app(long_poll_timeout_s=60)
async def test_live_readers_that_fall_behind_are_told(client: Client) -> None:
    await client.put("a", b"x" * 200_000, content_type=TEXT)
    sink = await client.sse("a", "now")
    behind = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse")
    slow = FakeSink(behind)
    slow.full_after = 1
    slow.body.attach(slow)
    await slow.until(lambda sink: sink.congested)
    await trim(client, "a", "now")
    await client.post("a", b"new", content_type=TEXT)
    await sink.until(lambda sink: sink.data == ["new"])
    assert not sink.closed, "a reader at the tail is not disturbed"
    slow.congested = False
    slow.body.drained()
    await slow.until(lambda sink: sink.closed)
    left = slow.controls[-1]["streamNextOffset"]
    assert code(await client.get("a", f"offset={left}&live=sse")) == (410, "stream-trimmed")


@with_app()
async def test_a_fork_keeps_what_its_source_trims(client: Client) -> None:
    await client.put("a", b"[1,2]", content_type=JSON)
    await client.put("b", b"[30]", stream_forked_from="/v1/stream/a")
    await trim(client, "a", "now")
    await client.put("c", b"[40]", stream_forked_from="/v1/stream/a")
    await checkpointed(client)
    assert (await client.get("a")).json() == []
    assert (await client.get("b")).json() == [1, 2, 30]
    assert (await client.get("c")).json() == [40]
    boundary = (await client.get("b", "count=1")).offset
    await trim(client, "b", boundary)
    assert (await client.get("b")).json() == [2, 30]
    assert (await client.head("b")).headers["stream-earliest-offset"] == boundary


@with_app()
async def test_what_a_trim_refuses(client: Client) -> None:
    tail = (await client.put("a", b"[1,2]", content_type=JSON)).offset
    inside = f"{tail[:17]}{1:016d}"
    for body, expected in [
        (b"", (400, "invalid-json")),
        (b"{}", (400, "invalid-json")),
        (b'{"before": 3}', (400, "invalid-json")),
        (b'{"before": "now", "hard": true}', (400, "invalid-json")),
        (b'{"before": "soon"}', (400, "invalid-offset")),
        (json.dumps({"before": inside}).encode(), (400, "offset-not-aligned")),
        (json.dumps({"before": tail[:-1] + "9"}).encode(), (400, "offset-beyond-tail")),
    ]:
        answer = await client.send("POST", "/v1/stream/a/__ds/trim", body)
        assert code(answer) == expected, body
    assert code(await trim(client, "none", "now")) == (404, "stream-not-found")
    assert (await client.send("GET", "/v1/stream/a/__ds/trim")).status == 405
    assert (await client.send("POST", "/v1/stream/a/__ds/prune")).status == 404
    assert (await client.put("a/__ds/x")).status == 404
    assert (await client.put("a/__ds")).status == 404
    assert (await client.get("a")).json() == [1, 2]


@with_app()
async def test_a_policy_keeps_the_last_bytes(client: Client) -> None:
    await client.put("a", content_type=JSON)
    for n in range(10):
        await client.post("a", json.dumps(n).encode(), content_type=JSON)
    answer = await keep(client, "a", bytes=10)
    assert answer.status == 200
    assert await client.engine.retention.enforce() == 1
    assert (await client.get("a")).json() == [6, 7, 8, 9], "at least ten bytes are kept"
    assert await client.engine.retention.enforce() == 0


@with_app()
async def test_a_policy_drops_what_is_old(client: Client) -> None:
    """As well as the index can tell: up to the last block that begins with something old."""
    await client.put("a", b"x" * 20_000, content_type=TEXT)
    for letter in (b"y", b"z"):
        client.clock.advance(50)
        await client.post("a", letter * 20_000, content_type=TEXT)
    await keep(client, "a", age=100)
    assert await client.engine.retention.enforce() == 0
    client.clock.advance(51)
    assert await client.engine.retention.enforce() == 1
    assert (await client.get("a")).body == b"y" * 20_000 + b"z" * 20_000
    client.clock.advance(50)
    assert await client.engine.retention.enforce() == 1
    assert (await client.get("a")).body == b"", "nothing was appended for longer than that"
    await client.post("a", b"z", content_type=TEXT)
    assert await client.engine.retention.enforce() == 0
    assert (await client.get("a")).body == b"z"


@with_app(retention="logs/=10B logs/audit/=1000B")
async def test_paths_have_defaults_and_streams_their_own_word(client: Client) -> None:
    for path in ("logs/web", "logs/audit/web", "logs/own", "other"):
        await client.put(path, b"x" * 100, content_type=TEXT)
    await keep(client, "logs/own")
    assert await client.engine.retention.enforce() == 1
    sizes = {
        each["path"]: each["bytes"]
        for each in (await client.send("GET", "/v1/streams")).json()["streams"]
    }
    assert sizes == {"logs/web": 10, "logs/audit/web": 100, "logs/own": 100, "other": 100}
    policy = await client.send("GET", "/v1/stream/logs/web/__ds/retention")
    assert policy.json()["bytes"] == 10
    assert policy.json()["own"] is False
    gone = await client.send("DELETE", "/v1/stream/logs/own/__ds/retention")
    assert gone.status == 204
    assert await client.engine.retention.enforce() == 1


@pytest.mark.parametrize("limits", [{"age": 0}, {"bytes": -1}, {"age": "1d"}, {"size": 3}])
def test_bad_policies_are_refused(limits: dict[str, Any]) -> None:
    async def check(client: Client) -> None:
        await client.put("a")
        assert code(await keep(client, "a", **limits)) == (400, "invalid-json")

    run_with_app(check, Settings(memory=True))


@with_app(segment_bytes_max=100_000)
async def test_a_body_whose_bytes_go_while_it_is_sent_is_not_made_whole(client: Client) -> None:
    await client.put("a", b"x" * 1_000_000, content_type=TEXT)
    await checkpointed(client)
    response = await client.respond("GET", "/v1/stream/a")
    assert isinstance(response.body, RangeBody)
    assert response.body.first()
    await trim(client, "a", "now")
    await client.post("a", b"y", content_type=TEXT)
    await checkpointed(client)
    with pytest.raises(StreamTrimmed):
        async for _ in response.body.pieces():
            pass


async def checkpointed(client: Client) -> None:
    if isinstance(client.engine.store, DiskStore):
        assert await client.engine.store.checkpoint()
