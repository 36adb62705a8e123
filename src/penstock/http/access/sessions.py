"""`/v1/session`: GET says who the client is and what it may do, POST turns the token of a request
into a cookie for pages of the same origin, DELETE removes the cookie."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isinf
from typing import TYPE_CHECKING, Final

from penstock.errors import NotAllowed, RouteNotFound
from penstock.http.access.tokens import check_closed
from penstock.http.credentials import cookie_name
from penstock.http.documents import document
from penstock.http.headers import NO_STORE, server_url
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.access.links import Links
    from penstock.access.principal import Principal
    from penstock.clock import Clock
    from penstock.config.settings import Settings

SESSION: Final = b"/v1/session"
_SECOND_US: Final = 1_000_000


class SessionResource:
    def __init__(
        self,
        links: Links,
        access: Access,
        settings: Settings,
        *,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._access = access
        self._clock = clock
        self._monotonic = monotonic
        self._is_on = settings.cookies
        self._public_url = settings.public_url.rstrip("/")

    def get(self, path: str, request: Request) -> Response:
        principal = principal_of(request)
        return document(
            {
                "principal": principal.name,
                "rules": [str(rule) for rule in principal.rules.all],
                "expires_at": self._expires_at(principal),
                "open": self._access.is_open,
                "anonymous": principal.is_anonymous,
                "cookies": self._is_on,
            }
        )

    def _expires_at(self, principal: Principal) -> str | None:
        if isinf(principal.until_s):
            return None
        # Two clocks are compared, so that no more than the second is known.
        left_s = principal.until_s - self._monotonic()
        end_s = round(self._clock.now_us() / _SECOND_US + left_s)
        return format_expires_at(end_s * _SECOND_US)

    async def post(self, path: str, request: Request) -> Response:
        self._check_on()
        check_closed(self._access, "A cookie")
        if b"authorization" not in request.headers:
            raise NotAllowed("A session begins with a token in an Authorization header.")
        session, expires_us = await self._links.sign_session(principal_of(request))
        age_s = max(expires_us - self._clock.now_us(), 0) // _SECOND_US
        cookie = self._cookie(request, session, age_s)
        return document({"expires_at": format_expires_at(expires_us)}, 201, cookie)

    def delete(self, path: str, request: Request) -> Response:
        self._check_on()
        return Response(204, [self._cookie(request, "", 0), NO_STORE])

    def _check_on(self) -> None:
        if not self._is_on:
            raise RouteNotFound("Cookies are off at this server (see the setting cookies).")

    def _cookie(self, request: Request, value: str, age_s: int) -> tuple[bytes, bytes]:
        url = server_url(request, self._public_url)
        secure = "; Secure" if url.startswith("https://") else ""
        text = (
            f"{cookie_name(url)}={value}; Path=/; Max-Age={age_s}; HttpOnly; "
            f"SameSite=Strict{secure}"
        )
        return b"set-cookie", text.encode("ascii")
