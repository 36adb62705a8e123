"""Where each route is answered when several processes serve together.

One table, compared with the router by a test: a new route has to say where it belongs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Final, NamedTuple

from penstock.stp.server.nurls import Advertised

STREAM: Final = "/v1/stream/{path}"
SUBSCRIPTION: Final = "/v1/stream/__ds/subscriptions/{path}"


class Place(Enum):
    """Who answers a request."""

    PATH = auto()
    """The owner of the path."""
    TABLE = auto()
    """The owner of the stream that a table is of: that of its path, or of the path above it."""
    SUBSCRIPTION = auto()
    """The owner of a subscription's id."""
    FIRST = auto()
    """The first of all processes, which keeps what there is once for the whole server."""
    HERE = auto()
    """Whoever was asked: all give the same answer."""
    PAGES = auto()
    """Everybody: a list, put together from the parts of all."""
    ALL = auto()
    """Everybody: an answer of its own kind, put together from the parts of all."""


class Page(NamedTuple):
    """A list that comes in pages: the member with the items, what of them they are ordered by, and
    how many a page has unless the request says so."""

    items: str
    place: Callable[[Any], str]
    limit: int


PLACES: Final[dict[str, Place]] = {
    STREAM: Place.PATH,
    **{
        f"{STREAM}/__ds/{name}": Place.PATH
        for name in ("trim", "compact", "retention", "successor", "producers", "forks")
    },
    "/v1/schema/{path}": Place.PATH,
    "/v1/state/{path}": Place.PATH,
    "/v1/proxy/{path}": Place.PATH,
    "/v1/follow/{path}": Place.PATH,
    "/v1/table/{path}": Place.TABLE,
    SUBSCRIPTION: Place.SUBSCRIPTION,
    "/v1/tokens": Place.FIRST,
    "/v1/tokens/{path}": Place.FIRST,
    "/v1/link": Place.FIRST,
    "/v1/links/rotate": Place.FIRST,
    "/v1/session": Place.FIRST,
    "/v1/audit": Place.FIRST,
    "/v1/pipelines": Place.FIRST,
    "/v1/pipelines/{path}": Place.FIRST,
    "/v1/streams": Place.PAGES,
    "/v1/schema": Place.PAGES,
    "/v1/follow": Place.PAGES,
    "/v1/stream/__ds/subscriptions": Place.PAGES,
    "/v1/nurls": Place.ALL,
    "/v1/notify/{path}": Place.ALL,
    "/v1/streams/live": Place.ALL,
    "/v1/stream/__ds/jwks.json": Place.ALL,
    "/v1/stream/__ds/rotate-key": Place.ALL,
    "/v1/activity": Place.ALL,
    "/v1/backup": Place.ALL,
    "/v1/scrub": Place.ALL,
    "/readyz": Place.ALL,
    "/metrics": Place.ALL,
    **dict.fromkeys(
        (
            "/",
            "/healthz",
            "/v1/cluster",
            "/console",
            "/console/",
            "/console/{path}",
            "/docs",
            "/docs/api",
            "/docs/style.css",
            "/problems",
            "/problems/{path}",
            "/openapi.json",
        ),
        Place.HERE,
    ),
}

PAGES: Final[dict[str, Page]] = {
    "/v1/streams": Page("streams", itemgetter("path"), 100),
    "/v1/schema": Page("streams", itemgetter("path"), 1000),
    "/v1/follow": Page("mirrors", itemgetter("table"), 1000),
    "/v1/stream/__ds/subscriptions": Page("subscriptions", itemgetter("id"), 100),
    "/v1/nurls": Page("nurls", lambda item: Advertised(**item).place, 1000),
}
