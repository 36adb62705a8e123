"""The FastAPI example under a real uvicorn: the same App behind the other transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

import penstock
from penstock.http.asgi.app import AsgiApp
from tests.http.wire import Client, chunked, get, on_loop, post, until

JSON = {"content-type": "application/json"}


class Quiet(uvicorn.Server):
    """Signals belong to the test run, not to a server inside it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running(app: object, *, lifespan: str = "auto") -> AsyncIterator[httpx.AsyncClient]:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan=lifespan,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
    )
    server = Quiet(config)
    serving = asyncio.ensure_future(server.serve())
    await until(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def example() -> AsyncIterator[httpx.AsyncClient]:
    from examples.fastapi_app import app

    async with running(app) as client:
        yield client


async def raw(client: httpx.AsyncClient) -> Client:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    return Client(reader, writer)


@on_loop
async def test_example_creates_appends_and_reads_under_its_prefix() -> None:
    async with example() as client:
        assert (await client.get("/")).json() == {"streams": "/streams/v1/stream/"}
        url = "/streams/v1/stream/hello/world"
        created = await client.put(url, headers=JSON)
        assert created.status_code == 201
        assert created.headers["location"] == f"{client.base_url}{url}"
        assert (await client.post(url, headers=JSON, content=b'{"n":1}')).status_code == 204
        read = await client.get(url)
        assert read.json() == [{"n": 1}]
        assert read.headers["stream-up-to-date"] == "true"
        for answer in (created, read, await client.get("/streams/nowhere")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers
        assert (await client.get("/streams/nowhere")).json()["code"] == "route-not-found"
        head = await client.head(url)
        assert (head.status_code, head.content) == (200, b"")


@on_loop
async def test_example_tells_escaped_and_plain_slashes_apart() -> None:
    async with example() as client:
        plain, escaped = "/streams/v1/stream/x/y", "/streams/v1/stream/x%2Fy"
        assert (await client.put(plain, headers=JSON)).status_code == 201
        assert (await client.get(escaped)).status_code == 404
        assert (await client.put(escaped, headers=JSON)).status_code == 201


@on_loop
async def test_example_streams_events_and_notices_when_the_reader_leaves() -> None:
    from examples.fastapi_app import streams

    async with example() as client:
        url = "/streams/v1/stream/events"
        await client.put(url, headers=JSON)
        async with client.stream("GET", url, params={"offset": "-1", "live": "sse"}) as response:
            lines = response.aiter_lines()
            assert response.headers["content-type"] == "text/event-stream"
            await client.post(url, headers=JSON, content=b'{"n":2}')
            seen = ""
            while '{"n":2}' not in seen:
                seen = await anext(lines)
            assert streams._app is not None
            traffic = streams._app.traffic
            assert traffic.sse_readers == 1
        await until(lambda: traffic.sse_readers == 0)


@on_loop
async def test_long_poll_ends_when_its_client_leaves() -> None:
    from examples.fastapi_app import streams

    async with example() as client:
        url = "/streams/v1/stream/poll"
        await client.put(url, headers=JSON)
        connection = await raw(client)
        await connection.send(get(url + "?offset=now&live=long-poll"))
        assert streams._app is not None
        traffic = streams._app.traffic
        await until(lambda: traffic.long_polls == 1)
        await connection.close()
        await until(lambda: traffic.long_polls == 0)


@pytest.mark.parametrize("announced", [True, False])
@on_loop
async def test_body_limit_holds_for_announced_and_for_chunked_bodies(announced: bool) -> None:
    async with running(penstock.asgi(memory=True, body_bytes_max="1KiB")) as client:
        await client.put("/v1/stream/a", headers=JSON)
        body = json.dumps("x" * 2000).encode()
        connection = await raw(client)
        request = post("/v1/stream/a", body) if announced else chunked("/v1/stream/a", body)
        await connection.send(request)
        assert (await connection.answer()).status == 413
        await connection.close()


TOKEN = "Authorization: Bearer secret\r\n"


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("mounted", [False, True])
@on_loop
async def test_a_trailer_does_not_count_as_a_header(mounted: bool, pause: bool) -> None:
    streams = penstock.asgi(memory=True, auth_token="secret")
    outer = FastAPI()
    outer.mount("/x", streams)
    prefix = "/x" if mounted else ""
    async with running(outer if mounted else streams) as client:
        url = f"{prefix}/v1/stream/a"
        headers = {"authorization": "Bearer secret", **JSON}
        assert (await client.put(url, headers=headers)).status_code == 201
        attempt = chunked(url, b"1", trailers=TOKEN)
        connection = await raw(client)
        # Either the App has the request before the trailers arrive, or all is there at once.
        await connection.send(attempt[: attempt.index(b"\r\n\r\n") + 4] if pause else attempt)
        assert (await connection.answer()).status == 401
        await connection.close()
        closing = chunked(url, b"[1]", trailers="Stream-Closed: true\r\n")
        own = b"Host: localhost\r\n" + TOKEN.encode() + b"Content-Type: application/json\r\n"
        connection = await raw(client)
        await connection.send(closing.replace(b"Host: localhost\r\n", own))
        answer = await connection.answer()
        assert (answer.status, "stream-closed" in answer.headers) == (204, False)
        await connection.close()


@on_loop
async def test_body_that_does_not_come_gets_408() -> None:
    async with running(penstock.asgi(memory=True, body_timeout_s=0.05)) as client:
        connection = await raw(client)
        await connection.send(post("/v1/stream/a", b"12345")[:-2])
        assert (await connection.answer()).status == 408
        await connection.close()


@on_loop
async def test_mounted_app_without_lifespan_starts_at_its_first_request() -> None:
    streams = penstock.asgi(memory=True)
    outer = FastAPI()
    outer.mount("/deep/er", streams)
    async with running(outer) as client:
        assert (await client.put("/deep/er/v1/stream/a", headers=JSON)).status_code == 201
        assert (await client.get("/deep/er/v1/stream/a")).json() == []
        await streams.shutdown()
        late = await client.get("/deep/er/v1/stream/a")
        assert (late.status_code, late.json()["code"]) == (503, "shutting-down")


@on_loop
async def test_lifespan_starts_and_stops_the_engine() -> None:
    app = penstock.asgi(memory=True)
    assert isinstance(app, AsgiApp)
    async with running(app, lifespan="on") as client:
        assert app._app is not None
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.options("/v1/stream/a")).status_code == 204
    assert app._app is None
