"""The application of a node that owns nothing: it says who does, and that it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import NotOwner, PenstockError
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.problems import problem

BODY_BYTES_MAX: Final = 64 * 1024
"""A longer body is not read: the answer is the same."""


class Standby:
    """Answers every request for streams with `not-owner`. `not_owner` returns the error."""

    def __init__(self, not_owner: Callable[[], NotOwner]) -> None:
        self._not_owner = not_owner

    def refuse(self, head: Request) -> Response | None:
        length = head.headers.get(b"content-length", b"0")
        is_short = length.isdigit() and int(length) <= BODY_BYTES_MAX
        if is_short and b"transfer-encoding" not in head.headers:
            return None
        return problem(self._not_owner())

    def unreadable(self, error: PenstockError) -> Response:
        return problem(error)

    def handle(self, request: Request) -> Response:
        if request.path == b"/healthz":
            return document({"status": "ok", "role": "standby"})
        error = self._not_owner()
        if request.path == b"/readyz":
            reason = {"status": "unavailable", "reason": error.detail, "role": "standby"}
            return document(reason, 503)
        return problem(error)

    def drain(self) -> None:
        pass
