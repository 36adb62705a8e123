"""Many small reads over one connection, sent before earlier answers have arrived (pipelining): ten
thousand streams with one message each take a second, not half a minute.

Only success is handled here. Everything else is returned as None, and the caller repeats the read
with the client, which knows errors and retries.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httptools

from penstock import __version__
from penstock.client.answers import Answer

IN_FLIGHT_MAX: Final = 32
TIMEOUT_S: Final = 30.0
_RECEIVE_BYTES: Final = 256 * 1024


class Read:
    """One bounded read."""

    __slots__ = ("offset", "until", "url")

    def __init__(self, url: str, offset: str, until: str) -> None:
        self.url, self.offset, self.until = url, offset, until


def fetch(reads: Sequence[Read], token: str | None) -> Iterator[Answer | None]:
    """Yield the answers in the order of the reads, all to one server; None for a failed one."""
    answers = _pipelined(reads, token) if reads and not getproxies() else iter(())
    for _ in reads:
        yield next(answers, None)


def _pipelined(reads: Sequence[Read], token: str | None) -> Iterator[Answer | None]:
    try:
        with _connect(reads[0].url) as connection:
            yield from _exchange(connection, reads, token)
    except (OSError, httptools.HttpParserError):
        return


def _exchange(
    connection: socket.socket, reads: Sequence[Read], token: str | None
) -> Iterator[Answer | None]:
    incoming = _AnswerParser()
    sent = 0
    done = 0
    while done < len(reads):
        while sent < len(reads) and sent - done < IN_FLIGHT_MAX:
            upto = min(len(reads), done + IN_FLIGHT_MAX)
            connection.sendall(b"".join(_request(each, token) for each in reads[sent:upto]))
            sent = upto
        data = connection.recv(_RECEIVE_BYTES)
        if not data:
            return
        incoming.parser.feed_data(data)
        while incoming.answers:
            answer = incoming.answers.popleft()
            done += 1
            yield answer if answer.status == 200 else None
        if incoming.closing:
            return


class _AnswerParser:
    """Collects the callbacks of the parser into answers."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.closing = False
        self.parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_message_begin(self) -> None:
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.closing = self.closing or self._headers.get("connection", "").lower() == "close"

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.answers.append(Answer(status, self._headers, b"".join(self._body)))


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = socket.create_connection((host, port), TIMEOUT_S)
    if parts.scheme != "https":
        return connection
    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except OSError:
        connection.close()
        raise


def _request(read: Read, token: str | None) -> bytes:
    parts = urlsplit(read.url)
    query = f"offset={quote(read.offset)}&until={quote(read.until)}"
    lines = [
        f"GET {parts.path}?{query} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        f"User-Agent: penstock/{__version__}",
        "Accept-Encoding: identity",
    ]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
