"""One request from its arrival to the end of its response, for those who write it down.

There are none of these unless somebody does: an access log, or traces. Knows requests and
responses; nothing of sockets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import Final

import msgspec

from penstock.http.message import EventBody, RangeBody, Request, Response

REQUEST_ID: Final = b"x-request-id"
CLIENT_GONE: Final = 499
"""The status of a request whose client has gone before there was one, as nginx has it."""
_ID: Final = re.compile(rb"[!-~]{1,128}")
_PROBLEM: Final = (b"content-type", b"application/problem+json")


def request_id(request: Request) -> bytes | None:
    """Return the id of a request: the one that its client has sent, if that is valid, or the one
    that an exchange has made."""
    if request.id is not None:
        return request.id
    value = request.headers.get(REQUEST_ID)
    return value if value is not None and _ID.fullmatch(value) else None


class Exchange:
    """`status` is None until there is a response. Times are those of `perf_counter`, but for
    `started_ns`, which is since 1970. `waits_s` is when the wait for a commit began."""

    __slots__ = (
        "_on_end",
        "code",
        "ended_s",
        "id",
        "is_live",
        "received",
        "request",
        "responded_s",
        "sent",
        "started_ns",
        "started_s",
        "status",
        "waits_s",
    )

    def __init__(self, request: Request, received: int, on_end: Callable[[Exchange], None]) -> None:
        self.request = request
        self.received = received
        self.started_ns = time.time_ns()
        self.started_s = time.perf_counter()
        self.responded_s = self.ended_s = self.waits_s = 0.0
        self.status: int | None = None
        self.code = ""
        self.sent = 0
        self.is_live = b"live=" in request.query
        self._on_end: Callable[[Exchange], None] | None = on_end
        request.id = request_id(request) or token_hex(8).encode()
        self.id = request.id.decode()

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s

    @property
    def route(self) -> str:
        """The template of the path; an empty text if nothing is served there."""
        route = self.request.route
        return "" if route is None or route[2] is None else str(route[2].route)

    def waits(self) -> None:
        """Note that the response waits for a commit from now on."""
        self.waits_s = time.perf_counter()

    def answered(self, response: Response) -> Response:
        """Note the response; return the one to send, in which an error has the id."""
        self.responded_s = time.perf_counter()
        self.status = response.status
        body = response.body
        if isinstance(body, bytes):
            if _PROBLEM in response.headers:
                content = msgspec.json.decode(body)
                self.code = content["code"]
                body = msgspec.json.encode({**content, "request_id": self.id})
                response = Response(response.status, response.headers, body)
            self.sent = len(body)
        elif isinstance(body, RangeBody):
            self.sent = body.length
        elif isinstance(body, EventBody):
            self.is_live = True
        if self.request.method == "HEAD":
            self.sent = 0
        return response

    def end(self) -> None:
        """Note that the response has ended, however it did; a second call does nothing."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            self.ended_s = time.perf_counter()
            on_end(self)


def exchanges_for(*sinks: Callable[[Exchange], None] | None) -> Exchanges | None:
    """Return what begins exchanges for those sinks that there are; None without any."""
    used = [sink for sink in sinks if sink is not None]
    return Exchanges(used) if used else None


class Exchanges:
    """Begins exchanges; `sinks` are called with each when it has ended."""

    __slots__ = ("_sinks",)

    def __init__(self, sinks: Iterable[Callable[[Exchange], None]]) -> None:
        self._sinks = tuple(sinks)

    def begin(self, request: Request, received: int) -> Exchange:
        return Exchange(request, received, self._ended)

    def _ended(self, exchange: Exchange) -> None:
        for sink in self._sinks:
            sink(exchange)
