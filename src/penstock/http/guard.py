"""Which requests are let in: host and origin, who sends it and what they may do, rate limit, size
and coding of the body.

Knows requests, endpoints and settings; knows nothing of streams or of sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.access.authenticator import unauthorized
from penstock.access.principal import ROOT
from penstock.access.rules import Verb
from penstock.errors import (
    BodyTooLarge,
    PenstockError,
    StreamNotFound,
    UnsupportedCoding,
)
from penstock.http.credentials import (
    bearer_token,
    check_same_origin,
    session_cookie,
    take_link,
)
from penstock.http.message import Request, Response
from penstock.http.origins import Origins
from penstock.http.permission import denied
from penstock.http.rates import Rates, announced, counts_requests

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.http.endpoint import Endpoint


class Guard:
    """Decides on the head of a request alone. One per App; the App calls it in `refuse`."""

    __slots__ = ("_access", "_body_bytes_max", "_monotonic", "_public_url", "origins", "rates")

    def __init__(
        self,
        settings: Settings,
        access: Access,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origins = Origins(settings)
        self._access = access
        self._monotonic = monotonic
        self._body_bytes_max = settings.body_bytes_max
        self._public_url = settings.public_url.rstrip("/")
        counts = counts_requests(settings)
        self.rates = Rates(settings, monotonic=monotonic) if counts else None

    def refuse(self, head: Request) -> Response | None:
        """Return a preflight response or raise 403, 413, 415, 421 or 429; None lets it in."""
        self.origins.check(head)
        if head.method == "OPTIONS":
            return self.origins.preflight(head)
        rates = self.rates
        if rates is not None:
            rates.take_request(head)
        length = announced(head)
        if length is not None and length > self._body_bytes_max:
            raise too_large(self._body_bytes_max)
        if b"content-encoding" in head.headers:
            _check_coding(head.headers[b"content-encoding"])
        if rates is not None:
            rates.take_bytes(head)
        return None

    def admit(self, head: Request, endpoint: Endpoint, path: str) -> None:
        """Set the principal of a request; raise Unauthorized, NotAllowed or StreamNotFound unless
        it may use the endpoint.

        The decision rests on paths and rules alone, so that it is the same whether or not there is
        a stream at the path.
        """
        link = take_link(head)
        need = endpoint.needs(head)
        verb = need.verb
        if need.is_public:
            head.principal = self._recognise(head, link)
            return
        principal = head.principal = self._identify(head, link)
        if principal.is_root:
            return
        if self.rates is not None:
            self.rates.take_principal(head, principal)
        if verb is None:
            if principal.is_anonymous and not (need.ruled and principal.rules):
                raise unauthorized("No token was sent.")
            return
        if need.somewhere:
            if not principal.may_somewhere(verb):
                raise self._denied(principal, verb)
        elif need.resource is not None:
            if not principal.may(verb, need.resource):
                raise self._denied(principal, verb, need.resource)
        elif not principal.may(verb, path):
            if verb is Verb.CREATE or principal.may_any(path):
                raise self._denied(principal, verb, path)
            # Whoever may do nothing at all there gets what they would get if nothing were there.
            raise self._unseen(principal, path)

    def check_still(self, request: Request) -> None:
        """Raise Unauthorized if the principal of a request has ended since it was let in."""
        principal = request.principal
        if principal is not None and principal.until_s <= self._monotonic():
            raise unauthorized("The token has ended meanwhile.")

    def unknown_route(self, head: Request, error: PenstockError) -> PenstockError:
        """Return what a request to no route gets: nobody learns of routes without credentials."""
        try:
            principal = self._identify(head, take_link(head))
        except PenstockError as wrong:
            return wrong
        if principal is self._access.anonymous and not principal.rules:
            return unauthorized("No token was sent.")
        return error

    def _identify(self, head: Request, link: str | None) -> Principal:
        """Return whose request it is; raise Unauthorized for credentials that are not valid."""
        if head.principal is not None:
            return head.principal  # The embedding application has said so.
        access = self._access
        if access.is_open:
            return ROOT
        header = head.headers.get(b"authorization")
        if header is not None:
            principal = access.bearer(bearer_token(header))
        elif link is not None:
            principal = access.link(link)
        else:
            return self._certified(head) or self._session(head)
        if principal.until_s <= self._monotonic():
            raise unauthorized("The token has expired.")
        return principal

    def _certified(self, head: Request) -> Principal | None:
        """Return the principal of the client's certificate, if there is one."""
        certificate = head.certificate
        return None if certificate is None else self._access.certificate(certificate.names)

    def _session(self, head: Request) -> Principal:
        """Return the principal of a cookie; anonymous if there is none that is valid."""
        access = self._access
        if access.session is not None:
            text = session_cookie(head, self._public_url)
            principal = None if text is None else access.session(text)
            if principal is not None:
                check_same_origin(head, self._public_url)
                return principal
        return access.anonymous

    def _recognise(self, head: Request, link: str | None) -> Principal:
        """Return whose request it is; anonymous for credentials that are not the server's."""
        try:
            return self._identify(head, link)
        except PenstockError:
            return self._access.anonymous

    def _unseen(self, principal: Principal, path: str) -> PenstockError:
        if principal is self._access.anonymous:
            return unauthorized("No token was sent.")
        return StreamNotFound.at(path)

    def _denied(self, principal: Principal, verb: Verb, place: str = "") -> PenstockError:
        if principal is self._access.anonymous:
            return unauthorized("No token was sent.")
        return denied(principal, verb, place)


def _check_coding(value: bytes) -> None:
    """Refuse a body in a coding: stored as it is, no reader would know of the coding."""
    if value.strip().lower() not in (b"", b"identity"):
        raise UnsupportedCoding(
            "The server does not decode bodies; send the data itself, without Content-Encoding.",
            Accept_Encoding="identity",
        )


def too_large(body_bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"A body may have at most {body_bytes_max} bytes (body_bytes_max). Split it into several "
        "appends."
    )
