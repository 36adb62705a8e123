"""JSON answers that are rendered whole: encoded as the client likes, with tags to match.

Reads of streams do the same piece by piece (see `reads`); nothing here knows a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.http.bodies import SMALL_BYTES_MAX
from penstock.http.compression import encode
from penstock.http.message import Headers, Request, Response
from penstock.http.streams.read import VARY
from penstock.protocol import etag

if TYPE_CHECKING:
    from penstock.http.compression import Compressor

JSON: Final = "application/json"


def not_modified(request: Request, headers: Headers, tag: str) -> Response | None:
    """The 304 for a client that has what `tag` names, in whichever encoding."""
    seen = request.headers.get(b"if-none-match")
    if seen is None or not etag.matches(seen.decode("latin-1"), tag):
        return None
    return Response(304, [*headers, VARY, (b"etag", tag.encode())])


async def packed(
    compressor: Compressor, request: Request, headers: Headers, tag: str, body: bytes
) -> Response:
    """The 200 with a JSON body; smaller if that helps, and encoded off the loop if it is large."""
    # Always, as a 304 cannot know how large the answer would have been.
    headers = [*headers, VARY, (b"content-type", JSON.encode())]
    coding = None
    if compressor.applies(JSON, len(body)):
        coding = compressor.choose(request.headers.get(b"accept-encoding"))
    data = None if coding is None else await _encoded(compressor, coding, body)
    if coding is None or data is None or len(data) >= len(body):
        return Response(200, [*headers, (b"etag", tag.encode())], body)
    # The same content in other bytes: only the weak comparison may call them equal.
    headers += [(b"content-encoding", coding.encode()), (b"etag", b"W/" + tag.encode())]
    return Response(200, headers, data)


async def _encoded(compressor: Compressor, coding: str, body: bytes) -> bytes | None:
    """None if there is no memory left for it."""
    if len(body) <= SMALL_BYTES_MAX:
        return encode(coding, body)
    if not compressor.reserve(len(body)):
        return None
    try:
        return await compressor.encode(coding, body)
    finally:
        compressor.release(len(body))
