"""`…/__ds/successor`: the stream in which a closed one continues, for writers that come too late.

Parses documents and renders responses. Responses name the successor only once the stream is closed.
It can be set before that, together with a hold: for a moment appends wait, so that the stream does
not move while its readers are led to the successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidJson
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.router import parse_source
from penstock.log.requests import NotYet, Proposal
from penstock.log.stream import SUCCESSOR
from penstock.state.events import reset

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine

PREFIX: Final = "/v1/stream/"


class SuccessorRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`hold` is for how many seconds appends wait, unless the stream is closed sooner."""

    location: str
    hold: float = 0


class Hold(NamedTuple):
    """The time until which appends to a stream wait, and an event that ends the wait sooner."""

    until_s: float  # by the clock of the loop
    over: asyncio.Event


class Successor:
    """The resource, and the check that makes appends wait during a hold."""

    __slots__ = ("_engine", "_holds", "_settings")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._holds: dict[int, Hold] = {}

    def check(self, proposal: Proposal) -> None:
        """Let an append wait while its stream is held, except for the reset that ends the hold."""
        hold = self._holds.get(proposal.stream.id)
        if hold is None:
            return
        is_over = hold.until_s <= asyncio.get_running_loop().time()
        if not is_over and not leads_on(proposal.value, proposal.wire):
            raise NotYet(partial(_over, hold), blocks=True)
        self._end(proposal.stream.id)

    def _end(self, stream_id: int) -> None:
        hold = self._holds.pop(stream_id, None)
        if hold is not None:
            hold.over.set()

    def get(self, path: str, request: Request) -> Response:
        return self._show(path)

    async def _set(self, path: str, value: bytes | None, hold_s: float = 0) -> Response:
        await self._engine.set_meta(path, SUCCESSOR, value)
        if hold_s or value is None:
            stream = self._engine.find(path, touch=False)
            self._end(stream.id)
            if hold_s:
                until_s = asyncio.get_running_loop().time() + hold_s
                self._holds[stream.id] = Hold(until_s, asyncio.Event())
        return Response(204) if value is None else self._show(path)

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        try:
            successor = msgspec.json.decode(request.body, type=SuccessorRequest)
            target = parse_source(
                successor.location.encode("ascii").decode(), bytes_max=self._settings.path_bytes_max
            )
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidJson(
                f'Send {{"location": "/v1/stream/<path>"}} as JSON, percent-encoded: {error}'
            ) from None
        if not 0 <= successor.hold <= limits.SUCCESSOR_HOLD_S_MAX:
            raise InvalidJson(f"`hold` must be 0 to {limits.SUCCESSOR_HOLD_S_MAX} seconds.")
        return self._set(path, (PREFIX + target).encode(), successor.hold)

    def drop(self, path: str, request: Request) -> Awaitable[Response]:
        return self._set(path, None)

    def _show(self, path: str) -> Response:
        location = self._engine.find(path, touch=False).meta.get(SUCCESSOR)
        return document({"location": None if location is None else location.decode()})


def leads_on(value: bytes, wire: bytes) -> bool:
    """Whether an append is exactly the reset that leads readers to the successor."""
    return wire == reset(location=value.decode()).to_json() + b",\n"


async def _over(hold: Hold) -> None:
    try:
        async with asyncio.timeout_at(hold.until_s):
            await hold.over.wait()
    except TimeoutError:
        pass
