"""Endpoints: a handler, and what a principal needs to be let in to it.

Where a route is registered it says who may use it; a route that says nothing cannot be written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from penstock.access.rules import SERVER, Verb
from penstock.http.message import Request, Response
from penstock.http.route_stats import RouteStats

Answer = Response | Awaitable[Response]
Handler = Callable[[str, Request], Answer]


class Need(NamedTuple):
    """A verb, and where it is needed: on the path of the request, on `resource`, or `somewhere`,
    where the handler asks for the rest. Without a verb everybody is let in, or everybody who is
    `authenticated`, or everybody for whom there are rules, which anonymous requests may have."""

    verb: Verb | None
    resource: str | None = None
    somewhere: bool = False
    authenticated: bool = False
    ruled: bool = False

    @property
    def is_public(self) -> bool:
        return self.verb is None and not (self.authenticated or self.ruled)


PUBLIC: Final = Need(None)
"""Everybody is let in. The handler may have credentials of its own."""


class Endpoint(NamedTuple):
    """`need` may depend on the head of a request, and so may `action`, the name under which the
    audit log has what the handler does; without one it is not audited. The router adds `stats`."""

    handler: Handler
    need: Need | Callable[[Request], Need]
    action: str | Callable[[Request], str] = ""
    stats: RouteStats | None = None

    def needs(self, request: Request) -> Need:
        return self.need if isinstance(self.need, Need) else self.need(request)

    def audits(self, request: Request) -> str:
        """Return the action of a request; an empty text if it is not audited."""
        return self.action if isinstance(self.action, str) else self.action(request)


Methods = Mapping[str, Endpoint]


def public(handler: Handler) -> Endpoint:
    return Endpoint(handler, PUBLIC)


def on_path(verb: Verb, handler: Handler) -> Endpoint:
    """Return the endpoint of a stream, a table or something else that has a path of its own."""
    return Endpoint(handler, Need(verb))


def on_server(verb: Verb, name: str, handler: Handler) -> Endpoint:
    """Return the endpoint of a resource that belongs to the server as a whole."""
    return Endpoint(handler, Need(verb, f"{SERVER}/{name}"))


def somewhere(verb: Verb, handler: Handler) -> Endpoint:
    """Return the endpoint of a handler that asks itself where the verb is allowed."""
    return Endpoint(handler, Need(verb, somewhere=True))


def audited(action: str | Callable[[Request], str], endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose use is written to the audit log."""
    return endpoint._replace(action=action)


def authenticated(handler: Handler) -> Endpoint:
    """Return the endpoint of a handler for whoever has credentials; it asks for the rest."""
    return Endpoint(handler, Need(None, authenticated=True))


def ruled(handler: Handler) -> Endpoint:
    """Return the endpoint of a handler for whoever may do something."""
    return Endpoint(handler, Need(None, ruled=True))


def readable(get: Endpoint) -> Methods:
    """Return the methods of a resource that is only read."""
    return {"GET": get, "HEAD": get}
