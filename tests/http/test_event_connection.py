"""Live event streams over the native transport: framing, back-pressure, every way to end."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.message import Response, Sink
from penstock.http.native.sse_connection import EventConnection
from tests.http.wire import Client, Events, Native, get, native, on_loop, until

SSE = [(b"content-type", b"text/event-stream")]


async def subscribe(server: Native, version: str = "1.1") -> tuple[Client, Events]:
    events = Events()
    server.app.routes[b"/events"] = lambda _: Response(200, SSE, events)
    client = await server.connect()
    await client.send(get("/events", version=version))
    await events.attached.wait()
    return client, events


@on_loop
async def test_each_write_is_one_chunk_and_close_is_the_last() -> None:
    async with native() as server:
        client, events = await subscribe(server)
        events.sink.write(b"data: 1\n\n")
        events.sink.write(b"")  # must not end the response
        events.sink.write(b"data: 2\n\n")
        events.sink.close()
        events.sink.write(b"data: too late\n\n")
        answer = await client.answer()
        assert answer.chunks == [b"data: 1\n\n", b"data: 2\n\n"]
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "content-length" not in answer.headers
        assert await client.rest() == b""
        await until(lambda: not server.table.events)
        assert not events.detached.is_set()


@on_loop
async def test_http_1_0_gets_plain_bytes_until_the_end() -> None:
    async with native() as server:
        client, events = await subscribe(server, version="1.0")
        events.sink.write(b"data: 1\n\n")
        events.sink.close()
        answer = await client.head()
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b"data: 1\n\n"


@on_loop
async def test_one_encoded_frame_serves_all_readers() -> None:
    async with native() as server:
        readers = [await subscribe(server) for _ in range(50)]
        frame = b"data: shared\n\n"
        for _, events in readers:
            events.sink.write(frame)
        for client, _ in readers:
            await client.head()
            assert await client.chunk() == frame


@on_loop
async def test_reader_keeps_no_parser_request_or_connection() -> None:
    async with native() as server:
        _, events = await subscribe(server)
        sink: Sink = events.sink
        assert isinstance(sink, EventConnection)
        assert not server.table.connections
        assert server.table.events == {sink}
        assert not hasattr(sink, "__dict__")


@pytest.mark.parametrize("how", ["close", "reset"])
@on_loop
async def test_body_is_detached_when_its_reader_leaves(how: str) -> None:
    async with native() as server:
        client, events = await subscribe(server)
        client.reset() if how == "reset" else await client.close()
        await events.detached.wait()
        events.sink.write(b"data: nobody\n\n")
        assert not server.table.events


@on_loop
async def test_what_a_reader_sends_is_ignored() -> None:
    async with native() as server:
        client, events = await subscribe(server)
        await client.send(get("/more") * 1000 + b"\0\xff")
        events.sink.write(b"data: 1\n\n")
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        assert len(server.app.requests) == 1


@on_loop
async def test_slow_reader_is_congested_until_it_catches_up() -> None:
    async with native() as server:
        client, events = await subscribe(server)
        frame = b"data: " + b"x" * 65536 + b"\n\n"
        written = 0
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not events.sink.congested:
            events.sink.write(frame)
            written += 1
            await asyncio.sleep(0)
        assert events.sink.buffered > 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.head()
        for _ in range(written):
            assert await client.chunk() == frame
        await events.room.wait()
        await until(lambda: not events.sink.congested and not server.table._stalled)


@pytest.mark.parametrize("ending", ["stays", "closes"])
@on_loop
async def test_reader_that_takes_nothing_is_cut_off(ending: str) -> None:
    async with native(write_stall_timeout_s=0.05) as server:
        client, events = await subscribe(server)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not events.sink.congested:
            events.sink.write(bytes(65536))
            await asyncio.sleep(0)
        if ending == "closes":
            events.sink.close()
        await until(lambda: not server.table.events)
        assert events.detached.is_set() is (ending == "stays")


@on_loop
async def test_abort_cuts_the_response_short() -> None:
    async with native() as server:
        client, events = await subscribe(server)
        events.sink.abort()
        assert b"0\r\n\r\n" not in await client.rest()
        await until(lambda: not server.table.events)
        assert not events.detached.is_set()


@on_loop
async def test_body_that_fails_to_start_cuts_the_connection() -> None:
    class Broken(Events):
        __slots__ = ()

        def attach(self, sink: Sink) -> None:
            raise ZeroDivisionError

    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, SSE, Broken())
        client = await server.connect()
        await client.send(get("/x"))
        await client.rest()
        assert (await server.ask(get("/y"))).status == 200
