"""What there is once for the whole server, and answers that take all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.http.documents import document
from penstock.http.forwarding import merging
from penstock.http.forwarding.gather import (
    Gatherer,
    answered,
    content,
    failed,
    later,
    merged_page,
)
from penstock.http.forwarding.many import MergedLive
from penstock.http.forwarding.places import PAGES
from penstock.http.message import Request, Response
from penstock.http.query import parse_query
from penstock.stp.declaration import table_location

if TYPE_CHECKING:
    from penstock.http.endpoint import Handler
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.http.route_stats import RouteStats

_CHANGES: Final = frozenset({"POST", "DELETE", "PUT"})
_NOT_FOUND: Final = 404

Merge = Callable[["Handler", str, Request], Awaitable[Response]]


class Shares:
    """`first` is the peer that keeps what there is once, None for this process itself.
    `on_changed` is awaited after a change of such things, before it is answered. `has_table` says
    whether the process of a name has a table at a path."""

    def __init__(
        self,
        owners: Owners,
        gatherer: Gatherer,
        live: MergedLive,
        *,
        first: Callable[[], Peer | None],
        on_changed: Callable[[], Awaitable[None]],
        caught_up: Callable[[], Awaitable[None]],
        has_table: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        self._owners = owners
        self._gatherer = gatherer
        self.first = first
        self._on_changed = on_changed
        self._caught_up = caught_up
        self.has_table = has_table
        self._merges: dict[str, Merge] = {
            "/v1/nurls": self._nurls,
            "/v1/notify/{path}": self._notify,
            "/v1/streams/live": live.get,
            "/v1/stream/__ds/jwks.json": self._jwks,
            "/v1/stream/__ds/rotate-key": self._each,
            "/v1/activity": self._activity,
            "/v1/backup": self._backup,
            "/v1/scrub": self._job,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    def all(self, route: str, handler: Handler) -> Handler:
        """Return the handler of a route that all processes have a part of."""
        return partial(later, partial(self._merges[route], handler))

    def shared(self, handler: Handler, stats: RouteStats) -> Handler:
        """Return the handler of something that there is once, here."""
        return (
            partial(later, partial(self._change, handler)) if stats.method in _CHANGES else handler
        )

    async def _change(self, handler: Handler, path: str, request: Request) -> Response:
        response = await answered(handler, path, request)
        if response.status < 400:
            await self._on_changed()
        return response

    def subscription(self, handler: Handler) -> Handler:
        """Return the handler of a subscription: it knows all that was committed before."""
        return partial(self._subscription, handler)

    def _subscription(self, handler: Handler, path: str, request: Request) -> Awaitable[Response]:
        # Called now: a transport drops the body when this returns.
        answer = handler(path, request)
        assert not isinstance(answer, Response)
        return self._after_catching_up(answer)

    async def _after_catching_up(self, answer: Awaitable[Response]) -> Response:
        await self._caught_up()
        return await answer

    def declared_at(self, path: str, body: bytes, places: list[str]) -> list[str]:
        """Return the streams that a table may be of, the one of its declaration first."""
        try:
            stream = msgspec.json.decode(body)["stream"]
            chosen, _ = table_location(path, stream)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, PenstockError):
            return places[:1] + places[1:]
        return [chosen, *(each for each in places if each != chosen)]

    # -- answers of all

    async def _parts(
        self, handler: Handler, path: str, request: Request, *, missing: bool = False
    ) -> tuple[list[Response], Response | None]:
        """Return all answers, and the one that is no success. With `missing` it is enough that one
        process has what is asked for."""
        responses = await self._gatherer.ask(handler, path, request)
        if missing and any(each.status != _NOT_FOUND for each in responses):
            responses = [each for each in responses if each.status != _NOT_FOUND]
        return responses, failed(responses)

    async def _nurls(self, handler: Handler, path: str, request: Request) -> Response:
        if request.method not in _CHANGES:
            responses = await self._gatherer.ask(handler, path, request)
            return merged_page(PAGES["/v1/nurls"], request, responses)
        responses, failure = await self._parts(
            _not_found_as_answer(handler), path, request, missing=True
        )
        if failure is not None:
            return failure
        parts = [content(each) for each in responses]
        if request.method == "DELETE":
            return document({"removed": sum(part["removed"] for part in parts)})
        sent = list(dict.fromkeys(nurl for part in parts for nurl in part["sent"]))
        rest = {nurl: why for part in parts for nurl, why in part["failed"].items()}
        return document({"sent": sent, "failed": rest})

    async def _notify(self, handler: Handler, path: str, request: Request) -> Response:
        responses, failure = await self._parts(handler, path, request)
        if failure is not None:
            return failure
        return document(merging.outcome([content(each) for each in responses]), 202)

    async def _jwks(self, handler: Handler, path: str, request: Request) -> Response:
        responses, failure = await self._parts(handler, path, request)
        if failure is not None:
            return failure
        keys = [key for each in responses for key in content(each)["keys"]]
        return Response(200, responses[0].headers, msgspec.json.encode({"keys": keys}))

    async def _each(self, handler: Handler, path: str, request: Request) -> Response:
        """Do it everywhere; one answer stands for all."""
        responses, failure = await self._parts(handler, path, request)
        return failure or responses[0]

    async def _activity(self, handler: Handler, path: str, request: Request) -> Response:
        responses, failure = await self._parts(handler, path, request)
        if failure is not None:
            return failure
        query = parse_query(request.query, frozenset({"sort", "limit"}))
        parts = [content(each) for each in responses]
        sort, limit = query.get("sort", "appends"), int(query.get("limit", "100"))
        return document(await asyncio.to_thread(merging.activity, parts, sort, limit))

    async def _backup(self, handler: Handler, path: str, request: Request) -> Response:
        return await self._job(handler, path, request)

    async def _job(self, handler: Handler, path: str, request: Request) -> Response:
        """Begin, show or end something that every process does with its own folder."""
        responses, failure = await self._parts(handler, path, request)
        if failure is not None:
            return failure
        names = [self._owners.name, *(peer.name for peer in self._owners.peers())]
        documents: dict[str, Any] = {
            name: content(each) for name, each in zip(names, responses, strict=True)
        }
        merged = merging.job(dict(sorted(documents.items())))
        return document(merged, responses[0].status)

    async def _ready(self, handler: Handler, path: str, request: Request) -> Response:
        try:
            _, failure = await self._parts(handler, path, request)
        except PenstockError as error:
            return document({"status": "unavailable", "reason": error.detail}, 503)
        return failure or document({"status": "ok"})

    async def _metrics(self, handler: Handler, path: str, request: Request) -> Response:
        if request.method == "HEAD":
            return await answered(handler, path, request)
        responses, failure = await self._parts(handler, path, request)
        if failure is not None:
            return failure
        texts = [each.body.decode() for each in responses if isinstance(each.body, bytes)]
        merged = await asyncio.to_thread(merging.metrics, texts)  # it takes milliseconds a worker
        return Response(200, responses[0].headers, merged)


def _not_found_as_answer(handler: Handler) -> Handler:
    return partial(_answer_not_found, handler)


async def _answer_not_found(handler: Handler, path: str, request: Request) -> Response:
    try:
        return await answered(handler, path, request)
    except PenstockError as error:
        if error.status != _NOT_FOUND:
            raise
        return document({}, _NOT_FOUND)
