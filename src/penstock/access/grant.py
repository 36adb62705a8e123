"""What an embedding application says about a request: whose it is, and what they may do."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.access.principal import Principal
from penstock.access.rules import parse_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A principal of the embedding application: rules such as `read:chat/42/**`.

    After `expires_in_s` live responses end, and their clients ask again.
    """

    name: str
    allow: tuple[str, ...] = ()
    expires_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """The head of a request that an embedding application is asked about.

    `path` is percent-encoded and begins below the mount point. Header names are lower-case. `scope`
    is the ASGI scope, with what the application's middleware has put there.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    peer: str
    scope: Mapping[str, Any]


Authorize = Callable[[AccessRequest], "Grant | Awaitable[Grant | None] | None"]
"""Returns the grant of a request, or None if it carries credentials of the server, or none at all.
Unauthorized and NotAllowed refuse the request."""


def principal_for(grant: Grant) -> Principal:
    """Return the principal of a grant; the same one for equal grants that do not expire."""
    if grant.expires_in_s is None:
        return _compiled(grant.name, tuple(grant.allow))
    until_s = time.monotonic() + grant.expires_in_s
    return Principal(grant.name, parse_rules(grant.allow), until_s=until_s)


@lru_cache(maxsize=1024)
def _compiled(name: str, allow: tuple[str, ...]) -> Principal:
    return Principal(name, parse_rules(allow))
