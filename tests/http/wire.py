"""A native server over real sockets with a small fake App, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

import uvloop

from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.http.message import Application, EventBody, Request, Response, Sink
from penstock.http.native.server import Server, listen
from penstock.http.native.tls import open_tls
from penstock.http.problems import problem

P = ParamSpec("P")
Handler = Callable[[Request], Response | Awaitable[Response]]


@dataclass(frozen=True)
class TlsFiles:
    """The certificate of a server, and the context of its clients."""

    cert: Path
    client: ssl.SSLContext


tls: TlsFiles | None = None
"""Set while tests run over TLS that know nothing of it."""
HANG_S = 30  # a test that waits longer than this waits for something that will not come


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on uvloop, then on asyncio's loop, which serves where uvloop is not."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def guarded() -> None:
            async with asyncio.timeout(HANG_S):
                await test(*args, **kwargs)

        for new_event_loop in (uvloop.new_event_loop, asyncio.new_event_loop):
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(guarded())

    return run


class FakeApp:
    """Answers each path with what the test put there; anything else with an echo."""

    def __init__(self) -> None:
        self.heads: list[Request] = []
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.refusals: dict[bytes, Response] = {}
        self.routes: dict[bytes, Handler] = {}
        self.drained = False

    def refuse(self, head: Request) -> Response | None:
        self.heads.append(head)
        return self.refusals.get(head.path)

    def unreadable(self, error: PenstockError) -> Response:
        return problem(error)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        self.requests.append(request)
        self.bodies.append(request.body)
        handler = self.routes.get(request.path, echo)
        return handler(request)

    def drain(self) -> None:
        self.drained = True


def echo(request: Request) -> Response:
    return Response(200, [(b"content-type", b"text/plain")], request.path + b"|" + request.body)


class Events(EventBody):
    """An EventBody that only records what happens to it."""

    __slots__ = ("attached", "detached", "room", "sink")

    def __init__(self) -> None:
        self.attached = asyncio.Event()
        self.detached = asyncio.Event()
        self.room = asyncio.Event()
        self.sink: Sink

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self.attached.set()

    def drained(self) -> None:
        self.room.set()

    def finish(self) -> None:
        self.sink.write(b"data: bye\n\n")
        self.sink.close()

    def detach(self) -> None:
        self.detached.set()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)


class Client:
    """Raw bytes out, parsed answers in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        return Answer(status, {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:-2])})

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, body: bool = True) -> Answer:
        answer = await self.head()
        if not body or answer.status in (100, 204, 304):
            return answer
        if answer.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                answer.chunks.append(chunk)
            answer.body = b"".join(answer.chunks)
        else:
            answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        return answer

    async def ask(self, data: bytes, *, body: bool = True) -> Answer:
        await self.send(data)
        return await self.answer(body=body)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection; a reset is an end too."""
        data = b""
        try:
            while piece := await self.reader.read(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data

    def reset(self) -> None:
        """Leave without a word: the server sees a reset connection."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


class Native:
    """A running server and the clients that a test has made."""

    def __init__(self, app: FakeApp, server: Server, port: int) -> None:
        self.app = app
        self.server = server
        self.port = port
        self.clients: list[Client] = []

    @property
    def table(self) -> Any:
        return self.server.table

    async def connect(self) -> Client:
        context = None if tls is None else tls.client
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        if tls is not None:  # asyncio's TLS has no half-close; the socket below it has
            writer.write_eof = functools.partial(_shut_down, writer)  # type: ignore[method-assign]
            await until(lambda: not self.table.opening)  # the client is done before the server
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Answer:
        return await (await self.connect()).ask(data)


@asynccontextmanager
async def native(app: Application | None = None, **settings: Any) -> AsyncIterator[Native]:
    fake = FakeApp() if app is None else app
    files = {} if tls is None else {"tls_cert": tls.cert}
    chosen = Settings(**{"shutdown_timeout_s": 0.1, **files, **settings})
    server = Server(fake, chosen, open_tls(chosen))
    sock = listen("127.0.0.1", 0)
    await server.start(sock)
    running = Native(fake, server, sock.getsockname()[1])  # type: ignore[arg-type]
    try:
        yield running
    finally:
        for client in running.clients:
            await client.close()
        await server.stop()
        sock.close()


def _shut_down(writer: asyncio.StreamWriter) -> None:
    """Close the client's side of the TCP connection when everything is sent."""

    def shut_down(turns: int = 3) -> None:
        if turns > 0 or writer.transport.get_write_buffer_size() > 0:
            loop.call_soon(shut_down, turns - 1)
        else:
            with socket.socket(fileno=os.dup(sock.fileno())) as copy:
                copy.shutdown(socket.SHUT_WR)

    loop, sock = asyncio.get_running_loop(), writer.get_extra_info("socket")
    shut_down()


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until `condition` holds."""
    while not condition():
        await asyncio.sleep(0)


def get(path: str = "/", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(path: str, *chunks: bytes, trailers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return head + b"".join(parts) + b"0\r\n" + trailers.encode() + b"\r\n"
