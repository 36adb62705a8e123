"""Where a request carries its credentials: the Authorization header, or a signed link in its
query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.access.authenticator import unauthorized

if TYPE_CHECKING:
    from penstock.http.message import Request

LINK: Final = b"link"
_LINK: Final = re.compile(rb"(?:^|&)link=([^&]*)")


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
