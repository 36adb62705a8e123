"""Bytes in, complete requests out: httptools plus the strictness and the limits it lacks.

Input goes to httptools in pieces that never reach beyond one head or one body, so that it is known
where each request begins. Knows HTTP/1.1 syntax; knows no sockets, no clock and no responses but
refusals.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools

from penstock.errors import BadRequest, HeadersTooLarge, PenstockError, UriTooLong
from penstock.http.guard import too_large
from penstock.http.message import Request, Response
from penstock.http.native.request_head import (
    SINGLE,
    NativeRequest,
    check_head,
    method_name,
    plain_head,
)
from penstock.http.sender import Sender

if TYPE_CHECKING:
    from penstock.config.settings import Settings

# httptools reports no positions, so input goes to it in slices: every count below is exact to
# within one slice.
SLICE_BYTES = 16 * 1024
# Chunk extensions and trailers, which are not used, may have this many bytes per body; each chunk
# may have in addition the few bytes of its size line and line ends.
CHUNK_EXTRA_BYTES_MAX = 8 * 1024
CHUNK_FRAME_BYTES = 16
# Small chunks are joined from time to time: millions of tiny objects cost far more than bytes.
CHUNKS_JOIN = 256
# Chunks that one call parses: each costs two callbacks, however small it is.
CHUNKS_PER_CALL = 1000
# The body of a refused request is read and dropped up to this size to keep the connection.
SKIP_BYTES_MAX = 64 * 1024

IDLE, HEAD, BODY = 0, 1, 2

_END = b"\r\n\r\n"
# httptools also accepts more than one space, and other protocols than HTTP.
_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/[0-9]\.[0-9]\r\n")
_LINE_ENDS = re.compile(rb"[\r\n]*")  # between two requests; httptools skips them as well


class Stopped(Exception):
    """Raised inside a parser callback to make the parser stop where it is."""


class ParserLimits:
    """The settings that a parser needs, looked up once per server."""

    __slots__ = (
        "body_bytes_max",
        "head_bytes_max",
        "header_bytes_max",
        "header_count_max",
        "line_bytes_max",
    )

    def __init__(self, settings: Settings) -> None:
        self.line_bytes_max = settings.request_line_bytes_max
        self.header_bytes_max = settings.header_bytes_max
        self.header_count_max = settings.header_count_max
        self.head_bytes_max = settings.request_line_bytes_max + settings.header_bytes_max
        self.body_bytes_max = settings.body_bytes_max


class RequestParser:
    """Parses one connection's input. Complete requests are appended to `ready`.

    `refuse` is called once per request when its head is complete. After an error, after a refusal
    with a body too large to skip, and after the last request of a connection, `finished` is set
    and further input is ignored.
    """

    __slots__ = (
        "_body_bytes",
        "_chunks",
        "_fault",
        "_frames",
        "_headers",
        "_limits",
        "_line",
        "_parser",
        "_pieces",
        "_raw_bytes",
        "_refuse",
        "_repeats",
        "_request",
        "_slice_bytes",
        "_starts",
        "_tail",
        "_upgrade",
        "_url",
        "begun",
        "chunked",
        "continue_due",
        "finished",
        "held_bytes",
        "last",
        "ready",
        "sender",
        "truncated",
    )

    def __init__(
        self, limits: ParserLimits, refuse: Callable[[Request], Response | None], sender: Sender
    ) -> None:
        self.ready: deque[NativeRequest] = deque()
        self.sender = sender
        self.begun = 0
        self.held_bytes = 0  # of bodies being received or waiting in `ready`
        self.last: NativeRequest | None = None  # completed by the last `feed`
        self.finished = False
        self.truncated = False  # some input is unread: close with care
        self.continue_due = False
        self.chunked = False
        self._limits = limits
        self._refuse = refuse
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] | None = None  # while a head is being received
        self._request: NativeRequest | None = None  # while a body is being received
        self._repeats = 0
        self._chunks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._frames = 0
        self._raw_bytes = 0
        self._slice_bytes = 0
        self._starts = False  # the next piece is the first of a request
        self._line: bytes | None = None  # the part of a request line that has been received
        self._tail = b""  # the last bytes of the input before this
        self._upgrade: bytes | None = None
        self._fault: PenstockError | None = None

    @property
    def phase(self) -> int:
        """What is being received now: IDLE (nothing), HEAD or BODY."""
        if self._request is not None:
            return BODY
        return IDLE if self._headers is None else HEAD

    @property
    def is_idle(self) -> bool:
        """Between two requests, with none waiting: what comes next begins a new one."""
        return self._request is None and self._headers is None and not (self.ready or self.finished)

    def pop(self) -> NativeRequest:
        """Remove and return the next complete request."""
        request = self.ready.popleft()
        self.held_bytes -= len(request.body)
        return request

    def end_with(self, response: Response) -> None:
        """Drop what is half received; `response` is the last one on this connection."""
        self.finished = self.truncated = True
        self.held_bytes -= sum(map(len, self._chunks)) + sum(map(len, self._pieces))
        self._chunks, self._pieces = [], []
        # With what is there of the headers: they name the page that may read the response.
        headers = self._headers if self._request is None else self._request.headers
        last = NativeRequest("", b"", headers=headers, sender=self.sender)
        self._request = self._headers = None
        last.http_1_0 = last.keep_alive = False
        last.refusal = response
        self.ready.append(last)

    def release(self) -> None:
        """Break the reference cycle with the parser, so that both go at once."""
        self.finished = True
        self._parser = None

    def feed(self, data: bytes, ready_max: int) -> bytes:
        """Parse `data` until more than `ready_max` requests are ready, or there were many chunks;
        return the remaining bytes.

        Raises a PenstockError that says what is wrong with the input. It is the last response of
        the connection, which must then be closed.
        """
        self.last = None
        at, size, chunks = 0, len(data), 0
        while at < size and not self.finished:
            if len(self.ready) > ready_max or chunks > CHUNKS_PER_CALL:
                self._tail = data[max(at - 3, 0) : at]
                return data[at:]
            line, frames = None, self._frames
            if self._request is None and self._headers is None:
                line = _LINE.match(data, at)
                if line is None:
                    line_ends = _LINE_ENDS.match(data, at)
                    assert line_ends is not None  # it may be empty
                    at = line_ends.end()
                    if at == size:
                        break
                self._line = b"" if line is None else None
                self._starts = True
                self.begun += 1
            if line is None:
                end = self._piece_end(data, at)
            else:
                end = self._blank_line(data, at, line.end() - 2)
            self._feed(data if end - at == size else memoryview(data)[at:end])
            at = end
            chunks += max(self._frames - frames, 0)
        if at < size:
            self.truncated = True
        self._tail = data[-3:] if size >= 3 else (self._tail + data)[-3:]
        return b""

    def _piece_end(self, data: bytes, at: int) -> int:
        """Return where the next piece ends: at the latest with the head or the body that it is of,
        and for all but plain bodies after one slice."""
        request = self._request
        if request is None:
            if self._line is not None:
                self._check_line(data, at)
            return self._blank_line(data, at, at if self._starts else max(at - 3, 0))
        if not self.chunked:
            # Refused bodies are counted too, so there is always something that remains.
            length = int(request.headers[b"content-length"])
            return min(len(data), at + length - self._body_bytes)
        if at >= 4 and data.startswith(_END, at - 4):
            # No body ends without a chunk of size 0 and the empty line after it.
            last = data.find(b"\n0", at - 1, at + SLICE_BYTES)
            return self._blank_line(data, at, last if last >= 0 else at + SLICE_BYTES)
        return self._blank_line(data, at, max(at - 3, 0))

    def _blank_line(self, data: bytes, at: int, start: int) -> int:
        """Return the end of the first empty line after `start`, within one slice from `at`."""
        if at == 0 and not self._starts:
            index = (self._tail + data[:3]).find(_END)
            if index >= 0:
                return index + 4 - len(self._tail)
        limit = at + SLICE_BYTES
        index = data.find(_END, start, limit)
        return min(limit, len(data)) if index < 0 else index + 4

    def _check_line(self, data: bytes, at: int) -> None:
        """Check a request line that may come in several pieces, as soon as it is whole."""
        assert self._line is not None
        end = data.find(b"\n", at, at + SLICE_BYTES) + 1
        self._line += data[at : end or at + SLICE_BYTES]
        if not end:
            return
        if _LINE.fullmatch(self._line) is None:
            self._fail(BadRequest("The request line must be `METHOD /path HTTP/1.1`, exactly."))
        self._line = None

    def _feed(self, data: bytes | memoryview) -> None:
        self._slice_bytes = len(data)
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._parse_again()
                    if not data:
                        break
        except httptools.HttpParserCallbackError as error:
            if self._fault is not None:
                self._fail(self._fault)
            if not isinstance(error.__context__, Stopped):
                raise
            self.truncated = True
        except httptools.HttpParserError as error:
            self.truncated = True
            if not self.finished:  # else: bytes after the last request, which have no response
                self._fail(BadRequest(f"Not a well-formed HTTP/1.1 request: {error}."))
        if not self.finished and (self._headers is not None or self.chunked):
            self._count_raw()

    def _fail(self, error: PenstockError) -> None:
        self.finished = self.truncated = True
        raise error

    def _refuse_input(self, error: PenstockError) -> None:
        """Stop the parser from inside a callback; `_feed` raises `error` to the caller."""
        self._fault = error
        raise Stopped

    def _count_raw(self) -> None:
        """Bound what the parser holds and does not report: long headers, extensions, trailers."""
        self._raw_bytes += self._slice_bytes
        if self._headers is not None:
            if self._raw_bytes > self._limits.head_bytes_max:
                self._fail(self._headers_too_large())
        elif self._request is not None:
            framing = self._raw_bytes - self._body_bytes - self._frames * CHUNK_FRAME_BYTES
            if framing > CHUNK_EXTRA_BYTES_MAX:
                self._fail(BadRequest("Chunk extensions and trailers are too long; send none."))

    def _headers_too_large(self) -> PenstockError:
        limits = self._limits
        return HeadersTooLarge(
            f"A request may have at most {limits.header_count_max} headers (header_count_max) of "
            f"{limits.header_bytes_max} bytes in all (header_bytes_max). Send fewer of them."
        )

    def _parse_again(self) -> None:
        """Feed the head of a request for an upgrade to a new parser, as a plain request.

        The parser ends HTTP at an upgrade and would lose the body. Nothing is upgraded here, so
        the head is repeated without the headers that ask for it.
        """
        self._parser = httptools.HttpRequestParser(self)
        head, self._upgrade = self._upgrade, None
        if head is not None:
            self._starts = True
            self._parser.feed_data(head)

    # Callbacks of httptools, in the order in which they come

    def on_message_begin(self) -> None:
        if self.finished:
            raise Stopped
        if not self._starts:
            self._refuse_input(BadRequest("A request begins inside another."))
        self._starts = False
        self._headers = {}
        self._url = b""
        self._repeats = 0
        self._raw_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url
        if len(self._url) > self._limits.line_bytes_max:
            self._refuse_input(
                UriTooLong(
                    f"A request line may have at most {self._limits.line_bytes_max} bytes "
                    "(request_line_bytes_max). Send a shorter path or query."
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        if headers is None:
            return  # a trailer: it must not count as a header
        name = name.lower()
        value = value.rstrip(b" \t")
        if name in headers:
            if name in SINGLE:
                self._refuse_input(BadRequest(f"More than one {name.decode()} header; send one."))
            self._repeats += 1
            if self._repeats > self._limits.header_count_max:
                self._refuse_input(self._headers_too_large())
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        headers = self._headers
        assert headers is not None
        self._check_size(headers)
        parser = self._parser
        version = parser.get_http_version()
        raw_method = parser.get_method()
        method = method_name(raw_method)
        url = self._url
        try:
            check_head(method, url, version, headers)
        except BadRequest as error:
            self._refuse_input(error)
        self._headers = None
        self.chunked = b"transfer-encoding" in headers
        if parser.should_upgrade():
            if method == "CONNECT":
                # It is an upgrade without a header that asks for it, and would be one again.
                self._refuse_input(BadRequest("CONNECT asks for a proxy, which this is not."))
            self._upgrade = plain_head(raw_method, url, version, headers)
            return
        path, _, query = url.partition(b"?")
        request = NativeRequest(method, path, query, headers, b"", self.sender)
        request.http_1_0 = version == "1.0"
        request.keep_alive = parser.should_keep_alive()
        request.refusal = self._refuse(request)
        self._request = request
        self._body_bytes = self._frames = 0
        self._raw_bytes = -self._slice_bytes
        if request.refusal is not None or b"expect" in headers:
            self._before_body(request)

    def _check_size(self, headers: dict[bytes, bytes]) -> None:
        limits = self._limits
        count = len(headers) + self._repeats
        if count > limits.header_count_max:
            self._refuse_input(self._headers_too_large())
        # The sum is worth its cost only when the input so far is long enough to exceed it.
        if max(self._raw_bytes, 0) + self._slice_bytes > limits.header_bytes_max:
            size = sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * count
            if size > limits.header_bytes_max:
                self._refuse_input(self._headers_too_large())

    def _before_body(self, request: NativeRequest) -> None:
        """Decide on the body of a request: skip it, cut it off, or ask for it."""
        headers = request.headers
        length = int(headers.get(b"content-length", b"0"))
        if length == 0 and not self.chunked:
            return
        waits = headers.get(b"expect", b"").lower() == b"100-continue" and not request.http_1_0
        if request.refusal is None:
            self.continue_due = waits
        elif self.chunked or waits or length > SKIP_BYTES_MAX:
            request.keep_alive = False
            self._request = None
            self.finished = True
            self.ready.append(request)
            raise Stopped

    def on_chunk_header(self) -> None:
        self._frames += 1

    def on_body(self, body: bytes) -> None:
        self.continue_due = False  # the client did not wait for it
        self._body_bytes += len(body)
        request = self._request
        if request is None or request.refusal is not None:
            return
        if self._body_bytes > self._limits.body_bytes_max:
            self._refuse_input(too_large(self._limits.body_bytes_max))
        self.held_bytes += len(body)
        self._chunks.append(body)
        if len(self._chunks) >= CHUNKS_JOIN:
            self._pieces.append(b"".join(self._chunks))
            self._chunks.clear()

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return  # the head of an upgrade, parsed again in a moment
        self._request = None
        self.chunked = self.continue_due = False
        chunks = self._chunks
        if chunks or self._pieces:
            if self._pieces:
                chunks = [*self._pieces, *chunks]
                self._pieces = []
            request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
        if not request.keep_alive:
            self.finished = True
        self.last = request
        self.ready.append(request)
