"""`POST /v1/link` signs a link; `POST /v1/links/rotate` ends all links and sessions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import msgspec

from penstock.access.rules import SERVER, Verb
from penstock.errors import InvalidAccessRequest
from penstock.http.access.bodies import parse_body
from penstock.http.access.tokens import check_closed
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.protocol.globs import literal_prefix
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.access.links import Links
    from penstock.config.settings import Settings

LINK: Final = b"/v1/link"
ROTATE: Final = b"/v1/links/rotate"
METRICS: Final = f"{SERVER}/metrics"


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. `expires_in` is in seconds. `of` says which resource of the path the URL
    is of; the link itself is valid for all of them."""

    verb: str
    path: str
    expires_in: int
    of: Literal["stream", "table", "state"] = "stream"


class LinkResource:
    def __init__(self, links: Links, access: Access, settings: Settings) -> None:
        self._links = links
        self._access = access
        self._public_url = settings.public_url.rstrip("/")

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        check_closed(self._access, "A link")
        wish = parse_body(
            request, LinkRequest, '{"verb": "read", "path": "chat/42", "expires_in": 3600}'
        )
        return self._sign(wish, request, server_url(request, self._public_url))

    async def _sign(self, wish: LinkRequest, request: Request, base: str) -> Response:
        link, pattern, expires_us = await self._links.sign_link(
            principal_of(request), wish.verb, wish.path, wish.expires_in
        )
        url = base + _target(wish, pattern)
        url += f"{'&' if '?' in url else '?'}link={link}"
        content = {"url": url, "link": link, "expires_at": format_expires_at(expires_us)}
        return document(content, 201)

    async def rotate(self, path: str, request: Request) -> Response:
        check_closed(self._access, "A new key")
        await self._links.rotate()
        return Response(204)


def _target(wish: LinkRequest, pattern: str) -> str:
    """Return the path of the URL. A wildcard in it is for the reader to replace."""
    if pattern == SERVER or pattern.startswith(f"{SERVER}/"):
        if pattern == METRICS and wish.verb == Verb.READ:
            return "/metrics"
        raise InvalidAccessRequest(f"Of {SERVER} a link can only be for reading {METRICS}.")
    if wish.verb == Verb.LIST:
        return f"/v1/streams?prefix={quote(literal_prefix(pattern), safe='')}"
    return f"/v1/{wish.of}/{pattern}"
