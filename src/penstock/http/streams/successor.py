"""`…/__ds/successor`: the stream that a closed one goes on in, for writers that come too late.

Parses documents and renders answers. It is told only of a stream that is closed: one that is to be
closed can be given its successor before, and be held for a moment: what is appended to it then
waits, so that whoever leads its readers on finds it at rest.
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


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """`hold` is for how many seconds appends wait, unless the stream is closed sooner."""

    location: str
    hold: float = 0


class Hold(NamedTuple):
    until_s: float  # by the clock of the loop
    over: asyncio.Event


class Successor:
    __slots__ = ("_engine", "_holds", "_settings")

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._holds: dict[int, Hold] = {}

    def check(self, proposal: Proposal) -> None:
        """Let an append to a stream that is held wait, but for the one that leads readers on."""
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
        return self._answer(path)

    async def _set(self, path: str, value: bytes | None, hold_s: float = 0) -> Response:
        await self._engine.set_meta(path, SUCCESSOR, value)
        if hold_s or value is None:
            stream = self._engine.find(path, touch=False)
            self._end(stream.id)
            if hold_s:
                until_s = asyncio.get_running_loop().time() + hold_s
                self._holds[stream.id] = Hold(until_s, asyncio.Event())
        return Response(204) if value is None else self._answer(path)

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        try:
            wanted = msgspec.json.decode(request.body, type=Wanted)
            found = parse_source(
                wanted.location.encode("ascii").decode(), bytes_max=self._settings.path_bytes_max
            )
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidJson(
                f'Send {{"location": "/v1/stream/<path>"}} as JSON, percent-encoded: {error}'
            ) from None
        if not 0 <= wanted.hold <= limits.SUCCESSOR_HOLD_S_MAX:
            raise InvalidJson(f"`hold` is 0 to {limits.SUCCESSOR_HOLD_S_MAX} seconds.")
        return self._set(path, (PREFIX + found).encode(), wanted.hold)

    def drop(self, path: str, request: Request) -> Awaitable[Response]:
        return self._set(path, None)

    def _answer(self, path: str) -> Response:
        found = self._engine.find(path, touch=False).meta.get(SUCCESSOR)
        return document({"location": None if found is None else found.decode()})


def leads_on(value: bytes, wire: bytes) -> bool:
    """Whether an append is exactly the reset that leads readers to the successor."""
    return wire == reset(location=value.decode()).to_json() + b",\n"


async def _over(hold: Hold) -> None:
    try:
        async with asyncio.timeout_at(hold.until_s):
            await hold.over.wait()
    except TimeoutError:
        pass
