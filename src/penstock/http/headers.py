"""Headers that several resources and both transports share: constants, parsers and renderers.

Knows requests, streams and acknowledgements as values; knows no sockets and no engine.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequest, InvalidOffset, InvalidUrl
from penstock.log.stream import SUCCESSOR
from penstock.protocol import etag
from penstock.protocol.headers import Producer, media_type, parse_producer, parse_stream_seq
from penstock.protocol.offsets import Offset, parse_offset
from penstock.protocol.outbound import parse_url

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.message import Headers, Request
    from penstock.log.requests import Appended
    from penstock.log.stream import Stream
    from penstock.state.filtering import EventFilter

CLOSED: Final = (b"stream-closed", b"true")
UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
NO_STORE: Final = (b"cache-control", b"no-store")
NO_CACHE: Final = (b"cache-control", b"no-cache")
JSON_TYPE: Final = (b"content-type", b"application/json")
SANDBOX: Final = (b"content-security-policy", b"sandbox")
VARY: Final = (b"vary", b"Accept-Encoding")
# The content type of a table is negotiated as well.
VARY_TABLE: Final = (b"vary", b"Accept, Accept-Encoding")

# What browsers show, or hand to a viewer of its own, and never run.
_INERT = frozenset(
    f"application/{name}" for name in ("octet-stream", "json", "ndjson", "x-ndjson", "pdf")
) | frozenset(f"text/{name}" for name in ("plain", "csv", "tab-separated-values", "markdown"))


def header_text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    """Return the value of a request header as text; None if the request does not have it."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def header_block(headers: Headers) -> bytes | None:
    """Return the headers as bytes; None if a name or value would end its line early (injection)."""
    block = b"".join([b"%b: %b\r\n" % header for header in headers])
    lines = len(headers)
    if block.count(b"\n") != lines or block.count(b"\r") != lines or b"\0" in block:
        return None
    return block


# What a stream's bytes are, and who may keep them.


@functools.lru_cache(maxsize=1024)
def content_headers(content_type: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return Content-Type, and for every type that a browser might run (HTML, SVG, XML, and what it
    does not know) the header that makes it a page without scripts, forms and origin."""
    header = (b"content-type", content_type.encode("latin-1"))
    media = media_type(content_type)
    is_inert = media in _INERT or media.endswith("+json")
    return (header,) if is_inert else (header, SANDBOX)


def is_personal(request: Request) -> bool:
    """Whether the response may be for this client alone: it has sent credentials, if only for a
    proxy on the way. Those in a URL end, and a shared cache would not know."""
    headers, principal = request.headers, request.principal
    is_link = principal is not None and principal.is_link
    return is_link or b"authorization" in headers or b"cookie" in headers


# What an append says of itself.


def producer_from(headers: dict[bytes, bytes], settings: Settings) -> Producer | None:
    """Return the producer that the Producer-* headers name; None if there are none."""
    return parse_producer(
        header_text(headers, b"producer-id"),
        header_text(headers, b"producer-epoch"),
        header_text(headers, b"producer-seq"),
        id_bytes_max=settings.producer_id_bytes_max,
    )


def stream_seq_from(headers: dict[bytes, bytes], settings: Settings) -> str | None:
    """Return the value of Stream-Seq; None if the request does not have it."""
    raw = headers.get(b"stream-seq")
    if raw is None:
        return None
    return parse_stream_seq(raw.decode("latin-1"), bytes_max=settings.stream_seq_bytes_max)


def expected_offset(headers: dict[bytes, bytes]) -> str | None:
    """Return the tail offset that If-Match names. `*` only asks that the stream exists."""
    raw = headers.get(b"if-match")
    if raw is None:
        return None
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


def append_headers(appended: Appended) -> Headers:
    """Return what the response to an accepted append says of it."""
    headers: Headers = [(b"stream-next-offset", appended.offset.encode())]
    if appended.closed:
        headers.append(CLOSED)
    state = appended.producer
    if state is not None:
        headers.append((b"producer-epoch", b"%d" % state.epoch))
        headers.append((b"producer-seq", b"%d" % state.seq))
    return headers


def closed_headers(stream: Stream) -> Headers:
    """Return the headers of a closed stream: that it is closed, and its successor if it has one."""
    successor = stream.meta.get(SUCCESSOR)
    return [CLOSED] if successor is None else [CLOSED, (b"stream-successor", successor)]


def filter_header(event_filter: EventFilter, *, located: bool = False) -> tuple[bytes, bytes]:
    """Return the header that tells a client that its filter was applied, not ignored."""
    names = event_filter.names + (", positions" if located else "")
    return (b"stream-filter", names.encode())


# Validators.


def has_tag(request: Request, tag: str) -> bool:
    """Whether the client has what `tag` names already, in whichever encoding."""
    seen = request.headers.get(b"if-none-match")
    return seen is not None and etag.matches(seen.decode("latin-1"), tag)


def weak(tag: str) -> bytes:
    """Return the tag of the same content in other bytes, which only weak comparison calls equal."""
    return b"W/" + tag.encode()


# URLs of this server as its client sees them.


def location(request: Request, public_url: str = "") -> bytes:
    """Return the URL of the request; its path alone for a client that sent no Host."""
    if public_url:
        return public_url.encode() + request.path
    host = request.headers.get(b"host")
    if not host:
        return request.path
    return b"%s://%s%s" % (request.scheme.encode(), host, request.path)


def server_url(request: Request, public_url: str) -> str:
    """Return the URL of this server for the client of `request`; empty if it is unknown."""
    if public_url:
        return public_url
    host = request.headers.get(b"host", b"").decode("latin-1")
    try:
        return parse_url(f"{request.scheme}://{host}/").origin
    except InvalidUrl:
        return ""
