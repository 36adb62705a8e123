"""A stream as a resource: PUT creates, POST appends and closes, HEAD describes, DELETE removes.

Parses headers and renders answers; every decision is the engine's. `append` is the hot path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.errors import (
    BadRequest,
    ConflictingExpiry,
    EmptyBody,
    InvalidForkOffset,
    InvalidOffset,
    MissingContentType,
)
from penstock.http.message import Headers, Later, Request, Response
from penstock.http.router import parse_source
from penstock.log.requests import Append, Appended, Created, Fork
from penstock.log.stream import SUCCESSOR
from penstock.protocol.headers import (
    Producer,
    format_expires_at,
    normalize_content_type,
    parse_closed,
    parse_expires_at,
    parse_producer,
    parse_stream_seq,
    parse_sub_offset,
    parse_ttl,
)
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from penstock.protocol.offsets import Offset, parse_offset

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

DEFAULT_CONTENT_TYPE = "application/octet-stream"
CLOSED = (b"stream-closed", b"true")
NO_STORE = (b"cache-control", b"no-store")

_FORK_HEADERS = (b"stream-forked-from", b"stream-fork-offset", b"stream-fork-sub-offset")


class Streams:
    __slots__ = ("_engine", "_posts", "_settings", "_traffic")

    def __init__(self, engine: Engine, settings: Settings, traffic: Traffic) -> None:
        self._engine = engine
        self._settings = settings
        self._traffic = traffic
        self._posts = traffic.requests["POST"]

    def create(self, path: str, request: Request) -> Later:
        headers = request.headers
        ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
        if ttl is not None and expires_at is not None:
            raise ConflictingExpiry("Send either Stream-TTL or Stream-Expires-At, not both.")
        raw_type = headers.get(b"content-type")
        wanted = ForkConfig(
            None if raw_type is None else normalize_content_type(raw_type.decode("latin-1")),
            None if ttl is None else parse_ttl(ttl.decode("latin-1")),
            None if expires_at is None else parse_expires_at(expires_at.decode("latin-1")),
        )
        closed = parse_closed(_text(headers, b"stream-closed"))
        fork = self._fork(headers)
        if fork is None:
            content_type = wanted.content_type or DEFAULT_CONTENT_TYPE
            config = StreamConfig(content_type, wanted.ttl_s, wanted.expires_at_us)
            future = self._engine.create(path, config, request.body, closed=closed)
        else:
            future = self._engine.fork(path, fork, wanted, request.body, closed=closed)
        location = _location(request)
        return Later(future, lambda done: self._created(done, location))

    def append(self, path: str, request: Request) -> Later:
        headers = request.headers
        body = request.body
        raw_closed = headers.get(b"stream-closed")
        close = raw_closed is not None and parse_closed(raw_closed.decode("latin-1"))
        content_type = None
        if body:
            raw_type = headers.get(b"content-type")
            if raw_type is None:
                raise MissingContentType("Send the stream's Content-Type with every append.")
            content_type = normalize_content_type(raw_type.decode("latin-1"))
        elif not close:
            raise EmptyBody(
                "An append needs a body; an empty POST is valid only with Stream-Closed: true."
            )
        producer = None
        if b"producer-id" in headers or b"producer-epoch" in headers or b"producer-seq" in headers:
            producer = self._producer(headers)
        raw_seq = headers.get(b"stream-seq")
        raw_match = headers.get(b"if-match")
        future = self._engine.append(
            path,
            Append(
                body,
                content_type,
                close,
                producer,
                None if raw_seq is None else self._stream_seq(raw_seq),
                None if raw_match is None else _expected(raw_match),
            ),
        )
        return Later(future, self._appended if body else self._closed)

    def head(self, path: str, request: Request) -> Response:
        stream = self._engine.find(path, touch=False)
        config = stream.config
        headers: Headers = [
            (b"content-type", config.content_type.encode("latin-1")),
            (b"stream-next-offset", self._engine.token(stream, stream.tail).encode()),
            (b"stream-earliest-offset", self._engine.earliest(stream).offset.encode()),
            NO_STORE,
        ]
        if config.ttl_s is not None:
            headers.append((b"stream-ttl", b"%d" % config.ttl_s))
        if config.expires_at_us is not None:
            headers.append((b"stream-expires-at", format_expires_at(config.expires_at_us).encode()))
        if stream.closed:
            headers.extend(closed(stream))
        return Response(200, headers)

    def delete(self, path: str, request: Request) -> Later:
        return Later(self._engine.delete(path), self._deleted)

    def _created(self, future: asyncio.Future[Created], location: bytes) -> Response:
        try:
            created = future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the answer
            return self._traffic.failure("PUT", future)
        headers: Headers = [
            (b"content-type", created.content_type.encode("latin-1")),
            (b"stream-next-offset", created.offset.encode()),
        ]
        if created.closed:
            headers.append(CLOSED)
        if created.created:
            headers.append((b"location", location))
        return self._traffic.count("PUT", Response(201 if created.created else 200, headers))

    def _appended(self, future: asyncio.Future[Appended]) -> Response:
        try:
            done = future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the answer
            return self._traffic.failure("POST", future)
        self._posts[2] += 1
        response = _accepted(done)
        # New data from a producer is told apart from a repetition of it by 200 against 204.
        if done.producer is not None and not done.duplicate:
            response.status = 200
        return response

    def _closed(self, future: asyncio.Future[Appended]) -> Response:
        try:
            done = future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the answer
            return self._traffic.failure("POST", future)
        self._posts[2] += 1
        return _accepted(done)

    def _deleted(self, future: asyncio.Future[None]) -> Response:
        try:
            future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the answer
            return self._traffic.failure("DELETE", future)
        return self._traffic.count("DELETE", Response(204))

    def _fork(self, headers: dict[bytes, bytes]) -> Fork | None:
        """What the fork headers ask for; None if there are none."""
        source, offset, sub_offset = (_text(headers, name) for name in _FORK_HEADERS)
        if source is None:
            if offset is not None or sub_offset is not None:
                raise InvalidForkOffset(
                    "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From."
                )
            return None
        return Fork(
            parse_source(source, bytes_max=self._settings.path_bytes_max),
            offset,
            0 if sub_offset is None else parse_sub_offset(sub_offset),
        )

    def _producer(self, headers: dict[bytes, bytes]) -> Producer | None:
        return parse_producer(
            _text(headers, b"producer-id"),
            _text(headers, b"producer-epoch"),
            _text(headers, b"producer-seq"),
            id_bytes_max=self._settings.producer_id_bytes_max,
        )

    def _stream_seq(self, raw: bytes) -> str:
        bytes_max = self._settings.stream_seq_bytes_max
        return parse_stream_seq(raw.decode("latin-1"), bytes_max=bytes_max)


def closed(stream: Stream) -> Headers:
    """What is said of a closed stream: that it is, and where it goes on if that is known."""
    successor = stream.meta.get(SUCCESSOR)
    return [CLOSED] if successor is None else [CLOSED, (b"stream-successor", successor)]


def _accepted(done: Appended) -> Response:
    headers: Headers = [(b"stream-next-offset", done.offset.encode())]
    if done.closed:
        headers.append(CLOSED)
    state = done.producer
    if state is not None:
        headers.append((b"producer-epoch", b"%d" % state.epoch))
        headers.append((b"producer-seq", b"%d" % state.seq))
    return Response(204, headers)


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _expected(raw: bytes) -> str | None:
    """The tail offset that If-Match names. `*` only asks that the stream exists."""
    text = raw.decode("latin-1").strip()
    if text == "*":
        return None
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    try:
        offset = parse_offset(text)
    except BadRequest as error:
        raise InvalidOffset(
            f"If-Match takes one Stream-Next-Offset value. {error.detail}"
        ) from None
    if not isinstance(offset, Offset):
        raise InvalidOffset("If-Match takes a Stream-Next-Offset value, not -1 or now.")
    return text


def _location(request: Request) -> bytes:
    """The stream's own URL as the client sees it; relative for a client that sent no Host."""
    host = request.headers.get(b"host")
    if not host:
        return request.path
    # Behind a proxy that ends TLS only this header knows the scheme.
    secure = request.headers.get(b"x-forwarded-proto") == b"https"
    return b"%s://%s%s" % (b"https" if secure else b"http", host, request.path)
