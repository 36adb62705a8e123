"""Where a request carries its credentials: the Authorization header, a signed link in its query,
or a cookie."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.access.authenticator import unauthorized
from penstock.errors import OriginRefused
from penstock.http.headers import server_url

if TYPE_CHECKING:
    from penstock.http.message import Request

LINK: Final = b"link"
_LINK: Final = re.compile(rb"(?:^|&)link=([^&]*)")
COOKIE: Final = "penstock"
SECURE_COOKIE: Final = "__Host-penstock"
"""Browsers let nobody but this host itself set a cookie of such a name, and only over https."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def bearer_token(header: bytes) -> bytes:
    """Return the token of an Authorization header."""
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"bearer":
        raise unauthorized("Only bearer tokens are accepted.")
    return token.strip()


def take_link(head: Request) -> str | None:
    """Remove the signed link from the query of a request and return it; None if there is none.

    Handlers never see it, and neither does what they log.
    """
    if LINK not in head.query:
        return None
    links = _LINK.findall(head.query)
    if not links:
        return None
    head.query = _LINK.sub(b"", head.query).lstrip(b"&")
    if len(links) > 1:
        raise unauthorized("The URL has several links.")
    return str(links[0].decode("latin-1"))


def cookie_name(url: str) -> str:
    """Return the name of the cookie at a server whose clients know it by `url`."""
    return SECURE_COOKIE if url.startswith("https://") else COOKIE


def session_cookie(head: Request, public_url: str) -> str | None:
    """Return the session that a request carries; None if it carries none, or more than one.

    A second one may come from a neighbour of this host, who can set cookies for it.
    """
    header = head.headers.get(b"cookie")
    if header is None:
        return None
    name = cookie_name(server_url(head, public_url))
    # Several Cookie headers are joined by a comma, which no session contains.
    pairs = (part.partition("=") for part in header.decode("latin-1").replace(",", ";").split(";"))
    sessions = [value.strip() for key, _, value in pairs if key.strip() == name]
    return sessions[0] if len(sessions) == 1 else None


def check_same_origin(head: Request, public_url: str) -> None:
    """Raise OriginRefused for a request that changes something by a cookie, unless the browser says
    that it comes from a page of this server: cookies come along whoever sends a request."""
    headers = head.headers
    if head.method in _SAFE or headers.get(b"sec-fetch-site") == b"same-origin":
        return
    own = server_url(head, public_url)
    origin = headers.get(b"origin", b"").decode("latin-1")
    if b"sec-fetch-site" in headers or not own or _origin(origin) != _origin(own):
        raise OriginRefused(
            f"{head.method} with a cookie must come from a page of this server: a browser says so "
            "by Origin or Sec-Fetch-Site. Other clients send the token in an Authorization header."
        )


def _origin(url: str) -> str:
    parts = urlsplit(url.lower())
    default = ":443" if parts.scheme == "https" else ":80"
    return f"{parts.scheme}://{parts.netloc.removesuffix(default)}"
