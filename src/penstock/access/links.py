"""Signed links and sessions: credentials that the server makes out of others, and does not store.

A link is a text for the query of a URL. It carries one verb, one pattern of paths and its expiry,
and ends with the token of whoever made it. A session is the same for a cookie, and may do what its
token may. One key signs both; it is stored beside the tokens. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.access.authenticator import unauthorized
from penstock.access.principal import ROOT, Principal
from penstock.access.rules import Rule, Rules, Verb
from penstock.errors import InvalidAccessRequest, InvalidPath, NotAllowed
from penstock.protocol.globs import parse_pattern

if TYPE_CHECKING:
    from penstock.access.tokens import TokenStore
    from penstock.clock import Clock
    from penstock.config.settings import Settings

KEY: Final = "link-key"
"""The meta value with the key that signs."""
LINK_VERBS: Final = (Verb.READ, Verb.LIST, Verb.APPEND, Verb.CREATE, Verb.DELETE)
"""What a link may carry. What the other verbs make would outlive the link."""
SESSION: Final = "session"
CHARACTERS_MAX: Final = 4096
"""Longer texts are refused before any work."""
PRINCIPALS_MAX: Final = 4096
"""Links and sessions whose principal is in memory."""

_VERSION: Final = "1"
_DOMAIN: Final = b"penstock signed link\n"
_KEY_BYTES: Final = 32
_ROOT: Final = "root"
_OTHER: Final = "other"
_TOKEN: Final = "token:"  # noqa: S105 - the begin of the id of a principal
_SECOND_US: Final = 1_000_000


class Content(NamedTuple):
    """What a text says. `verb` of a session is `session`, and it has no pattern."""

    verb: str
    expires_us: int
    issuer: str
    pattern: str

    def encode(self) -> str:
        """Return the text of it. None of its parts has a space."""
        expires_s = self.expires_us // _SECOND_US
        fields = (_VERSION, self.verb, str(expires_s), self.issuer, self.pattern)
        return _b64(" ".join(fields).encode("ascii"))


def decode(text: str) -> Content | None:
    """Return what a text says whose signature is right; None if it is of another version."""
    padded = text + "=" * (-len(text) % 4)
    fields = base64.urlsafe_b64decode(padded).decode("ascii").split(" ")
    if len(fields) != 5 or fields[0] != _VERSION:
        return None
    return Content(fields[1], int(fields[2]) * _SECOND_US, fields[3], fields[4])


class SigningKey:
    """The key, and until when what it has signed is valid: a key that is replaced ends at once."""

    __slots__ = ("until_s", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.until_s = inf


class SignedPrincipal(Principal):
    """The principal of a link or a session. It ends with its own expiry, with its issuer, and with
    the key, whichever is first."""

    __slots__ = ("_key", "_own_until_s", "issuer")

    def __init__(
        self,
        name: str,
        rules: Rules,
        *,
        id: str,
        key: SigningKey,
        issuer: Principal | None,
        is_root: bool = False,
        is_link: bool = True,
    ) -> None:
        self._key = key
        self.issuer = issuer
        super().__init__(name, rules, id=id, is_root=is_root)
        self.is_link = is_link

    @property
    def until_s(self) -> float:
        issuer_s = inf if self.issuer is None else self.issuer.until_s
        return min(self._own_until_s, issuer_s, self._key.until_s)

    @until_s.setter
    def until_s(self, until_s: float) -> None:
        self._own_until_s = until_s


class Links:
    """Signs and recognises links and sessions."""

    def __init__(
        self,
        store: TokenStore,
        settings: Settings,
        *,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._root = (settings.auth_token or "").encode()
        self._lifetime_max_s = settings.link_lifetime_max_s
        self._session_s = settings.session_lifetime_s
        self._key: SigningKey | None = None
        self._changing = asyncio.Lock()
        self._principals: dict[str, tuple[int, SignedPrincipal]] = {}

    def load(self) -> None:
        """Read the key back after a start."""
        value = self._store.meta(KEY)
        self._key = SigningKey(value) if value else None

    @property
    def key(self) -> bytes | None:
        """The key that links are signed with, once there is one."""
        return None if self._key is None else self._key.value

    def adopt(self, value: bytes | None) -> None:
        """Take over the key of another process, which stores it; what another key signed ends."""
        if value == self.key:
            return
        replaced, self._key = self._key, SigningKey(value) if value else None
        self._principals.clear()
        if replaced is not None:
            replaced.until_s = 0.0

    # -- signing

    async def sign_link(
        self, principal: Principal, verb: str, path: str, lifetime_s: float
    ) -> tuple[str, str, int]:
        """Return a link, the pattern that it is for in canonical form, and its expiry.

        Nobody can sign more than they may do, nor for longer than their own token is valid.
        """
        pattern = self._check(verb, path, lifetime_s)
        if isinstance(principal, SignedPrincipal) and principal.is_link:
            raise NotAllowed("A link cannot make other links: that takes a token.")
        if not principal.covers(Verb(verb), pattern):
            raise NotAllowed(
                f"{principal.name!r} may not {verb} {pattern!r}, and so cannot sign a link for it: "
                "no single rule of its token allows all of that.",
                verb=verb,
                path=pattern,
            )
        expires_us = self._expires_us(principal, lifetime_s)
        content = Content(verb, expires_us, self._issuer_of(principal), pattern)
        return await self._sign(content), pattern, expires_us

    async def sign_session(self, principal: Principal) -> tuple[str, int]:
        """Return a session of a stored token, or of the root token, and its expiry."""
        issuer = self._issuer_of(principal)
        if isinstance(principal, SignedPrincipal) or issuer == _OTHER:
            raise NotAllowed(
                "A session takes the root token or one that `penstock token create` has made, in "
                "an Authorization header."
            )
        expires_us = self._expires_us(principal, self._session_s)
        return await self._sign(Content(SESSION, expires_us, issuer, "-")), expires_us

    def _check(self, verb: str, path: str, lifetime_s: float) -> str:
        """Return the pattern of a link that may be signed."""
        if verb not in LINK_VERBS:
            raise InvalidAccessRequest(
                f"A link carries one of {', '.join(LINK_VERBS)}, not {verb[:64]!r}. Make a token "
                "for what remains when a link has expired."
            )
        if not 1 <= lifetime_s <= self._lifetime_max_s:
            raise InvalidAccessRequest(
                f"A link is valid for 1 to {self._lifetime_max_s:.0f} seconds here "
                "(link_lifetime_max_s). Make a token for longer."
            )
        try:
            return parse_pattern(path)
        except InvalidPath as error:
            raise InvalidAccessRequest(error.detail) from None

    def _expires_us(self, principal: Principal, lifetime_s: float) -> int:
        """Return the expiry in whole seconds, as they stand in the text."""
        now_us = self._clock.now_us()
        expires_us = now_us + int(lifetime_s * _SECOND_US)
        token = self._store.token_of(origin_of(principal))
        if token is not None:
            expires_us = min(expires_us, token.expires_us or expires_us)
        elif principal.until_s != inf:
            left_us = int((principal.until_s - self._monotonic()) * _SECOND_US)
            expires_us = min(expires_us, now_us + left_us)
        return expires_us // _SECOND_US * _SECOND_US

    def _issuer_of(self, principal: Principal) -> str:
        """Return the issuer as a link names it. Of other credentials, such as a JWT, only the
        expiry is known, and the link does not outlast it."""
        principal = origin_of(principal)
        if principal is ROOT:
            return _ROOT
        return principal.id if self._store.token_of(principal) is not None else _OTHER

    async def _sign(self, content: Content) -> str:
        text = content.encode()
        if self._key is None:
            await self._renew_key(None)
        assert self._key is not None
        return f"{text}.{self._signature(self._key, content.issuer, text)}"

    def _signature(self, key: SigningKey, issuer: str, text: str) -> str:
        value = key.value
        if issuer == _ROOT:
            # Links of the root token end when it is changed. Its digest is not in their text,
            # where it could be guessed at.
            value = hmac.digest(value, b"root\n" + self._root, "sha256")
        return _b64(hmac.digest(value, _DOMAIN + text.encode("ascii"), "sha256"))

    # -- the key

    async def rotate(self) -> None:
        """Replace the key: all links and sessions end."""
        await self._renew_key(self._key)

    async def _renew_key(self, replaced: SigningKey | None) -> None:
        async with self._changing:
            if self._key is not replaced:
                return  # Somebody else was faster.
            await self._store.ensure()
            value = secrets.token_bytes(_KEY_BYTES)
            # Durable before it signs: after a crash nobody could tell its links from others.
            await self._store.set_meta(KEY, value)
            self._key = SigningKey(value)
            self._principals.clear()
            if replaced is not None:
                replaced.until_s = 0.0

    # -- recognising

    def link(self, text: str) -> Principal:
        """Return the principal of a link; raise Unauthorized if it is not valid."""
        principal = self._recognise(text)
        if principal is None or not principal.is_link:
            raise unauthorized("The link is not one of this server's, or it was revoked.")
        if principal.until_s <= self._monotonic():
            raise unauthorized("The link has expired.")
        return principal

    def session(self, text: str) -> Principal | None:
        """Return the principal of a session; None if it is not valid."""
        principal = self._recognise(text)
        if principal is None or principal.is_link or principal.until_s <= self._monotonic():
            return None
        return principal

    def _recognise(self, text: str) -> SignedPrincipal | None:
        """Return the principal of a text, with its expiry by the wall clock."""
        known = self._principals.get(text)
        if known is None:
            known = self._verified(text)
            if known is None:
                return None
            if len(self._principals) >= PRINCIPALS_MAX:
                self._principals.clear()
            self._principals[text] = known
        expires_us, principal = known
        left_us = expires_us - self._clock.now_us()
        principal.until_s = self._monotonic() + left_us / _SECOND_US if left_us > 0 else 0.0
        return principal

    def _verified(self, text: str) -> tuple[int, SignedPrincipal] | None:
        key = self._key
        body, _, signature = text.partition(".")
        if key is None or len(text) > CHARACTERS_MAX or not text.isascii():
            return None
        # The text itself is signed, and compared as text: nothing is decoded before, and there is
        # one spelling of each. Which key it is depends on the issuer, so both are tried.
        for issuer in (_OTHER, _ROOT):
            expected = self._signature(key, issuer, body)
            if hmac.compare_digest(expected.encode(), signature.encode()):
                content = decode(body)
                if content is None or (content.issuer == _ROOT) is not (issuer == _ROOT):
                    return None
                return self._principal(key, text, content)
        return None

    def _principal(
        self, key: SigningKey, text: str, content: Content
    ) -> tuple[int, SignedPrincipal] | None:
        issuer: Principal | None = None
        if content.issuer == _ROOT:
            if not self._root:
                return None
            issuer = ROOT
        elif content.issuer.startswith(_TOKEN):
            issuer = self._store.principal(content.issuer.removeprefix(_TOKEN))
            if issuer is None:
                return None
        if content.verb == SESSION:
            return None if issuer is None else (content.expires_us, _session(key, issuer))
        if content.verb not in LINK_VERBS:
            return None
        principal = SignedPrincipal(
            f"link of {content.issuer}",
            Rules([Rule(Verb(content.verb), content.pattern)]),
            id=f"link:{sha256(text.encode()).hexdigest()[:16]}",
            key=key,
            issuer=issuer,
        )
        return content.expires_us, principal


def origin_of(principal: Principal) -> Principal:
    """Return the principal whose link or session it is; the principal itself if it is neither."""
    if isinstance(principal, SignedPrincipal) and principal.issuer is not None:
        return principal.issuer
    return principal


def _session(key: SigningKey, issuer: Principal) -> SignedPrincipal:
    return SignedPrincipal(
        issuer.name,
        issuer.rules,
        id=issuer.id,
        key=key,
        issuer=issuer,
        is_root=issuer.is_root,
        is_link=False,
    )


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
