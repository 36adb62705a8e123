"""What handlers ask about the principal of a request, beyond what the guard has decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import NotAllowed, StreamNotFound

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.access.rules import Verb
    from penstock.http.message import Request


def principal_of(request: Request) -> Principal:
    """Return whose request it is; the guard has let it in."""
    assert request.principal is not None
    return request.principal


def require(request: Request, verb: Verb, path: str) -> None:
    """Raise NotAllowed unless the verb is allowed on a path; StreamNotFound if no verb is."""
    principal = principal_of(request)
    if not principal.may(verb, path):
        raise denied(principal, verb, path) if principal.may_any(path) else StreamNotFound.at(path)


def denied(principal: Principal, verb: Verb, place: str = "") -> NotAllowed:
    """Return the error of a principal that may not do something; no place means nowhere."""
    where = f"{verb} {place!r}" if place else f"{verb} anything"
    return NotAllowed(
        f"{principal.name!r} may not {where}: no rule of its token says {verb}:{place or '…'}.",
        verb=verb,
        path=place,
    )
