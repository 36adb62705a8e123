"""A stream as a resource: PUT creates, POST appends and closes, HEAD describes, DELETE removes.

Parses headers and renders responses; every decision is the engine's. `append` is the hot path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.errors import (
    ConflictingExpiry,
    EmptyBody,
    InvalidForkOffset,
    MissingContentType,
)
from penstock.http.headers import (
    CLOSED,
    NO_STORE,
    append_headers,
    closed_headers,
    content_headers,
    expected_offset,
    has_tag,
    header_text,
    location,
    producer_from,
    stream_seq_from,
)
from penstock.http.message import Headers, Later, Request, Response
from penstock.http.permission import require
from penstock.http.router import parse_source
from penstock.log.lineage import generation_at
from penstock.log.receipt import Receipt
from penstock.log.requests import Append, Appended, Created, Fork
from penstock.protocol import etag
from penstock.protocol.headers import (
    format_expires_at,
    normalize_content_type,
    parse_closed,
    parse_expires_at,
    parse_sub_offset,
    parse_ttl,
)
from penstock.protocol.lifecycle import ForkConfig, StreamConfig

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine

DEFAULT_CONTENT_TYPE = "application/octet-stream"

_FORK_HEADERS = (b"stream-forked-from", b"stream-fork-offset", b"stream-fork-sub-offset")


class Streams:
    """The methods of a stream, except for reads."""

    __slots__ = ("_engine", "_posts", "_public_url", "_settings", "_traffic")

    def __init__(self, engine: Engine, settings: Settings, traffic: Traffic) -> None:
        self._engine = engine
        self._settings = settings
        self._traffic = traffic
        self._posts = traffic.requests["POST"]
        self._public_url = settings.public_url.rstrip("/")

    def create(self, path: str, request: Request) -> Later:
        headers = request.headers
        ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
        if ttl is not None and expires_at is not None:
            raise ConflictingExpiry("Send either Stream-TTL or Stream-Expires-At, not both.")
        raw_type = headers.get(b"content-type")
        config = ForkConfig(
            None if raw_type is None else normalize_content_type(raw_type.decode("latin-1")),
            None if ttl is None else parse_ttl(ttl.decode("latin-1")),
            None if expires_at is None else parse_expires_at(expires_at.decode("latin-1")),
        )
        closed = parse_closed(header_text(headers, b"stream-closed"))
        fork = self._fork(headers)
        if fork is not None:
            require(request, Verb.READ, fork.source)
        if fork is None:
            content_type = config.content_type or DEFAULT_CONTENT_TYPE
            whole = StreamConfig(content_type, config.ttl_s, config.expires_at_us)
            future = self._engine.create(path, whole, request.body, closed=closed)
        else:
            future = self._engine.fork(path, fork, config, request.body, closed=closed)
        url = location(request, self._public_url)
        return Later(future, lambda done: self._created(done, url))

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
            producer = producer_from(headers, self._settings)
        answer = self._engine.append_quickly(
            path,
            Append(
                body,
                content_type,
                close,
                producer,
                stream_seq_from(headers, self._settings) if b"stream-seq" in headers else None,
                expected_offset(headers) if b"if-match" in headers else None,
            ),
        )
        return Later(answer, self._appended if body else self._closed)

    def head(self, path: str, request: Request) -> Response:
        stream = self._engine.find(path, touch=False)
        config = stream.config
        # The tag of the read that returns all there is. A read of a long stream ends earlier, and
        # has another.
        tag = etag.make(
            generation_at(stream, stream.tail), stream.earliest, stream.tail, stream.closed
        )
        headers: Headers = [
            (b"stream-next-offset", self._engine.token(stream, stream.tail).encode()),
            (b"stream-earliest-offset", self._engine.earliest(stream).offset.encode()),
            (b"etag", tag.encode()),
            NO_STORE,
        ]
        if config.ttl_s is not None:
            headers.append((b"stream-ttl", b"%d" % config.ttl_s))
        if config.expires_at_us is not None:
            headers.append((b"stream-expires-at", format_expires_at(config.expires_at_us).encode()))
        if stream.closed:
            headers.extend(closed_headers(stream))
        if has_tag(request, tag):
            return Response(304, headers)
        return Response(200, [*content_headers(config.content_type), *headers])

    def delete(self, path: str, request: Request) -> Later:
        return Later(self._engine.delete(path), self._deleted)

    def _created(self, future: asyncio.Future[Created], url: bytes) -> Response:
        try:
            created = future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the response
            return self._traffic.failure("PUT", future)
        headers: Headers = [
            (b"content-type", created.content_type.encode("latin-1")),
            (b"stream-next-offset", created.offset.encode()),
        ]
        if created.closed:
            headers.append(CLOSED)
        if created.created:
            headers.append((b"location", url))
        return self._traffic.count("PUT", Response(201 if created.created else 200, headers))

    def _appended(self, answer: Receipt | asyncio.Future[Appended]) -> Response:
        appended = self._result(answer)
        if isinstance(appended, Response):
            return appended
        # 200 is new data from a producer, 204 a repetition of it.
        is_new = appended.producer is not None and not appended.duplicate
        return _append_response(200 if is_new else 204, appended)

    def _closed(self, answer: Receipt | asyncio.Future[Appended]) -> Response:
        appended = self._result(answer)
        return appended if isinstance(appended, Response) else _append_response(204, appended)

    def _result(self, answer: Receipt | asyncio.Future[Appended]) -> Appended | Response:
        """Return what was appended, or the response to one that failed."""
        if isinstance(answer, Receipt):
            if answer.error is not None:
                return self._traffic.count("POST", self._traffic.failed(answer.error))
            appended: Appended = answer.result
        else:
            try:
                appended = answer.result()
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the response
                return self._traffic.failure("POST", answer)
        self._posts[2] += 1
        return appended

    def _deleted(self, future: asyncio.Future[None]) -> Response:
        try:
            future.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - becomes the response
            return self._traffic.failure("DELETE", future)
        return self._traffic.count("DELETE", Response(204))

    def _fork(self, headers: dict[bytes, bytes]) -> Fork | None:
        """Return the fork that the headers ask for; None if they ask for none."""
        source, offset, sub_offset = (header_text(headers, name) for name in _FORK_HEADERS)
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


def _append_response(status: int, appended: Appended) -> Response:
    headers = append_headers(appended)
    response = Response(status, headers)
    if len(headers) == 1:
        # The usual answer is encoded here: an offset has no line breaks to look for.
        response.block = b"stream-next-offset: " + headers[0][1] + b"\r\n"
    return response
