"""Which principal stands behind the credentials of a request.

Knows the kinds of credentials by functions that recognise them; knows nothing of requests.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.access.principal import ROOT, Principal, anonymous
from penstock.access.rules import parse_rules
from penstock.config.setting import InvalidSetting
from penstock.errors import InvalidRule, Unauthorized

if TYPE_CHECKING:
    from penstock.config.settings import Settings

CHALLENGE: Final = 'Bearer realm="penstock"'

Scheme = Callable[[str], Principal | None]
"""Returns the principal of a credential, or None if it is of another kind; Unauthorized says what
is wrong with one of its own kind."""


class Access:
    """The credentials that one server accepts.

    Without any the server is open: everybody may do everything.
    """

    __slots__ = (
        "_bearers",
        "_certificates",
        "_is_configured",
        "_root",
        "anonymous",
        "link",
        "session",
    )

    def __init__(self, settings: Settings) -> None:
        token = settings.auth_token
        self._root = None if not token else token.encode("utf-8")
        self.anonymous = anonymous(parse_rules(settings.anonymous_allow))
        self._certificates = dict(map(parse_certificate, settings.tls_principals))
        self._is_configured = bool(
            self._root is not None
            or self.anonymous.rules
            or settings.jwt_algorithms
            or self._certificates
        )
        self._bearers: list[Scheme] = []
        self.link: Callable[[str], Principal] = _no_link
        self.session: Callable[[str], Principal | None] | None = None
        """Returns the principal of a cookie; cookies are no credentials unless it is set."""

    @property
    def is_open(self) -> bool:
        """Whether there are no access rules at all."""
        return not self._is_configured

    def require(self) -> None:
        """Let nobody in without credentials. Called before the first request."""
        self._is_configured = True

    def add_bearer(self, scheme: Scheme) -> None:
        """Accept one more kind of bearer token."""
        self._bearers.append(scheme)

    def bearer(self, token: bytes) -> Principal:
        """Return the principal of a bearer token; raise Unauthorized if it is of no one's."""
        # Compared in constant time, whatever is sent.
        if self._root is not None and hmac.compare_digest(token, self._root):
            return ROOT
        text = token.decode("latin-1")
        for scheme in self._bearers:
            principal = scheme(text)
            if principal is not None:
                return principal
        raise unauthorized("The token is not one of this server's.")

    def certificate(self, names: Iterable[str]) -> Principal | None:
        """Return the principal of a verified client certificate with these names, if there is one;
        the first name that is known counts."""
        return next(
            (self._certificates[each] for each in names if each in self._certificates), None
        )


def parse_certificate(text: str) -> tuple[str, Principal]:
    """Return the name of a certificate and its principal, of a text of tls_principals."""
    # From the end: a name may have the form of a URI, with `=` and `:`; a rule has no `=`.
    name, equals, rules = text.rpartition("=")
    if not equals or not name.strip() or not rules.strip():
        raise InvalidSetting(
            f"Setting tls_principals: {text!r} is not a name, `=` and rules, such as "
            "worker=append:jobs/**."
        )
    try:
        parsed = parse_rules(rules.split())
    except InvalidRule as error:
        raise InvalidSetting(f"Setting tls_principals: {error.detail}") from None
    name = name.strip()
    return name, Principal(name, parsed, id=f"certificate:{name}")


def _no_link(text: str) -> Principal:
    raise unauthorized("This server has signed no links.")


def unauthorized(reason: str) -> Unauthorized:
    """Return the error of a request whose credentials are wrong or missing."""
    return Unauthorized(
        f"{reason} Send a valid one as `Authorization: Bearer <token>`.",
        WWW_Authenticate=CHALLENGE,
    )
