"""`__registry__`: what it says, that it is true after anything, and who writes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.backoff import Backoff
from penstock.errors import Overloaded
from penstock.http.streams import registry
from penstock.log.system_stream import SystemStream
from penstock.stp.server.registry import OWNER
from tests.helpers.app import Client, run_with_app, settings_of, with_app

JSON = "application/json"
TEXT = "text/plain"
REGISTRY = "__registry__"


async def events(client: Client) -> list[dict[str, Any]]:
    read = await client.get(REGISTRY)
    return read.json() if read.status == 200 else []


async def listed(client: Client) -> dict[str, dict[str, Any]]:
    """The entities that the events of the registry fold to."""
    entities: dict[str, dict[str, Any]] = {}
    for event in await events(client):
        assert event["type"] == "stream"
        if event["headers"]["operation"] == "delete":
            del entities[event["key"]]
        else:
            entities[event["key"]] = event["value"]
    return entities


async def until(client: Client, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
    """Wait until the registry says so."""
    for _ in range(10_000):
        if condition(await listed(client)):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(await listed(client))


def paths(*names: str) -> Callable[[dict[str, dict[str, Any]]], bool]:
    return lambda entities: set(entities) == {REGISTRY, *names}


@with_app(registry=True)
async def test_created_and_deleted_streams_are_events_of_the_shape_that_the_ui_reads(
    client: Client,
) -> None:
    await client.put("chat/a", b"hi", content_type=TEXT)
    await until(client, paths("chat/a"))
    await client.delete("chat/a")
    await until(client, paths())
    created_ms = client.clock.now_us() // 1000
    insert, delete = [event for event in await events(client) if event["key"] == "chat/a"]
    assert insert == {
        "type": "stream",
        "key": "chat/a",
        "value": {"path": "chat/a", "contentType": TEXT, "createdAt": created_ms},
        "headers": {"operation": "insert"},
    }
    assert delete == {"type": "stream", "key": "chat/a", "headers": {"operation": "delete"}}
    assert (await listed(client))[REGISTRY]["contentType"] == JSON
    assert (await client.head(REGISTRY)).headers["content-type"] == JSON


@with_app(registry=True)
async def test_forks_and_expiry_count_and_the_servers_own_streams_do_not(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    await client.put("b", stream_forked_from="/v1/stream/a")
    await client.put("short", content_type=JSON, stream_ttl="1")
    await until(client, paths("a", "b", "short"))
    client.clock.advance(2)
    await client.engine.reap()
    await until(client, paths("a", "b"))
    await client.delete("a")  # soft: it is there for its fork only
    await until(client, paths("b"))
    subscription = json.dumps({"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"})
    await client.put("wakes", content_type=JSON)
    answer = await client.send(
        "PUT", "/v1/stream/__ds/subscriptions/s", subscription.encode(), content_type=JSON
    )
    assert answer.status in (200, 201), answer
    await until(client, paths("b", "wakes"))


@with_app(registry=True)
async def test_a_recreated_stream_is_deleted_and_inserted(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    await until(client, paths("a"))
    client.clock.advance(1)
    # Both in one batch, so that the registry never sees the path without a stream.
    await asyncio.gather(client.delete("a"), client.put("a", content_type=JSON))
    await until(client, lambda entities: entities.get("a", {}).get("contentType") == JSON)
    operations = [
        event["headers"]["operation"] for event in await events(client) if event["key"] == "a"
    ]
    assert operations == ["insert", "delete", "insert"]


@with_app(registry=True)
async def test_only_the_server_writes_it(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await until(client, paths("a"))
    assert (await client.put(REGISTRY, content_type=JSON)).status == 200, "it is there"
    before = await listed(client)
    declaration = json.dumps({"types": {"stream": {}}}).encode()
    for method, target, body in (
        ("POST", f"/v1/stream/{REGISTRY}", b'{"type": "stream"}'),
        ("DELETE", f"/v1/stream/{REGISTRY}", b""),
        ("DELETE", "/v1/stream/__registr%79__", b""),
        ("POST", f"/v1/stream/{REGISTRY}/__ds/trim", b'{"before": "now"}'),
        ("PUT", f"/v1/stream/{REGISTRY}/__ds/retention", b'{"age": "1s"}'),
        ("POST", f"/v1/stream/{REGISTRY}/__ds/compact", b""),
        ("PUT", f"/v1/stream/{REGISTRY}/__ds/successor", b'{"location": "/v1/stream/a"}'),
        ("PUT", f"/v1/schema/{REGISTRY}", declaration),
        ("PUT", f"/v1/table/{REGISTRY}", b""),
        ("PUT", f"/v1/follow/{REGISTRY}?surl=https://example.com/t", b""),
    ):
        refused = await client.send(method, target, body, content_type=JSON)
        assert (refused.status, refused.json()["code"]) == (403, "mirror-read-only"), target
        assert "Only the server writes" in refused.json()["detail"]
    closed = await client.post(REGISTRY, b"", stream_closed="true")
    assert closed.status == 403
    assert await listed(client) == before


@with_app()
async def test_without_the_setting_it_is_a_name_like_any_other(client: Client) -> None:
    await client.put("a", content_type=JSON)
    assert (await client.head(REGISTRY)).status == 404
    assert (await client.put(REGISTRY, b"[1]", content_type=JSON)).status == 201
    assert (await client.post(REGISTRY, b"[2]", content_type=JSON)).status in (200, 204)
    assert (await client.delete(REGISTRY)).status == 204


# -- restarts and failures


def run(
    folder: Path, scenario: Callable[[Client], Awaitable[None]], *, registry: bool = True
) -> None:
    run_with_app(scenario, settings_of("disk", folder, registry=registry, registry_log_bytes=2000))


def test_a_start_makes_up_for_what_it_missed(tmp_path: Path) -> None:
    async def first(client: Client) -> None:
        for path in ("stays", "goes", "changes"):
            await client.put(path, content_type=JSON)
        await until(client, paths("stays", "goes", "changes"))

    async def without(client: Client) -> None:
        client.clock.advance(5)
        for path in ("goes", "changes"):
            await client.delete(path)
        for path in ("changes", "new"):
            await client.put(path, content_type=TEXT)
        await asyncio.sleep(0.01)

    async def again(client: Client) -> None:
        await until(client, paths("stays", "changes", "new"))
        assert (await listed(client))["changes"]["contentType"] == TEXT

    async def once_more(client: Client) -> None:
        await asyncio.sleep(0.05)
        count = len(await events(client))
        await client.put("last", content_type=JSON)
        await until(client, paths("stays", "changes", "new", "last"))
        assert len(await events(client)) == count + 1, "nothing is repeated"

    run(tmp_path, first)
    run(tmp_path, without, registry=False)
    run(tmp_path, again)
    run(tmp_path, once_more)


def test_a_registry_that_is_not_kept_any_more_can_be_deleted(tmp_path: Path) -> None:
    async def writes(client: Client) -> None:
        await until(client, paths())

    async def left_over(client: Client) -> None:
        stream = client.engine.find(REGISTRY, touch=False)
        while OWNER in stream.meta:
            await asyncio.sleep(0.001)
        assert (await client.delete(REGISTRY)).status == 204

    run(tmp_path, writes)
    run(tmp_path, left_over, registry=False)


def test_streams_that_were_there_before_the_setting_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PAGE", 3)
    monkeypatch.setattr(registry, "PATHS_PER_APPEND", 4)
    names = [f"s/{number}" for number in range(10)]

    async def before(client: Client) -> None:
        for name in names:
            await client.put(name, content_type=JSON)

    async def after(client: Client) -> None:
        await until(client, paths(*names))

    run(tmp_path, before, registry=False)
    run(tmp_path, after)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[1,2]", {"content_type": JSON}),
        (b'[{"type": "user", "key": 7}]', {"content_type": JSON}),
        (b"notes", {"content_type": TEXT}),
        (b"", {"content_type": TEXT}),
        (b"", {"content_type": JSON, "stream_closed": "true"}),
    ],
)
def test_a_stream_that_is_used_for_something_else_is_left_alone(
    body: bytes, headers: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(client: Client) -> None:
        assert (await client.put(REGISTRY, body, **headers)).status == 201

    async def after(client: Client) -> None:
        content = (await client.get(REGISTRY)).body
        while "in use for something else" not in caplog.text:
            await asyncio.sleep(0.001)
        await client.put("a", content_type=JSON)
        assert (await client.get(REGISTRY)).body == content
        assert (await client.delete(REGISTRY)).status == 204

    run(tmp_path, before, registry=False)
    run(tmp_path, after)


def test_a_registry_that_somebody_else_has_begun_is_continued(tmp_path: Path) -> None:
    """The Test UI creates the stream if it is not there; the reference server writes to it."""
    gone = {"path": "gone", "contentType": TEXT, "createdAt": 1}
    event = {"type": "stream", "key": "gone", "value": gone, "headers": {"operation": "insert"}}

    async def before(client: Client) -> None:
        await client.put(REGISTRY, json.dumps([event]).encode(), content_type=JSON)
        await client.put("a", content_type=JSON)

    async def after(client: Client) -> None:
        await until(client, paths("a"))

    run(tmp_path, before, registry=False)
    run(tmp_path, after)


def test_its_history_is_bounded(tmp_path: Path) -> None:
    async def churn(client: Client) -> None:
        await client.put("stays", content_type=JSON)
        for number in range(60):
            await client.put(f"s/{number}", content_type=JSON)
            await until(client, paths("stays", f"s/{number}"))
            await client.delete(f"s/{number}")
            await until(client, paths("stays"))
        stream = client.engine.find(REGISTRY, touch=False)
        assert stream.earliest > 0
        assert stream.tail - stream.earliest < 5000, "60 inserts and deletes take 15,000 bytes"
        assert (await client.get(REGISTRY, "offset=-1")).status == 200

    async def again(client: Client) -> None:
        await client.put("more", content_type=JSON)
        await until(client, paths("stays", "more"))

    run(tmp_path, churn)
    run(tmp_path, again)


@with_app(registry=True)
async def test_what_could_not_be_written_is_written_later(client: Client) -> None:
    await until(client, paths())
    write, failures = SystemStream.write, 0

    def refuse(self: SystemStream, events: list[Any], **options: Any) -> asyncio.Future[Any]:
        nonlocal failures
        failures += 1
        if failures > 2:
            return write(self, events, **options)
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_exception(Overloaded("too much at once"))
        return refused

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemStream, "write", refuse)
        patch.setattr(registry, "_backoff", Backoff(base_s=0.001, cap_s=0.001))
        await client.put("a", content_type=JSON)
        await until(client, paths("a"))
    assert failures == 3


@with_app(registry=True)
async def test_a_burst_is_listed_whole(client: Client) -> None:
    names = [f"s/{number}" for number in range(300)]
    await asyncio.gather(*[client.put(name, content_type=TEXT) for name in names])
    await asyncio.gather(*[client.delete(name) for name in names[::2]])
    await until(client, paths(*names[1::2]))
