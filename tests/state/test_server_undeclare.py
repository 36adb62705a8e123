"""Taking a declaration back: durable, whole, and whatever happens at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.log import open_engine
from tests.helpers.app import Answer, Client, with_app
from tests.state.test_server_schema import DOCUMENT, JSON, declare, event, post
from tests.state.test_server_state import state, types


async def undeclare(client: Client, path: str) -> Answer:
    return await client.send("DELETE", f"/v1/schema/{path}")


async def indexed(client: Client) -> list[Any]:
    """The paths that the index has rows of, once it has nothing left to do."""
    indexer = client.app.state.indexer
    while indexer._task is not None and not indexer._task.done():
        await indexer._task
    return [path for _, path in await indexer.ask(lambda index: index.streams())]


@with_app()
async def test_an_undeclared_stream_takes_anything_again_and_keeps_its_state(
    client: Client,
) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s")
    await post(client, "s", event("1", {"name": "Ann"}))
    assert await types(client, "s") == {"user": {"1": {"name": "Ann"}}}
    assert await indexed(client) == ["s"]
    gone = await undeclare(client, "s")
    assert (gone.status, gone.body) == (204, b"")
    assert (await client.send("GET", "/v1/schema/s")).json()["code"] == "schema-not-found"
    assert (await post(client, "s", event("2", 5), {"no": "event"})).status == 204
    assert await types(client, "s") == {"user": {"1": {"name": "Ann"}, "2": 5}}
    assert await indexed(client) == []


@with_app()
async def test_what_is_not_declared_cannot_be_undeclared(client: Client) -> None:
    missing = await undeclare(client, "s")
    assert (missing.status, missing.json()["code"]) == (404, "stream-not-found")
    await client.put("s", content_type=JSON)
    never = await undeclare(client, "s")
    assert (never.status, never.json()["code"]) == (404, "schema-not-found")
    await declare(client, "s")
    answers = await asyncio.gather(undeclare(client, "s"), undeclare(client, "s"))
    assert [answer.status for answer in answers] == [204, 404]


@with_app()
async def test_a_stream_declared_anew_begins_at_version_one_under_another_tag(
    client: Client,
) -> None:
    await client.put("s", content_type=JSON)
    first = await declare(client, "s")
    await post(client, "s", event("1", {"name": "Ann"}))
    await undeclare(client, "s")
    await post(client, "s", event("1", {"name": "Anna"}))
    again = await declare(client, "s", {**DOCUMENT, "mode": "warn"})
    assert (again.status, again.json()["version"]) == (201, 1)
    assert again.headers["etag"] != first.headers["etag"]
    assert await types(client, "s") == {"user": {"1": {"name": "Anna"}}}
    assert await indexed(client) == ["s"]


@with_app()
async def test_declaring_and_undeclaring_while_the_state_is_read_never_gives_a_wrong_answer(
    client: Client,
) -> None:
    await client.put("s", content_type=JSON)
    expected: dict[str, Any] = {}
    for number in range(20):
        await declare(client, "s")
        expected[f"{number:02}"] = {"name": str(number)}
        sent = post(client, "s", event(f"{number:02}", {"name": str(number)}))
        answers = await asyncio.gather(
            sent,
            state(client, "s"),
            undeclare(client, "s"),
            state(client, "s"),
            declare(client, "s"),
        )
        for answer in (answers[1], answers[3]):
            assert answer.status in (200, 503)
            if answer.status == 200:
                users = answer.json()["types"].get("user", {})
                assert users.items() <= expected.items()
        assert await types(client, "s") == {"user": expected}
        await undeclare(client, "s")
    assert await indexed(client) == []


Change = Callable[[], Awaitable[Any]]


def around_sweep(client: Client, before: Change, after: Change) -> None:
    """Do something before and after the next look for streams that are not declared any more."""
    indexer = client.app.state.indexer
    sweep = indexer._sweep

    async def swept() -> None:
        indexer._sweep = sweep  # type: ignore[method-assign]  # once
        await before()
        await sweep()
        await after()

    indexer._sweep = swept  # type: ignore[method-assign]


async def nothing() -> None:
    """Change nothing."""


def test_a_stream_is_undeclared_while_the_index_begins_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await client.put("s", content_type=JSON)
        await post(client, "s", event("1", {"name": "Ann"}))
        around_sweep(client, lambda: undeclare(client, "s"), nothing)
        await declare(client, "s")
        assert await indexed(client) == []

    check("memory", None)
    assert "the state index failed" not in caplog.text


def test_a_stream_is_declared_anew_while_its_rows_are_swept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @with_app()
    async def check(client: Client) -> None:
        for path in ("s", "other"):
            await client.put(path, content_type=JSON)
        await declare(client, "s")
        await post(client, "s", event("1", {"name": "Ann"}))
        assert await indexed(client) == ["s"]
        stream = client.engine.find("s", touch=False)
        # Somebody waits for the next event, so that the index keeps its place in the stream.
        waiting = asyncio.create_task(client.app.state.indexer.reach(stream, stream.tail + 1))
        await asyncio.sleep(0)
        await indexed(client)
        around_sweep(client, lambda: undeclare(client, "s"), lambda: declare(client, "s"))
        await declare(client, "other")
        await indexed(client)
        await post(client, "s", event("2", {"name": "Bob"}))
        await waiting
        users = {"1": {"name": "Ann"}, "2": {"name": "Bob"}}
        assert await types(client, "s") == {"user": users}

    check("memory", None)
    assert "the state index failed" not in caplog.text


def test_an_undeclaration_outlives_a_restart_and_so_does_its_absence_from_the_index(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path, disk_reserve_bytes=0, journal_file_bytes=1024 * 1024)

    async def run(*, first: bool) -> None:
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        client = Client(app, engine, None)  # type: ignore[arg-type]
        try:
            if first:
                await client.put("s", content_type=JSON)
                await declare(client, "s")
                await post(client, "s", event("1", {"name": "Ann"}))
                await types(client, "s")
                await engine.set_meta("s", "state", None)  # and the index is not told any more
            else:
                assert (await client.send("GET", "/v1/schema/s")).status == 404
                assert (await post(client, "s", event("2", 5))).status == 204
                assert await indexed(client) == []
        finally:
            app.close()
            await engine.stop()

    asyncio.run(run(first=True))
    asyncio.run(run(first=False))
