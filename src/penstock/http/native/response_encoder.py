"""Responses as bytes: status line, headers, Content-Length, chunked framing.

Pure encoding: no sockets, no flow control.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

from penstock.http.headers import header_block
from penstock.http.message import BODILESS, Headers, RangeBody, Response
from penstock.http.problems import unsafe_headers

# What the head says about the connection after this response.
KEEP = b""
CLOSE = b"connection: close\r\n"
KEEP_HTTP_1_0 = b"connection: keep-alive\r\n"

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class ResponseEncoder:
    """Encodes heads. Status line, Date and fixed headers are built once a second per status."""

    __slots__ = ("_fixed", "_prefixes", "_second", "_wall")

    def __init__(self, fixed: Headers, *, wall: Callable[[], float] = time.time) -> None:
        block = header_block(fixed)
        if block is None:
            raise ValueError("A fixed header contains a line break; check cors_origins.")
        self._fixed = block
        self._wall = wall
        self._second = -1
        self._prefixes: dict[int, bytes] = {}

    def whole(self, response: Response, connection: bytes, *, head_only: bool = False) -> bytes:
        """Return head and body in one piece, for a body that is bytes (or not sent, for HEAD)."""
        body = response.body
        status = response.status
        content = b""
        if isinstance(body, bytes):
            length = len(body)
            content = b"" if head_only else body
        else:
            length = body.length if isinstance(body, RangeBody) else 0
        block = response.block
        if block is None:
            block = response.block = header_block(response.headers)
        if block is None:
            return self.whole(unsafe_headers(), connection, head_only=head_only)
        # A HEAD that does not know how long its GET would be says nothing rather than 0.
        if status in BODILESS or (head_only and length == 0):
            return self._prefix(status) + block + connection + b"\r\n"
        return b"".join(
            [
                self._prefix(status),
                block,
                connection,
                b"content-length: %d\r\n\r\n" % length,
                content,
            ]
        )

    def head(self, response: Response, connection: bytes, framing: bytes) -> bytes | None:
        """Return a head alone; None if its headers are unsafe. `framing` is a line or empty."""
        block = header_block(response.headers)
        if block is None:
            return None
        return b"%b%b%b%b\r\n" % (self._prefix(response.status), block, connection, framing)

    def _prefix(self, status: int) -> bytes:
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._prefixes = {}
        prefix = self._prefixes.get(status)
        if prefix is None:
            reason = _REASONS.get(status, "Unknown")
            date = formatdate(second, usegmt=True)
            line = f"HTTP/1.1 {status} {reason}\r\ndate: {date}\r\n"
            prefix = self._prefixes[status] = line.encode("ascii") + self._fixed
        return prefix


_chunk_of: tuple[bytes, bytes] = (b"", b"")


def chunk(data: bytes) -> bytes:
    """Return `data` (not empty) as one chunk of a chunked body.

    A frame is written to thousands of readers one after the other; the last one encoded is cached
    by identity, so that all of them share one encoded object.
    """
    global _chunk_of
    last, encoded = _chunk_of
    if last is not data:
        encoded = b"%x\r\n%b\r\n" % (len(data), data)
        _chunk_of = (data, encoded)
    return encoded
