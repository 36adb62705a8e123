"""How the native server ends connections: draining, deadlines, limits on what it takes in."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.message import Later, Response
from tests.http.wire import Events, get, native, on_loop, post, until


@on_loop
async def test_drain_closes_idle_connections_and_finishes_busy_ones() -> None:
    async with native(shutdown_timeout_s=20.0) as server:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.app.routes[b"/x"] = lambda _: Later(future, lambda _: Response(200, [], b"done"))
        idle, busy = await server.connect(), await server.connect()
        assert (await idle.ask(get("/"))).status == 200
        await busy.send(get("/x"))
        await until(lambda: len(server.app.requests) == 2)
        stopping = asyncio.ensure_future(server.server.stop())
        assert await idle.rest() == b""
        assert server.app.drained
        assert not stopping.done()
        future.set_result(None)
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert await busy.rest() == b""
        await stopping


@on_loop
async def test_drain_ends_event_streams_with_their_last_frame() -> None:
    async with native(shutdown_timeout_s=20.0) as server:
        events = Events()
        server.app.routes[b"/e"] = lambda _: Response(200, [], events)
        client = await server.connect()
        await client.send(get("/e"))
        await events.attached.wait()
        stopping = asyncio.ensure_future(server.server.stop())
        assert (await client.answer()).chunks == [b"data: bye\n\n"]
        await stopping
        assert not server.table.count()


@on_loop
async def test_body_half_received_when_draining_begins_is_still_served() -> None:
    async with native(shutdown_timeout_s=20.0) as server:
        client = await server.connect()
        request = post("/append", b"0123456789")
        await client.send(request[:-5])
        await until(lambda: server.app.heads)
        stopping = asyncio.ensure_future(server.server.stop())
        await until(lambda: server.app.drained)
        await client.send(request[-5:])
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"/append|0123456789", "close")
        await stopping


@on_loop
async def test_stop_cuts_what_does_not_finish_in_time() -> None:
    async with native(shutdown_timeout_s=0.05) as server:
        server.app.routes[b"/x"] = lambda _: Later(
            asyncio.get_running_loop().create_future(), lambda _: Response(200)
        )
        client = await server.connect()
        await client.send(get("/x"))
        await until(lambda: server.app.requests)
        await server.server.stop()
        assert await client.rest() == b""


@on_loop
async def test_idle_connection_is_closed_after_the_keep_alive_time() -> None:
    async with native(keepalive_timeout_s=0.05) as server:
        client = await server.connect()
        assert (await client.ask(get("/"))).status == 200
        await client.send(b"\r\n\r\n")  # empty lines between requests are no request
        assert await client.rest() == b""
        await until(lambda: not server.table.connections)


@on_loop
async def test_waiting_for_an_answer_is_not_idling() -> None:
    async with native(keepalive_timeout_s=0.02, header_timeout_s=0.02) as server:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.app.routes[b"/x"] = lambda _: Later(future, lambda _: Response(200, [], b"late"))
        client = await server.connect()
        await client.send(get("/x"))
        await until(lambda: server.app.requests)
        idle = await server.connect()
        assert await idle.rest() == b""  # so the sweep has been here
        future.set_result(None)
        assert (await client.answer()).body == b"late"


@on_loop
async def test_connections_above_the_limit_are_told_so() -> None:
    async with native(connections_max=2, cors_origins=("*",)) as server:
        clients = [await server.connect() for _ in range(2)]
        for client in clients:
            assert (await client.ask(get("/"))).status == 200
        answer = await server.ask(get("/"))
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["access-control-allow-origin"] == "*"
        assert (await clients[0].ask(get("/"))).status == 200
        assert len(server.app.requests) == 3


# The receive budget


@on_loop
async def test_bodies_above_the_receive_budget_wait_and_then_get_503() -> None:
    async with native(receive_bytes_max=100_000, body_bytes_max=90_000) as server:
        first, second = await server.connect(), await server.connect()
        await first.send(post("/a", bytes(80_000))[:-10])
        await until(lambda: server.table._receive_bytes >= 79_990)
        await second.send(post("/b", bytes(80_000))[:-10])
        await until(lambda: server.table._waiting)
        answer = await second.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await first.ask(bytes(10))).status == 200
        await until(lambda: server.table._receive_bytes == 0)


@on_loop
async def test_waiting_body_goes_on_as_soon_as_there_is_room() -> None:
    async with native(receive_bytes_max=100_000, body_bytes_max=90_000) as server:
        first, second = await server.connect(), await server.connect()
        await first.send(post("/a", bytes(80_000))[:-10])
        await until(lambda: server.table._receive_bytes >= 79_990)
        await second.send(post("/b", bytes(80_000))[:-10])
        await until(lambda: server.table._waiting)
        assert (await first.ask(bytes(10))).status == 200
        assert (await second.ask(bytes(10))).status == 200
        assert server.table._receive_bytes == 0


@pytest.mark.parametrize("how", ["reset", "bad"])
@on_loop
async def test_budget_is_given_back_when_a_body_never_completes(how: str) -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        )
        await until(lambda: server.table._receive_bytes == 3)
        if how == "reset":
            client.reset()
        else:
            assert (await client.ask(b"no chunk\r\n")).status == 400
        await until(lambda: server.table._receive_bytes == 0)
