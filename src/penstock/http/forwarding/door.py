"""The Application at the address for peers where one process owns all streams at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.errors import NotOwner, PenstockError
from penstock.http.forwarding.hop import HEADER
from penstock.http.message import Request, Response
from penstock.http.problems import error_response, problem

if TYPE_CHECKING:
    from penstock.http.app import App
    from penstock.http.forwarding.hop import Hops


class Door:
    """Lets in what peers forward: to `app`, or to nobody while there is none. Nothing is forwarded
    again; `not_owner` returns the error."""

    def __init__(self, hops: Hops, app: App | None, not_owner: Callable[[], NotOwner]) -> None:
        self._hops = hops
        self._app = app
        self._not_owner = not_owner

    def refuse(self, head: Request) -> Response | None:
        value = head.headers.get(HEADER)
        hop = None if value is None else self._hops.parse(value)
        if hop is None:
            return problem(NotOwner("Only peers of this server are answered here."))
        if self._app is None:
            return problem(self._not_owner())
        head.sender = hop.sender
        return self._app.refuse(head)

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        assert self._app is not None
        return self._app.handle(request)

    def unreadable(self, error: PenstockError) -> Response:
        return error_response(error)

    def drain(self) -> None:
        """The App is drained at the public address."""
