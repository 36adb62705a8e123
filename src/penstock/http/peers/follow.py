"""`/v1/follow/<table>`: PUT makes a table a mirror of another server's, GET shows its progress,
DELETE ends it. `/v1/follow` lists the mirrors.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.access.rules import Verb
from penstock.errors import InvalidFollow
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
        surl = check_surl(follow.surl, self._check)
        nurl = None if follow.nurl is None else self._check(follow.nurl)
        await self._hub.ready()
        created = await self._hub.mirrors.follow(
            path, surl, nurl=nurl, adopt=follow.adopt, base=base, links=follow.links
        )
        return await self._show(path, 201 if created else 200)

    async def get(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        return await self._show(path, 200)

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
        return document({"mirrors": await self._statuses(page), "next": following})

    async def delete(self, path: str, request: Request) -> Response:
        await self._hub.ready()
        await self._hub.mirrors.unfollow(path)
        return Response(204)

    async def _show(self, path: str, status: int) -> Response:
        statuses = await self._statuses([path])
        if not statuses:
            raise not_followed(path)
        return document(statuses[0], status)

    async def _statuses(self, paths: list[str]) -> list[dict[str, Any]]:
        """Return the status of each of some mirrors, but for those that have ended."""
        mirrors = self._hub.mirrors
        followers = [mirrors.followers[path] for path in paths if path in mirrors.followers]
        links = await mirrors.link_status(each.follow for each in followers)
        result = []
        for follower in followers:
            follow = follower.follow
            body = {
                "table": follow.table,
                "surl": follow.surl,
                "nurl": follow.nurl or None,
                **msgspec.to_builtins(follower.status),
            }
            if follow.table in links:
                body["links"] = links[follow.table]
            if follow.root:
                body["root"] = follow.root
            result.append(body)
        return result
