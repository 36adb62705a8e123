"""`/v1/tokens`: POST creates a token, GET lists them without their secrets, DELETE revokes one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.access.links import origin_of
from penstock.access.rules import Rules, parse_rules
from penstock.errors import InvalidAccessRequest, NotAllowed, ServerOpen
from penstock.http.access.bodies import parse_body
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.query import parse_count, parse_query
from penstock.limits import TIME_US_MAX, TOKEN_LIFETIME_S, TOKEN_NAME_CHARACTERS_MAX
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.access.principal import Principal
    from penstock.access.tokens import Token, TokenStore
    from penstock.clock import Clock

TOKENS: Final = b"/v1/tokens"
PREFIX: Final = b"/v1/tokens/"
PAGE_MAX: Final = 1000
"""Tokens on one page of the list, unless the request asks for fewer."""

_SECOND_US: Final = 1_000_000
_LISTING: Final = frozenset({"after", "limit"})


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. `expires_in` is in seconds; null makes a token that does not expire, and
    no value one that expires after a while."""

    allow: tuple[str, ...]
    expires_in: int | UnsetType | None = UNSET
    name: str = ""


class TokenResource:
    def __init__(self, store: TokenStore, access: Access, *, clock: Clock) -> None:
        self._store = store
        self._access = access
        self._clock = clock

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        check_closed(self._access, "A token")
        wish = parse_body(request, TokenRequest, '{"allow": ["read:chat/42/**"]}')
        rules = parse_rules(wish.allow)
        if not rules:
            raise InvalidAccessRequest("`allow` has no rule: such a token could do nothing.")
        name = wish.name.strip()
        if len(name) > TOKEN_NAME_CHARACTERS_MAX or not name.isprintable():
            raise InvalidAccessRequest(
                f"A name has at most {TOKEN_NAME_CHARACTERS_MAX} printable characters."
            )
        principal = principal_of(request)
        _check_passed_on(principal, rules)
        expires_us = self._expires_us(principal, wish.expires_in)
        return self._create(rules, name, expires_us, principal.name)

    async def _create(
        self, rules: Rules, name: str, expires_us: int | None, created_by: str
    ) -> Response:
        token, text = await self._store.create(
            rules, name=name, expires_us=expires_us, created_by=created_by
        )
        location = (b"location", PREFIX + token.id.encode())
        return document({"token": text, **self._shown(token)}, 201, location)

    def _expires_us(self, principal: Principal, expires_in: int | UnsetType | None) -> int | None:
        """Return when a new token expires: no later than the stored token that creates it."""
        latest_us = self._expiry_of(principal)
        now_us = self._clock.now_us()
        if expires_in is UNSET:
            default_us = now_us + TOKEN_LIFETIME_S * _SECOND_US
            return default_us if latest_us is None else min(default_us, latest_us)
        expires_us = None if expires_in is None else now_us + expires_in * _SECOND_US
        if expires_us is not None and not now_us < expires_us <= TIME_US_MAX:
            raise InvalidAccessRequest(
                "`expires_in` is a number of seconds from 1 on, or null for a token that does not "
                "expire."
            )
        if latest_us is not None and (expires_us is None or expires_us > latest_us):
            raise NotAllowed(
                f"{principal.name!r} expires at {format_expires_at(latest_us)}: it cannot create a "
                "token that is valid for longer."
            )
        return expires_us

    def _expiry_of(self, principal: Principal) -> int | None:
        """Return when the token of a principal expires, if it is a stored one that does."""
        token = self._store.token_of(origin_of(principal))
        return None if token is None else token.expires_us

    def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _LISTING, strict=True)
        limit = parse_count("limit", query.get("limit", str(PAGE_MAX)), maximum=PAGE_MAX)
        after = query.get("after", "")
        tokens = [each for each in self._store.all() if each.id > after]
        page = tokens[:limit]
        following = page[-1].id if len(tokens) > limit else None
        return document({"tokens": [self._shown(each) for each in page], "next": following})

    async def delete(self, path: str, request: Request) -> Response:
        token = await self._store.remove(path)
        return document(self._shown(token))

    def _shown(self, token: Token) -> dict[str, Any]:
        """Return what may be shown of a token: neither its secret nor the digest."""
        expires_us = token.expires_us
        return {
            "id": token.id,
            "name": token.name,
            "allow": token.allow,
            "created_at": format_expires_at(token.created_us),
            "created_by": token.created_by,
            "expires_at": None if expires_us is None else format_expires_at(expires_us),
            "expired": expires_us is not None and expires_us <= self._clock.now_us(),
        }


def check_closed(access: Access, what: str) -> None:
    """Raise ServerOpen at a server without access rules, where credentials would mean nothing."""
    if access.is_open:
        raise ServerOpen(
            f"{what} would protect nothing: this server lets everybody do everything. Start it "
            "with a root token first (PENSTOCK_TOKEN, or --token)."
        )


def _check_passed_on(principal: Principal, rules: Rules) -> None:
    """Raise NotAllowed unless a principal may itself do all that it allows to others."""
    if principal.is_root:
        return
    for rule in rules.all:
        if not principal.covers_rules(Rules([rule])):
            raise NotAllowed(
                f"{principal.name!r} cannot allow {rule}: none of its own rules allows all of "
                "that.",
                verb=rule.verb or "*",
                path=rule.pattern,
            )
