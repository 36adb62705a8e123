"""`/v1/proxy/<path>`: calls an upstream, and answers with its response while it is recorded into
the stream at the path."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from penstock.access.rules import Verb
from penstock.errors import BadRequest, InvalidParameter, RouteNotFound, StreamNotFound
from penstock.http.headers import NO_STORE, content_headers, header_text, location
from penstock.http.message import BODILESS, Headers, Request, Response
from penstock.http.permission import require
from penstock.http.proxy.body import Bodies, RecordedBody
from penstock.http.proxy.recording import Call, Record, record_of, stored_type
from penstock.http.proxy.upstreams import METHODS, Upstream, forwarded, upstream_of
from penstock.http.query import parse_query
from penstock.http.router import STREAM_PREFIX
from penstock.protocol.error_record import error_record
from penstock.protocol.headers import parse_ttl

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.proxy.recordings import Recordings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PREFIX: Final = b"/v1/proxy/"
ABORT: Final = "abort"

_KEY: Final = re.compile(r"[!-~]{1,256}")


class ProxyResource:
    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        upstreams: tuple[Upstream, ...],
        recordings: Recordings,
        bodies: Bodies,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._upstreams = upstreams
        self._recordings = recordings
        self._bodies = bodies
        self._public_url = settings.public_url.rstrip("/")

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        """Record a call, or join the one that is recorded; with `action=abort` end it."""
        parameters = parse_query(request.query, frozenset({"action", "skip"}))
        action, skip = parameters.get("action"), _skip(parameters)
        self._check_on()
        if action == ABORT:
            return self._abort(path)
        if action is not None:
            raise InvalidParameter("`action` can only be `abort`.")
        require(request, Verb.CREATE, path)
        # The body is the request's only until this returns.
        return self._record(request, self._call(path, request), skip)

    async def _record(self, request: Request, call: Call, skip: int) -> Response:
        record = await self._recordings.call(call)
        return self._response(call.path, request, record, skip)

    def get(self, path: str, request: Request) -> Response:
        """Answer with a recorded response once more, from its beginning or after `skip` bytes."""
        skip = _skip(parse_query(request.query, frozenset({"skip"})))
        self._check_on()
        return self._response(path, request, self._recorded(path), skip)

    def delete(self, path: str, request: Request) -> Awaitable[Response]:
        """End a call."""
        self._check_on()
        return self._abort(path)

    def _check_on(self) -> None:
        if not self._upstreams:
            raise RouteNotFound(
                "The proxy is off: name the servers that it may call in proxy_upstreams "
                "(--proxy-upstreams)."
            )

    def _recorded(self, path: str) -> Record:
        record = self._recordings.record(path)
        if record is None:
            raise StreamNotFound(f"No response is recorded at {path!r}.")
        return record

    def _call(self, path: str, request: Request) -> Call:
        headers = request.headers
        url = header_text(headers, b"upstream-url")
        if url is None:
            raise BadRequest("Send the URL to call as the header Upstream-URL.")
        method = header_text(headers, b"upstream-method") or "POST"
        if method not in METHODS:
            raise BadRequest(f"Upstream-Method can be {' or '.join(METHODS)}.")
        key = header_text(headers, b"idempotency-key")
        if key is not None and _KEY.fullmatch(key) is None:
            raise BadRequest("Idempotency-Key has 1 to 256 printable ASCII characters, no spaces.")
        ttl = header_text(headers, b"stream-ttl")
        upstream = upstream_of(self._upstreams, url)
        content = hashlib.sha256(f"{method} {url}\n".encode("latin-1") + request.body)
        return Call(
            path=path,
            id=key or uuid4().hex,
            digest=content.hexdigest(),
            method=method,
            url=url,
            headers=forwarded(headers, upstream, self._settings.proxy_headers),
            body=request.body,
            ttl_s=int(self._settings.proxy_ttl_s) if ttl is None else parse_ttl(ttl),
        )

    def _response(self, path: str, request: Request, record: Record, skip: int) -> Response:
        stream = self._engine.find(path, touch=True)
        headers: Headers = [
            *content_headers(record.content_type),
            NO_STORE,
            (b"location", self._location(request)),
            (b"stream-recording", self._recorded(path).state.encode()),
            (b"upstream-status", b"%d" % record.status),
            (b"idempotency-key", record.id.encode()),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in record.headers.items()),
        ]
        if record.status in BODILESS:
            return Response(record.status, headers)
        start = skip
        if start > stream.tail:
            raise InvalidParameter(
                f"`skip` is {skip}, and only {stream.tail} bytes are recorded so far."
            )
        return Response(
            record.status, headers, RecordedBody(self._bodies, stream, start, _is_whole)
        )

    def _location(self, request: Request) -> bytes:
        """Return the URL of the stream of a recording."""
        own = location(request, self._public_url)
        return own.removesuffix(request.path) + STREAM_PREFIX + request.path[len(PREFIX) :]

    async def _abort(self, path: str) -> Response:
        await self._recordings.abort(path)
        state = self._recorded(path).state
        return Response(204, [NO_STORE, (b"stream-recording", state.encode())])


def _is_whole(stream: Stream) -> bool:
    """Whether the end of a closed stream may look like the end of a response. It may if the reason
    for another end is in the stream."""
    record = record_of(stream)
    if record is None or record.state == "complete":
        return True
    return error_record(stored_type(record.content_type), "failed") is not None


def _skip(parameters: dict[str, str]) -> int:
    text = parameters.get("skip", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise InvalidParameter("`skip` must be a whole number of bytes.")
    return int(text)
