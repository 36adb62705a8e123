"""`/v1/nurls`: GET lists the NURLs that peers have advertised, POST sends a Notify to some of them,
DELETE removes some.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import InvalidNotify, InvalidParameter
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.query import parse_count, parse_query
from penstock.protocol.json_mode import frame
from penstock.protocol.outbound import parse_url
from penstock.stp.notify import check_surl, is_event
from penstock.stp.server.nurls import Selection

if TYPE_CHECKING:
    from penstock.stp.server.notify_hub import NotifyHub

PAGE_MAX: Final = 1000
"""NURLs in one page of the list, unless the request asks for fewer."""
_SELECTION: Final = frozenset(Selection._fields)


class SendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST: the Notify, and which NURLs get it."""

    surl: str
    callbacks: dict[str, str] = {}
    nurl: str = ""
    event: str = ""
    table: str = ""
    source: str = ""


class NurlList:
    """The resource of the advertised NURLs."""

    __slots__ = ("_hub",)

    def __init__(self, hub: NotifyHub) -> None:
        self._hub = hub

    async def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _SELECTION | {"after", "limit"}, strict=True)
        after = query.pop("after", "")
        limit = parse_count("limit", query.pop("limit", str(PAGE_MAX)), maximum=PAGE_MAX)
        await self._hub.ready()
        nurls = [each for each in self._hub.nurls.all(Selection(**query)) if each.place > after]
        page = nurls[:limit]
        following = page[-1].place if len(nurls) > limit else None
        return document({"nurls": [each._asdict() for each in page], "next": following})

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        frame(request.body, allow_empty=True)  # raises what is wrong with the JSON itself
        try:
            notify = msgspec.json.decode(request.body, type=SendRequest)
        except msgspec.DecodeError as error:
            raise InvalidNotify(
                f'Send {{"event": …, "surl": "https://…"}} as JSON: {error}.'
            ) from None
        # Not checked by egress: peers connect to these URLs, this server does not.
        check_surl(notify.surl, parse_url)
        for event, nurl in notify.callbacks.items():
            if not is_event(event):
                raise InvalidNotify(f"{event[:64]!r} cannot be the name of an event.")
            parse_url(nurl)
        return self._send(notify)

    async def _send(self, notify: SendRequest) -> Response:
        await self._hub.ready()
        selection = Selection(notify.nurl, notify.event, notify.table, notify.source)
        callbacks = tuple(notify.callbacks.items())
        outcome: dict[str, Any] = await self._hub.nurls.send(selection, notify.surl, callbacks)
        return document(outcome)

    async def delete(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _SELECTION, strict=True)
        if not any(query.values()):
            raise InvalidParameter(
                "Name the NURLs to remove by `nurl`, `event`, `table` or `source`."
            )
        await self._hub.ready()
        return document({"removed": await self._hub.nurls.remove(Selection(**query))})
