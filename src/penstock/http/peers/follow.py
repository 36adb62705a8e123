"""`/v1/follow/<table>`: PUT makes a table a mirror of another server's, GET says how that goes,
DELETE ends it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidFollow
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.protocol.json_mode import frame
from penstock.stp.notify import check_surl
from penstock.stp.server.mirrors import not_followed

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.notify_hub import NotifyHub


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends. `nurl` is where the source is asked to tell us of its changes."""

    surl: str
    nurl: str | None = None
    adopt: bool = False


class Follow:
    __slots__ = ("_check", "_hub", "_public_url")

    def __init__(self, hub: NotifyHub, settings: Settings, egress: Egress) -> None:
        self._hub = hub
        self._check = egress.check
        self._public_url = settings.public_url.rstrip("/")

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        """201 for a new mirror, 200 for the same again; 409 for another source, or foreign rows."""
        frame(request.body, allow_empty=True)  # says what is wrong with the JSON itself
        try:
            follow = msgspec.json.decode(request.body, type=Document)
        except msgspec.DecodeError as error:
            raise InvalidFollow(
                f'The document is {{"surl": "https://…", "nurl": …, "adopt": …}}: {error}.'
            ) from None
        return self._put(path, follow, server_url(request, self._public_url))

    async def _put(self, path: str, follow: Document, base: str) -> Response:
        surl = check_surl(follow.surl, self._check)
        nurl = None if follow.nurl is None else self._check(follow.nurl)
        await self._hub.ready()
        created = await self._hub.mirrors.follow(
            path, surl, nurl=nurl, adopt=follow.adopt, base=base
        )
        return self._answer(path, 201 if created else 200)

    async def get(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        return self._answer(path, 200)

    async def delete(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        await self._hub.mirrors.unfollow(path)
        return Response(204)

    def _answer(self, path: str, status: int) -> Response:
        follower = self._hub.mirrors.followers.get(path)
        if follower is None:
            raise not_followed(path)
        body = {
            "table": path,
            "surl": follower.follow.surl,
            "nurl": follower.follow.nurl or None,
            **msgspec.to_builtins(follower.status),
        }
        return document(body, status)
