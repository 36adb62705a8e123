"""Clients that ask and do not read cost little, and healthy ones do not notice them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from penstock.http.message import RangeBody, Response
from tests.http.wire import Events, get, native, on_loop, post, until

STALLED = 500
PIECE = bytes(128 * 1024)


class Large(RangeBody):
    """Two gigabytes, if anybody would take them."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 16 * 1024
        self.length = self.left * len(PIECE)

    async def pieces(self) -> AsyncIterator[bytes]:
        while self.left:
            self.left -= 1
            yield PIECE


def stalled_client(port: int, request: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    return client


@on_loop
async def test_healthy_clients_are_served_while_500_readers_stall() -> None:
    async with native() as server:
        server.app.routes[b"/large"] = lambda _: Response(200, [], Large())
        stalled = [stalled_client(server.port, get("/large")) for _ in range(STALLED)]
        try:
            await until(lambda: len(server.table._stalled) == STALLED)
            held = sum(-each.progress() for each in server.table._stalled)
            assert held <= STALLED * 2 * len(PIECE)
            client = await server.connect()
            for n in range(200):
                assert (await client.ask(post(f"/{n}", b"x"))).body == b"/%d|x" % n
        finally:
            for each in stalled:
                each.close()
        await until(lambda: not server.table._stalled)


@on_loop
async def test_stalled_readers_are_cut_and_healthy_ones_are_not() -> None:
    async with native(write_stall_timeout_s=0.05) as server:
        server.app.routes[b"/large"] = lambda _: Response(200, [], Large())
        stalled = [stalled_client(server.port, get("/large")) for _ in range(20)]
        healthy = await server.connect()
        try:
            await healthy.send(get("/large"))
            await healthy.head()
            await until(lambda: len(server.table._stalled) >= 20)
            while len(server.table.connections) > 1:
                assert await healthy.reader.read(65536)
            assert await healthy.reader.readexactly(1 << 20)
        finally:
            for each in stalled:
                each.close()


@on_loop
async def test_event_readers_that_stall_delay_nobody() -> None:
    async with native() as server:
        bodies: list[Events] = []

        def subscribe(_: object) -> Response:
            bodies.append(Events())
            return Response(200, [], bodies[-1])

        server.app.routes[b"/events"] = subscribe
        stalled = [stalled_client(server.port, get("/events")) for _ in range(100)]
        try:
            await until(lambda: len(bodies) == 100)
            healthy = await server.connect()
            await healthy.send(get("/events"))
            await until(lambda: len(bodies) == 101)
            await bodies[-1].attached.wait()
            await healthy.head()
            frame = b"data: " + b"x" * 65536 + b"\n\n"
            for _ in range(100):
                for body in bodies:
                    if not body.sink.congested:
                        body.sink.write(frame)
                assert await healthy.chunk() == frame
            assert sum(body.sink.congested for body in bodies) == 100
            assert all(body.sink.buffered < 4 * len(frame) for body in bodies)
        finally:
            for each in stalled:
                each.close()
        await asyncio.gather(*(body.detached.wait() for body in bodies[:100]))
