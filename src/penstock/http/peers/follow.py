"""`/v1/follow/<table>`: PUT makes a table a mirror of another server's, GET shows its progress,
DELETE ends it. `/v1/follow` lists the mirrors.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.access.rules import Verb
from penstock.errors import InvalidFollow, NotAcrossWorkers
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.protocol.json_mode import frame
from penstock.stp.notify import check_surl
from penstock.stp.server.mirrors import not_followed

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.notify_hub import NotifyHub

LIST: Final = b"/v1/follow"
PAGE_MAX: Final = 1000
"""Mirrors on one page of the list, unless the request asks for fewer."""
_LISTING: Final = frozenset({"after", "limit"})


class FollowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a PUT. `nurl` is where the source is asked to notify us of its changes, `links`
    how deep the tables that its records name are followed too."""

    surl: str
    nurl: str | None = None
    adopt: bool = False
    links: int | None = None


class Follow:
    """The resource of a mirror."""

    __slots__ = ("_check", "_depth_max", "_hub", "_public_url")

    def __init__(self, hub: NotifyHub, settings: Settings, egress: Egress) -> None:
        self._hub = hub
        self._check = egress.check
        self._public_url = settings.public_url.rstrip("/")
        self._depth_max = settings.follow_links_depth_max

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        """Return 201 for a new mirror, 200 for the same again; 409 is another source, or rows of
        another one."""
        frame(request.body, allow_empty=True)  # raises what is wrong with the JSON itself
        try:
            follow = msgspec.json.decode(request.body, type=FollowRequest)
        except msgspec.DecodeError as error:
            raise InvalidFollow(
                f'Send {{"surl": "https://…", "nurl": …, "adopt": …}} as JSON: {error}.'
            ) from None
        return self._put(path, follow, server_url(request, self._public_url))

    async def _put(self, path: str, follow: FollowRequest, base: str) -> Response:
        if follow.links is not None and not 0 <= follow.links <= self._depth_max:
            raise InvalidFollow(
                f"links is how deep records are followed: 0 to {self._depth_max} here; see "
                "follow_links_depth_max."
            )
        if follow.links and not self._hub.is_alone:
            raise NotAcrossWorkers(
                "The tables that records name may belong to other workers of this server, which "
                "cannot be followed from here. Follow each of them on its own, with links 0."
            )
        surl = check_surl(follow.surl, self._check)
        nurl = None if follow.nurl is None else self._check(follow.nurl)
        await self._hub.ready()
        created = await self._hub.mirrors.follow(
            path, surl, nurl=nurl, adopt=follow.adopt, base=base, links=follow.links
        )
        return self._show(path, 201 if created else 200)

    async def get(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        return self._show(path, 200)

    async def listing(self, path: str, request: Request) -> Response:
        """Return a page of the mirrors that the principal may follow."""
        query = parse_query(request.query, _LISTING, strict=True)
        after = query.get("after", "")
        limit = parse_count("limit", query.get("limit", str(PAGE_MAX)), maximum=PAGE_MAX)
        await self._hub.ready()
        principal = principal_of(request)
        tables = sorted(
            table
            for table in self._hub.mirrors.followers
            if table > after and principal.may(Verb.FOLLOW, table)
        )
        page = tables[:limit]
        following = page[-1] if len(tables) > limit else None
        return document({"mirrors": [self._status(each) for each in page], "next": following})

    async def delete(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        await self._hub.mirrors.unfollow(path)
        return Response(204)

    def _show(self, path: str, status: int) -> Response:
        return document(self._status(path), status)

    def _status(self, path: str) -> dict[str, Any]:
        follower = self._hub.mirrors.followers.get(path)
        if follower is None:
            raise not_followed(path)
        body = {
            "table": path,
            "surl": follower.follow.surl,
            "nurl": follower.follow.nurl or None,
            **msgspec.to_builtins(follower.status),
        }
        if follower.follow.links:
            body["links"] = self._hub.mirrors.links.status(follower.follow)
        if follower.follow.root:
            body["root"] = follower.follow.root
        return body
