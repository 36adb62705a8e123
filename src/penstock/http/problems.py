"""The one place where an error becomes a response (RFC 9457 problem details)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InternalError, PenstockError, ShuttingDown
from penstock.http.exchange import request_id
from penstock.http.headers import NO_STORE
from penstock.http.message import Headers, Response

if TYPE_CHECKING:
    from penstock.http.message import Request

_log = logging.getLogger("penstock.http")
_encode = msgspec.json.Encoder().encode


def problem(error: PenstockError) -> Response:
    """Return the problem+json response for `error`, with the headers that the error carries."""
    content: dict[str, object] = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        # Details quote what clients sent; a lone surrogate in there must not cost us the response.
        "detail": _text(error.detail),
        "code": error.code,
    }
    for name, member in error.members.items():
        content[name] = _text(member) if isinstance(member, str) else member
    headers: Headers = [(b"content-type", b"application/problem+json"), NO_STORE]
    for name, value in error.headers.items():
        headers.append((name.lower().encode("ascii"), value.encode("latin-1", "replace")))
    return Response(error.status, headers, _encode(content))


def public_error(error: BaseException, request: Request | None = None) -> PenstockError:
    """Return the error that a client may see in place of any `error`.

    A bug is logged, with the request that ran into it if there is one, and never shown.
    """
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return ShuttingDown("The server stopped before this was done; retry.")
    if request is None:
        _log.error("a request failed", exc_info=error)
    else:
        sent_id = request_id(request)
        name = "" if sent_id is None else f" (request {sent_id.decode()})"
        _log.error("failed to answer %s %r%s", request.method, request.path, name, exc_info=error)
    return InternalError("The server failed to answer; its log says why.")


def error_response(error: BaseException, request: Request | None = None) -> Response:
    """Return the response to a request that `error` has ended."""
    return problem(public_error(error, request))


def unsafe_headers() -> Response:
    """Return what is sent instead of a response whose headers carry line breaks."""
    return problem(InternalError("The response could not be written as HTTP headers."))


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
