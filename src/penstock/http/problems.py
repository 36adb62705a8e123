"""The one place where an error becomes an answer (RFC 9457 problem details)."""

from __future__ import annotations

import msgspec

from penstock.errors import PenstockError
from penstock.http.message import Headers, Response

_encode = msgspec.json.Encoder().encode


def problem(error: PenstockError) -> Response:
    """The problem+json answer for `error`, with the headers that the error carries."""
    content: dict[str, object] = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        # Details quote what clients sent; a lone surrogate in there must not cost us the answer.
        "detail": _text(error.detail),
        "code": error.code,
    }
    for name, member in error.members.items():
        content[name] = _text(member) if isinstance(member, str) else member
    headers: Headers = [
        (b"content-type", b"application/problem+json"),
        (b"cache-control", b"no-store"),
    ]
    for name, value in error.headers.items():
        headers.append((name.lower().encode("ascii"), value.encode("latin-1", "replace")))
    return Response(error.status, headers, _encode(content))


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
