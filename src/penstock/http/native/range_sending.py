"""Bodies that go out piece by piece, each when the one before it has gone.

Plain Python: mypyc does not iterate over async generators as Python does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.http.problems import error_response, unsafe_headers

if TYPE_CHECKING:
    from penstock.http.message import RangeBody, Response
    from penstock.http.native.connection import Connection
    from penstock.http.native.request_head import NativeRequest


async def send_range(
    connection: Connection,
    request: NativeRequest,
    response: Response,
    body: RangeBody,
    first: bytes | list[bytes | memoryview] | None,
    after: bytes,
) -> None:
    """Send a response whose body is read while it is sent."""
    connection.range_begins()
    pieces = body.pieces()
    sent = 0
    failure: Response | None = None
    try:
        # Before the head: a failure now is still a clean response.
        piece: bytes | list[bytes | memoryview] = (
            await anext(pieces, b"") if first is None else first
        )
        if not connection.range_head(response, after, body.length):
            failure = unsafe_headers()
        else:
            while piece:
                sent += size_of(piece)
                drained = connection.range_piece(piece)
                if drained is not None:
                    try:
                        await drained
                    finally:
                        connection.range_drained()
                parts = connection.range_views(body)
                piece = await anext(pieces, b"") if parts is None else parts
    except Exception as error:  # noqa: BLE001 - becomes the response
        failure = error_response(error, request)
    finally:
        body.close()
        if hasattr(pieces, "aclose"):
            await pieces.aclose()
    connection.range_ends(sent, body.length, failure)


def size_of(piece: bytes | list[bytes | memoryview]) -> int:
    """Return how many bytes a piece has."""
    return len(piece) if isinstance(piece, bytes) else sum(map(len, piece))
