"""A scripted upstream on loopback: what it answers, and when, is decided by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple


class Received(NamedTuple):
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


class Upstream:
    """Answers each connection with `script`, and keeps what it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.left = asyncio.Event()  # the last client has closed its connection
        self.go_on = asyncio.Event()
        self.script: Callable[[asyncio.StreamWriter], Awaitable[None]] = self.answer

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        """Send two events, and wait between them until the test lets it go on."""
        writer.write(HEAD + event("one"))
        await self.go_on.wait()
        writer.write(event("two") + LAST)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        headers = dict(each.lower().split(": ", 1) for each in lines)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        raw = dict(each.split(": ", 1) for each in lines)
        self.requests.append(
            Received(line, {name.lower(): value for name, value in raw.items()}, body)
        )
        watching = asyncio.ensure_future(reader.read())
        watching.add_done_callback(lambda _: self.left.set())
        answering = asyncio.ensure_future(self.script(writer))
        try:
            await asyncio.wait((watching, answering), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        finally:
            answering.cancel()
            watching.cancel()
            writer.close()


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-request-id: req-7\r\nset-cookie: a=b\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return chunk(b"data: %b\n\n" % text.encode())


def whole(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    scripted = Upstream()
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        scripted.go_on.set()
        server.close()
