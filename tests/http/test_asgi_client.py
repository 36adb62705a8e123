"""The in-process client: the whole client API on the ASGI application, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

import penstock
from penstock.client.aio.asgi import AsgiTransport
from penstock.errors import ClientClosed, NotAllowed, StoreLocked, StreamNotFound
from penstock.http.asgi.app import AsgiApp
from tests.http.test_asgi_example import running
from tests.http.wire import on_loop, until


@asynccontextmanager
async def app(**settings: object) -> AsyncIterator[AsgiApp]:
    streams = penstock.asgi(**{"memory": True, **settings})  # type: ignore[arg-type]
    async with streams.lifespan():
        yield streams


@on_loop
async def test_it_creates_appends_reads_and_raises_like_any_client() -> None:
    async with app() as streams, streams.client() as client:
        orders = client.stream("orders")
        await orders.create()
        await orders.append_many([{"n": 1}, {"n": 2}])
        assert await orders.read_json() == [{"n": 1}, {"n": 2}]
        assert [info.path async for info in client.list()] == ["orders"]
        with pytest.raises(StreamNotFound):
            await client.stream("nothing").read()


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
@on_loop
async def test_a_live_reader_gets_what_is_appended_later(mode: str) -> None:
    async with app(long_poll_timeout_s=1) as streams, streams.client() as client:
        stream = client.stream("s")
        await stream.create(body={"n": 0})
        got = []
        async with stream.follow(mode=mode) as batches:  # type: ignore[arg-type]
            async for batch in batches:
                got += batch.messages
                if len(got) < 3:
                    await stream.append({"n": len(got)})
                else:
                    await stream.close()
        assert got == [{"n": 0}, {"n": 1}, {"n": 2}]


class Scripted:
    """An application that sends pieces, and counts those that were taken."""

    def __init__(self, pieces: int, *, then: Exception | None = None) -> None:
        self.taken = 0
        self._pieces = pieces
        self._then = then

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(self._pieces):
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            self.taken += 1
        if self._then is not None:
            raise self._then
        await send({"type": "http.response.body", "body": b""})


async def get(app: Scripted, **timeouts: float) -> httpx2.Response:
    request = httpx2.Request(
        "GET", "http://localhost/", extensions={"timeout": {"read": 30.0, **timeouts}}
    )
    return await AsgiTransport(app).handle_async_request(request)


@on_loop
async def test_the_application_waits_while_the_client_does_not_read() -> None:
    app = Scripted(100)
    response = await get(app)
    pieces = response.aiter_raw()
    for read in range(1, 4):
        await anext(pieces)
        for _ in range(20):
            await asyncio.sleep(0)
        assert app.taken == read
    await response.aclose()
    for _ in range(20):
        await asyncio.sleep(0)
    assert app.taken <= 4


@on_loop
async def test_a_response_that_fails_within_its_body_is_no_whole_one() -> None:
    response = await get(Scripted(2, then=ValueError("broken")))
    with pytest.raises(httpx2.RemoteProtocolError) as raised:
        await response.aread()
    assert isinstance(raised.value.__cause__, ValueError)


@on_loop
async def test_an_application_that_says_nothing_ends_with_the_read_timeout() -> None:
    class Silent(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await receive()
            assert (await receive())["type"] == "http.disconnect"
            self.taken = 1

    app = Silent(0)
    with pytest.raises(httpx2.ReadTimeout):
        await get(app, read=0.01)
    await until(lambda: app.taken)


@on_loop
async def test_a_large_body_arrives_whole() -> None:
    data = bytes(range(256)) * 16384
    async with app() as streams, streams.client() as client:
        stream = client.stream("blob")
        await stream.create("application/octet-stream", body=data)
        assert await stream.read_bytes() == data


@on_loop
async def test_a_reader_that_is_cancelled_leaves_no_task_and_no_reader() -> None:
    async with app() as streams, streams.client() as client:
        stream = client.stream("s")
        await stream.create(body={"n": 0})
        before = asyncio.all_tasks()
        is_reading = asyncio.Event()

        async def read() -> None:
            async for _ in stream.follow(mode="sse"):
                is_reading.set()

        reading = asyncio.ensure_future(read())
        await is_reading.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: asyncio.all_tasks() == before)
        watched = streams.engine.find("s", touch=False)
        assert not watched.watchers


@on_loop
async def test_an_append_whose_caller_is_cancelled_is_still_stored() -> None:
    async with app() as streams, streams.client() as client:
        stream = client.stream("s", content_type="application/json")
        await stream.create()
        appending = asyncio.ensure_future(stream.append({"n": 1}))
        await asyncio.sleep(0)  # it has begun
        await until(lambda: appending.done() or streams.engine.find("s", touch=False).tail > 0)
        appending.cancel()
        await asyncio.wait((appending,))
        assert await stream.read_json() == [{"n": 1}]


@on_loop
async def test_the_producer_stores_everything_once_and_in_order() -> None:
    async with app() as streams, streams.client() as client:
        stream = client.stream("s")
        await stream.create()
        async with stream.producer("p", batch_items_max=7) as producer:
            for n in range(500):
                await producer.append(n)
        assert await stream.read_json() == list(range(500))


@on_loop
async def test_after_shutdown_requests_and_live_reads_end_with_a_clear_error() -> None:
    streams = penstock.asgi(memory=True)
    async with streams.client() as client:
        async with streams.lifespan():
            await client.stream("s").create(body={"n": 0})
            follow = client.stream("s").follow(mode="sse")
            await anext(follow)
            waiting = asyncio.ensure_future(anext(follow))
        with pytest.raises(ClientClosed, match="has shut down"):
            await waiting
        with pytest.raises(ClientClosed, match="has shut down"):
            await client.stream("s").read()


@on_loop
async def test_a_grant_is_what_a_client_may_do_and_authorize_is_not_asked() -> None:
    def authorize(request: penstock.AccessRequest) -> penstock.Grant | None:
        raise AssertionError("asked about a request of the application itself")

    async with app(authorize=authorize) as streams:
        async with streams.client() as client:
            await client.stream("lobby").create(body={"n": 1})
        grant = penstock.Grant(name="ann", allow=("read:lobby",))
        async with streams.client(grant) as ann:
            assert await ann.stream("lobby").read_json() == [{"n": 1}]
            with pytest.raises(NotAllowed):
                await ann.stream("lobby").append({"n": 2})


def test_a_client_on_another_event_loop_is_refused() -> None:
    async def main() -> None:
        async with app() as streams:

            async def elsewhere() -> None:
                async with streams.client() as client:
                    await client.stream("s").create()

            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())

    asyncio.run(main())


@on_loop
async def test_a_second_worker_on_the_folder_is_told_to_be_one(tmp_path: Path) -> None:
    async with app(memory=False, data_dir=str(tmp_path / "data")):
        second = penstock.asgi(data_dir=str(tmp_path / "data"))
        with pytest.raises(StoreLocked, match="one worker"):
            await second.startup()


@on_loop
async def test_fastapi_takes_the_lifespan_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    streams = penstock.asgi(data_dir=str(tmp_path / "data"))
    web = FastAPI(lifespan=streams.lifespan)
    web.mount("/streams", streams)
    async with running(web) as http:
        async with streams.client() as client:
            await client.stream("s").ensure(body={"n": 1})  # the test runs on two event loops
        assert (await http.get("/streams/v1/stream/s")).json() == [{"n": 1}]
    async with app(memory=False, data_dir=str(tmp_path / "data")) as again:
        assert await again.client().stream("s").read_json() == [{"n": 1}]
