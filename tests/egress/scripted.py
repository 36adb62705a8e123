"""A server that answers with the bytes it is told to, piece by piece, and remembers the requests.

async with scripted(b"HTTP/1.1 200 OK\\r\\n...") as server:
    await egress.request("GET", server.url("/x"))
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

Part = bytes | asyncio.Event
"""Bytes to send, or an event to wait for before going on."""


class Scripted:
    def __init__(self, parts: Sequence[Part], *, holds: bool) -> None:
        self._parts = parts
        self._holds = holds
        self._server: asyncio.Server | None = None
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.names: list[str | None] = []
        self.closed = asyncio.Event()
        self.scheme = "http"

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def aclose(self) -> None:
        """Accept no more, and end what was accepted, also what has only just been."""
        assert self._server is not None
        self._server.close()
        for _ in range(10):
            for writer in self.writers:
                writer.transport.abort()
            await asyncio.sleep(0)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.serve(reader, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            self.requests.append(head + await reader.readexactly(length))
            for part in self._parts:
                if isinstance(part, asyncio.Event):
                    await part.wait()
                else:
                    writer.write(part)
                    await writer.drain()
            if self._holds:
                await reader.read()  # until the other side goes
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed.set()
            writer.transport.abort() if self._holds else writer.close()


@asynccontextmanager
async def scripted(
    *parts: Part, holds: bool = False, certificates: ssl.SSLContext | None = None
) -> AsyncIterator[Scripted]:
    """`holds` keeps the connection open after the last part."""
    script = Scripted(parts, holds=holds)
    if certificates is not None:
        script.scheme = "https"
        certificates.sni_callback = lambda _socket, name, _context: script.names.append(name)
    script._server = await asyncio.start_server(script.accept, "127.0.0.1", 0, ssl=certificates)
    try:
        yield script
    finally:
        await script.aclose()


def answer(body: bytes = b"", *headers: str, status: int = 200) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
