"""Responses that are one JSON document, rendered whole: uncached, or with a tag and compressed.

Reads of streams are sent piece by piece (see `streams.read`); nothing here knows a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.http.bodies import SMALL_BYTES_MAX
from penstock.http.compression import encode
from penstock.http.headers import JSON_TYPE, NO_STORE, VARY, has_tag, weak
from penstock.http.message import Headers, Request, Response

if TYPE_CHECKING:
    from penstock.http.compression import Compressor

JSON: Final = "application/json"


def document(content: dict[str, Any], status: int = 200, *headers: tuple[bytes, bytes]) -> Response:
    """Return `content` as JSON that no cache may store."""
    return Response(status, [JSON_TYPE, *headers, NO_STORE], msgspec.json.encode(content))


def not_modified(
    request: Request, headers: Headers, tag: str, *, vary: tuple[bytes, bytes] = VARY
) -> Response | None:
    """Return the 304 for a client that has what `tag` names; None for any other."""
    if not has_tag(request, tag):
        return None
    return Response(304, [*headers, vary, (b"etag", tag.encode())])


async def tagged(
    compressor: Compressor, request: Request, headers: Headers, tag: str, body: bytes
) -> Response:
    """Return the 200 with a JSON body, compressed if that makes it smaller."""
    # Vary is always sent: a 304 cannot know how large the body would have been.
    headers = [*headers, VARY, JSON_TYPE]
    coding = None
    if compressor.applies(JSON, len(body)):
        coding = compressor.choose(request.headers.get(b"accept-encoding"))
    data = None if coding is None else await _encoded(compressor, coding, body)
    if coding is None or data is None or len(data) >= len(body):
        return Response(200, [*headers, (b"etag", tag.encode())], body)
    headers += [(b"content-encoding", coding.encode()), (b"etag", weak(tag))]
    return Response(200, headers, data)


async def _encoded(compressor: Compressor, coding: str, body: bytes) -> bytes | None:
    """Return `body` encoded, off the loop if it is large; None if there is no memory for it."""
    if len(body) <= SMALL_BYTES_MAX:
        return encode(coding, body)
    if not compressor.reserve(len(body)):
        return None
    try:
        return await compressor.encode(coding, body)
    finally:
        compressor.release(len(body))
