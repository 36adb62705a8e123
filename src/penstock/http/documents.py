"""Answers that are a JSON document of their own: never stored by caches, always whole."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.http.message import Response
from penstock.http.streams.resource import NO_STORE


def document(content: dict[str, Any], status: int = 200) -> Response:
    headers = [(b"content-type", b"application/json"), NO_STORE]
    return Response(status, headers, msgspec.json.encode(content))
