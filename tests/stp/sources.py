"""A table of another server by a script: one answer after the other, the last one for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from tests.egress.scripted import Part, Scripted

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"


def rows(*lines: str, start: int = 1, time: str = "2026-01-08T00:00:00Z") -> bytes:
    """Rows with consecutive SeqNos of lines such as `+ key record`."""
    return b"".join(
        ("\t".join([str(start + number), time, *line.split(" ", 2)]) + "\n").encode()
        for number, line in enumerate(lines)
    )


def once(body: bytes = b"", *headers: str, status: int = 200, type: str = TYPE) -> bytes:
    """An answer as of a server that does not stream."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {type}", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


STREAM = f"HTTP/1.1 200 OK\r\nContent-Type: {TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Source(Scripted):
    def __init__(self, answers: Sequence[Sequence[Part]]) -> None:
        super().__init__((), holds=False)
        self.answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._parts = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await super().serve(reader, writer)

    @property
    def surl(self) -> str:
        return self.url("/table")

    @property
    def asked(self) -> list[int]:
        """The `since_id` of every request so far."""
        targets = [request.split(b" ")[1].decode() for request in self.requests]
        return [int(parse_qs(urlsplit(target).query)["since_id"][0]) for target in targets]


@asynccontextmanager
async def source(*answers: bytes | Sequence[Part]) -> AsyncIterator[Source]:
    script = Source([[each] if isinstance(each, bytes) else each for each in answers])
    script._server = await asyncio.start_server(script.accept, "127.0.0.1", 0)
    try:
        yield script
    finally:
        await script.aclose()
