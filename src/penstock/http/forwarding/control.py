"""What peers ask each other beside the requests of clients: `/peer/<name>` on the address for
peers, JSON in and JSON out.

Knows that only peers get here; what is asked and answered is registered by others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError, RouteNotFound
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.problems import error_response

PREFIX: Final = b"/peer/"

Ask = Callable[[Any], Awaitable[Any]]


class Control:
    """The questions that this process answers, by name."""

    __slots__ = ("_asks", "streams")

    def __init__(self) -> None:
        self._asks: dict[bytes, Ask] = {}
        self.streams: dict[bytes, Callable[[Any], Awaitable[Response]]] = {}
        """Questions whose answer stays open."""

    def add(self, name: str, ask: Ask) -> None:
        self._asks[PREFIX + name.encode()] = ask

    def add_stream(self, name: str, ask: Callable[[Any], Awaitable[Response]]) -> None:
        self.streams[PREFIX + name.encode()] = ask

    async def answer(self, path: bytes, body: bytes) -> Response:
        """Answer a question. Never raises."""
        try:
            stream = self.streams.get(path)
            if stream is not None:
                return await stream(msgspec.json.decode(body))
            ask = self._asks.get(path)
            if ask is None:
                raise RouteNotFound(f"Peers are not answered {path!r}.")
            return document({"answer": await ask(msgspec.json.decode(body))})
        except Exception as error:  # noqa: BLE001 - becomes the response
            return error_response(error)


class ControlApp:
    """An Application that answers questions of peers, and nothing else. Whoever asks is known."""

    __slots__ = ("_control",)

    def __init__(self, control: Control) -> None:
        self._control = control

    def refuse(self, head: Request) -> Response | None:
        if is_control(head):
            return None
        return error_response(RouteNotFound(f"Peers are not answered {head.path!r}."))

    def handle(self, request: Request) -> Awaitable[Response]:
        return self._control.answer(request.path, request.body)

    def unreadable(self, error: PenstockError) -> Response:
        return error_response(error)

    def drain(self) -> None:
        """Whatever is waited for ends with the App that answers clients."""


def is_control(request: Request) -> bool:
    return request.path.startswith(PREFIX)
