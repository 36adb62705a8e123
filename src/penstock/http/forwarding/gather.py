"""Answers that are put together from the parts of all processes.

Every part is the answer of one process for what it owns; a part that is missing is an error, never
a gap.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.http.documents import document
from penstock.http.forwarding.forwarder import kept
from penstock.http.forwarding.places import Page
from penstock.http.message import Request, Response
from penstock.http.query import parse_query

if TYPE_CHECKING:
    from penstock.http.endpoint import Handler
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners


Later = Callable[[str, Request], Awaitable[Response]]


class Gatherer:
    """Asks this process and all peers the same."""

    __slots__ = ("_forwarder", "_owners")

    def __init__(self, owners: Owners, forwarder: Forwarder) -> None:
        self._owners = owners
        self._forwarder = forwarder

    async def ask(self, handler: Handler, path: str, request: Request) -> list[Response]:
        """Return the answers of all, that of this process first; NotOwner if one is missing."""
        peers = [
            self._forwarder.forward(peer, request, is_local=True) for peer in self._owners.peers()
        ]
        # A copy for this process: handlers may take the request apart.
        results = await asyncio.gather(
            answered(handler, path, kept(request)), *peers, return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                _close([each for each in results if isinstance(each, Response)])
                raise result
        return [each for each in results if isinstance(each, Response)]


def later(work: Later, path: str, request: Request) -> Awaitable[Response]:
    """Begin an answer that takes its time, with a request that stays whole."""
    return work(path, kept(request))


async def answered(handler: Handler, path: str, request: Request) -> Response:
    """Return the answer of a handler of this process, whenever it comes."""
    answer = handler(path, request)
    return await answer if inspect.isawaitable(answer) else answer


def failed(responses: Iterable[Response]) -> Response | None:
    """Return the first answer that is no success."""
    return next((each for each in responses if each.status >= 400), None)


def content(response: Response) -> Any:
    """Return the JSON document of an answer."""
    assert isinstance(response.body, bytes)
    return msgspec.json.decode(response.body)


def merged_page(page: Page, request: Request, responses: list[Response]) -> Response:
    """Return one page of a list that all processes have a part of, in the order of its keys."""
    failure = failed(responses)
    if failure is not None:
        return failure
    parts = [content(each) for each in responses]
    limit = page.limit
    text = parse_query(request.query, frozenset({"limit"})).get("limit", "")
    if text.isdigit():
        limit = int(text)
    items: list[Any] = []
    for part in parts:
        # What peers keep alike is shown once.
        items += (
            [item for item in part[page.items] if item not in items] if items else part[page.items]
        )
    items.sort(key=page.place)
    # What is after the end of one part may be in the rest of it that was not asked for yet.
    ends = [part["next"] for part in parts if part["next"] is not None]
    following = min(ends, default=None)
    if following is not None:
        items = [item for item in items if page.place(item) <= following]
    if len(items) > limit:
        items = items[:limit]
        following = page.place(items[-1])
    return document({page.items: items, "next": following})


def _close(responses: Iterable[Response]) -> None:
    for response in responses:
        if not isinstance(response.body, bytes) and hasattr(response.body, "close"):
            response.body.close()
