"""JSON Web Tokens (RFC 7519): from the text of a token to whom it names and what that one may do.

A token is verified with the keys of the settings alone; whatever it says about keys itself is
ignored. Keys are in key_set.py, and loaded by jwks.py. Knows no requests.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from penstock.access import jwks, key_set
from penstock.access.jose import Malformed, decode_base64url, parse_object
from penstock.access.jwks import Keys
from penstock.access.key_set import Key, KeySet, UnusableKeys
from penstock.access.principal import Principal
from penstock.access.rules import Rules, parse_rule
from penstock.clock import SYSTEM_CLOCK
from penstock.config.setting import InvalidSetting
from penstock.errors import (
    InvalidRule,
    KeysUnavailable,
    KeyUnknown,
    PenstockError,
    Unauthorized,
)
from penstock.limits import JWT_CACHE_MAX, JWT_LEEWAY_S_MAX, TIME_US_MAX

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress

ANY: Final = "*"
CHALLENGE: Final = 'Bearer realm="penstock", error="invalid_token"'
NAME_CHARACTERS_MAX: Final = 256

_TYPES: Final = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
_UNSUPPORTED: Final = ("crit", "b64", "zip", "enc")
"""Header members that change what the rest of a token means."""
_DEPTH_MAX: Final = 16
_TIME_S_MAX: Final = TIME_US_MAX // 1_000_000
_MALFORMED: Final = "The token is not a JWT"


class Identity(NamedTuple):
    """Whom a token names. `expires_at_s` is the Unix time at which the token ends, with the
    leeway."""

    name: str
    issuer: str | None
    rules: Rules
    expires_at_s: float


class Verified(NamedTuple):
    """A token that is valid, and the key that it is valid by."""

    identity: Identity
    key: Key


class JwtPolicy(NamedTuple):
    """What the settings demand of tokens. An empty `issuers` or `audiences` demands nothing."""

    algorithms: tuple[str, ...]
    issuers: frozenset[str]
    audiences: frozenset[str]
    leeway_s: float
    scope_claim: str
    scope_prefix: str
    bytes_max: int


def is_jwt(token: str) -> bool:
    """Whether a bearer token has the form of a JWT, valid or not: other kinds have no dots."""
    return token.count(".") >= 2


class JwtAccess:
    """The JWTs of one server: its keys, which `start` keeps up to date, and the principals that
    tokens stand for. A principal ends with its token, or when the token's key is removed."""

    def __init__(
        self,
        settings: Settings,
        egress: Egress,
        *,
        clock: Clock = SYSTEM_CLOCK,
        monotonic: Callable[[], float] = time.monotonic,
        cache_max: int = JWT_CACHE_MAX,
    ) -> None:
        """Raise InvalidSetting for settings that cannot be used, keys in a file included."""
        policy = jwt_policy(settings)
        key_set.preload()
        self.keys = _keys(settings, egress)
        self.keys.on_change = self._keys_changed
        self._verifier = JwtVerifier(policy, self.keys, clock=clock)
        self._clock = clock
        self._monotonic = monotonic
        self._bytes_max = settings.jwt_bytes_max
        self._cache_max = cache_max
        # The hash of a token -> its principal, least recently used first.
        self._cache: dict[bytes, Principal] = {}
        # Also those that are no longer in the cache, while a request or a live reader has them.
        self._signed_by: WeakKeyDictionary[Principal, Key] = WeakKeyDictionary()

    def __len__(self) -> int:
        """The number of tokens that need not be verified again."""
        return len(self._cache)

    def start(self) -> None:
        self.keys.start()

    def close(self) -> None:
        self.keys.close()

    def principal(self, token: str) -> Principal | None:
        """Return whom a token stands for; None if it is no JWT, Unauthorized if it is not valid.

        KeysUnavailable says that its key may be there soon: the keys are loaded again then.
        """
        if not is_jwt(token):
            return None
        if len(token) > self._bytes_max or not token.isascii():
            return self._verify(token)  # refuses it
        digest = hashlib.sha256(token.encode("ascii")).digest()
        principal = self._cache.pop(digest, None)
        if principal is None or principal.until_s <= self._monotonic():
            principal = self._verify(token)
        if len(self._cache) >= self._cache_max:
            del self._cache[next(iter(self._cache))]
        self._cache[digest] = principal
        return principal

    def _verify(self, token: str) -> Principal:
        try:
            identity, key = self._verifier.verify(token)
        except KeyUnknown:
            wait_s = self.keys.refresh_soon()
            if wait_s is None:
                raise
            raise KeysUnavailable(
                "The token's key is not known here; the keys are being loaded again. Retry.",
                Retry_After=str(math.ceil(wait_s)),
            ) from None
        left_s = identity.expires_at_s - self._clock.now_us() / 1_000_000
        principal = Principal(
            f"jwt:{identity.name}",
            identity.rules,
            # Two issuers may use the same name.
            id=f"jwt:{identity.issuer or ''}:{identity.name}",
            until_s=self._monotonic() + left_s,
        )
        self._signed_by[principal] = key
        return principal

    def _keys_changed(self, keys: KeySet) -> None:
        """End the principals whose key is gone, wherever they are in use."""
        for principal, key in list(self._signed_by.items()):
            if key not in keys:
                principal.end()
                del self._signed_by[principal]


class JwtVerifier:
    """Verifies tokens with the keys in effect. It remembers nothing."""

    def __init__(self, policy: JwtPolicy, keys: Keys, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._policy = policy
        self._keys = keys
        self._clock = clock

    def verify(self, token: str) -> Verified:
        """Return whom a valid token names. Unauthorized says why another is refused, KeyUnknown
        that it may be valid under a key that is not there."""
        if len(token) > self._policy.bytes_max:
            raise _refusal(f"The token has more than {self._policy.bytes_max} bytes.")
        if not token.isascii():
            raise _refusal(f"{_MALFORMED}: it has characters that are not ASCII.")
        parts = token.split(".")
        if len(parts) != 3:
            what = "encrypted tokens (JWE) are not accepted" if len(parts) == 5 else "not 3 parts"
            raise _refusal(f"{_MALFORMED}: {what}.")
        try:
            header = parse_object(decode_base64url(parts[0]), depth_max=_DEPTH_MAX)
            payload, signature = decode_base64url(parts[1]), decode_base64url(parts[2])
        except Malformed as error:
            raise _refusal(f"{_MALFORMED}: it is {error}.") from None
        algorithm, kid = check_header(header, self._policy)
        key = self._keys.current.find(kid, algorithm)
        if key is None:
            which = "names no `kid`, and its key" if kid is None else "names a key that"
            raise KeyUnknown(f"The token {which} is not known here.", WWW_Authenticate=CHALLENGE)
        if not key.verifies(signature, f"{parts[0]}.{parts[1]}".encode("ascii")):
            raise _refusal("The token's signature is wrong.")
        try:
            claims = parse_object(payload, depth_max=_DEPTH_MAX)
        except Malformed as error:
            raise _refusal(f"{_MALFORMED}: its claims are {error}.") from None
        now_s = self._clock.now_us() / 1_000_000
        return Verified(check_claims(claims, self._policy, now_s), key)


def check_header(header: Mapping[str, Any], policy: JwtPolicy) -> tuple[str, str | None]:
    """Return the algorithm and the `kid` of a token's header, or raise Unauthorized.

    `jku`, `x5u`, `jwk` and `x5c`, which name keys of the token's own choice, are ignored.
    """
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in policy.algorithms:
        raise _refusal("The token's algorithm is not accepted here.")
    for name in _UNSUPPORTED:
        if name in header:
            raise _refusal(f"The token's header has `{name}`, which is not supported.")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise _refusal("The token's `typ` is not that of an access token.")
    if kid is not None and (not isinstance(kid, str) or len(kid) > key_set.KID_CHARACTERS_MAX):
        raise _refusal(f"{_MALFORMED}: its `kid` is not text of a usual length.")
    return algorithm, kid


def check_claims(claims: Mapping[str, Any], policy: JwtPolicy, now_s: float) -> Identity:
    """Return whom the claims of a token name, or raise Unauthorized."""
    expires_s, begins_s = _time_s(claims, "exp"), _time_s(claims, "nbf")
    _time_s(claims, "iat")
    if expires_s is None:
        raise _refusal("The token has no `exp`; only tokens that expire are accepted.")
    if now_s >= expires_s + policy.leeway_s:
        raise _refusal("The token has expired.")
    if begins_s is not None and now_s < begins_s - policy.leeway_s:
        raise _refusal("The token is not valid yet.")
    issuer = claims.get("iss")
    if not isinstance(issuer, str | None) or (policy.issuers and issuer not in policy.issuers):
        raise _refusal("The token's issuer (`iss`) is not accepted here.")
    audiences = _texts(claims.get("aud"))
    if audiences is None or (policy.audiences and policy.audiences.isdisjoint(audiences)):
        raise _refusal("The token is for another audience (`aud`).")
    name = claims.get("sub")
    # It is written to logs: line ends and half surrogate pairs do not belong there.
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or not 0 < len(name) <= (NAME_CHARACTERS_MAX)
    ):
        raise _refusal("The token does not name its subject (`sub`) in printable text.")
    return Identity(name, issuer, _rules(claims, policy), expires_s + policy.leeway_s)


def _rules(claims: Mapping[str, Any], policy: JwtPolicy) -> Rules:
    """Return the rules among the scopes of a token. It may have scopes for others, too."""
    claim = claims.get(policy.scope_claim)
    scopes = claim.split() if isinstance(claim, str) else _texts(claim)
    if scopes is None:
        raise _refusal(f"The token's `{policy.scope_claim}` is neither text nor a list of texts.")
    rules = []
    for scope in scopes:
        if scope.startswith(policy.scope_prefix):
            try:
                rules.append(parse_rule(scope.removeprefix(policy.scope_prefix)))
            except InvalidRule:
                pass  # It allows nothing.
    try:
        return Rules(rules)
    except InvalidRule as error:
        raise _refusal(f"The token has too many rules. {error.detail}") from None


def _texts(claim: object) -> list[str] | None:
    """Return the texts of a claim that is absent, a text or a list; None for any other."""
    if claim is None:
        return []
    if isinstance(claim, str):
        return [claim]
    if isinstance(claim, list) and all(isinstance(each, str) for each in claim):
        return claim
    return None


def _time_s(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim that is a time in seconds since 1970."""
    if name not in claims:
        return None
    value = claims[name]
    # A bool is an int in Python; infinity is a number that is too large.
    if type(value) not in (int, float) or not 0 <= value <= _TIME_S_MAX:
        raise _refusal(f"The token's `{name}` is not a time in seconds since 1970.")
    return float(value)


def _refusal(detail: str) -> Unauthorized:
    return Unauthorized(detail, WWW_Authenticate=CHALLENGE)


def jwt_policy(settings: Settings) -> JwtPolicy:
    """Return what the settings demand of tokens; InvalidSetting if they do not fit together."""
    algorithms = settings.jwt_algorithms
    for name in algorithms:
        if name not in key_set.ALGORITHMS:
            raise InvalidSetting(
                f"Setting jwt_algorithms: {name!r} is none of {', '.join(key_set.ALGORITHMS)}."
            )
    _check_origin_of_keys(settings)
    for setting in ("jwt_issuer", "jwt_audience"):
        values = getattr(settings, setting)
        if not values or (ANY in values and len(values) > 1):
            raise InvalidSetting(
                f"Setting {setting} must name what the tokens for this server have in "
                f"`{'iss' if setting == 'jwt_issuer' else 'aud'}`, or be {ANY} alone, which allows "
                "any."
            )
    if settings.jwt_leeway_s > JWT_LEEWAY_S_MAX:
        raise InvalidSetting(f"Setting jwt_leeway_s must be at most {JWT_LEEWAY_S_MAX}.")
    return JwtPolicy(
        algorithms=algorithms,
        issuers=frozenset(settings.jwt_issuer) - {ANY},
        audiences=frozenset(settings.jwt_audience) - {ANY},
        leeway_s=settings.jwt_leeway_s,
        scope_claim=settings.jwt_scope_claim,
        scope_prefix=settings.jwt_scope_prefix,
        bytes_max=settings.jwt_bytes_max,
    )


def check_jwt_off(settings: Settings) -> None:
    """Refuse settings of JWTs without jwt_algorithms: they would have no effect."""
    for name in ("jwt_keys", "jwt_secret", "jwt_issuer", "jwt_audience"):
        if getattr(settings, name):
            raise InvalidSetting(
                f"Setting {name} has no effect without jwt_algorithms, such as RS256."
            )


def open_jwt(
    settings: Settings, egress: Egress, *, clock: Clock = SYSTEM_CLOCK
) -> JwtAccess | None:
    """Return what accepts JWTs as the settings say; None if they are off."""
    if not settings.jwt_algorithms:
        check_jwt_off(settings)
        return None
    return JwtAccess(settings, egress, clock=clock)


def _is_url(text: str) -> bool:
    return text.lower().startswith(("https:", "http:"))


def _check_origin_of_keys(settings: Settings) -> None:
    if bool(settings.jwt_keys) == bool(settings.jwt_secret):
        raise InvalidSetting(
            "Setting jwt_algorithms needs either jwt_keys, a JWKS, or jwt_secret, and not both."
        )
    secret = [name for name in settings.jwt_algorithms if name in key_set.SECRET_ALGORITHMS]
    if settings.jwt_secret and len(secret) < len(settings.jwt_algorithms):
        raise InvalidSetting(
            "Setting jwt_secret serves HS256, HS384 and HS512 alone. Name no others in "
            "jwt_algorithms, or put the keys of all of them into a file jwt_keys."
        )
    if settings.jwt_keys and _is_url(settings.jwt_keys) and secret:
        raise InvalidSetting(
            f"Setting jwt_algorithms names {secret[0]}, whose key is a secret, and a URL cannot "
            "hold secrets. Use jwt_secret, or a file as jwt_keys."
        )


def _keys(settings: Settings, egress: Egress) -> Keys:
    """Return the keys of the settings; those in a file, and a secret, are checked at once."""
    if settings.jwt_secret:
        try:
            secret = settings.jwt_secret.encode("utf-8")
            return Keys(key_set.secret_key_set(secret, settings.jwt_algorithms))
        except UnusableKeys as error:
            raise InvalidSetting(f"Setting jwt_secret {error}.") from None
    is_secret = [name in key_set.SECRET_ALGORITHMS for name in settings.jwt_algorithms]
    rules = key_set.KeyRules(
        algorithms=settings.jwt_algorithms,
        must_name_alg=any(is_secret) and not all(is_secret),
    )
    if _is_url(settings.jwt_keys):
        return _keys_of_url(settings, egress, rules)
    source = jwks.KeyFile(Path(settings.jwt_keys))
    keys = Keys(source=source, rules=rules, age_s=jwks.FILE_CHECK_S, gap_s=jwks.FILE_GAP_S)
    try:
        keys.take(source.read())
    except UnusableKeys as error:
        raise InvalidSetting(f"Setting jwt_keys: {source.name} {error}.") from None
    except OSError as error:
        reason = error.strerror or error
        raise InvalidSetting(f"Setting jwt_keys: {source.name} cannot be read: {reason}.") from None
    if not len(keys.current):
        raise InvalidSetting(
            f"Setting jwt_keys: {source.name} has no key for {', '.join(rules.algorithms)}."
        )
    return keys


def _keys_of_url(settings: Settings, egress: Egress, rules: key_set.KeyRules) -> Keys:
    try:
        target = egress.check(settings.jwt_keys)
    except PenstockError as error:
        raise InvalidSetting(f"Setting jwt_keys: {error.detail}") from None
    if target.scheme != "https" and not settings.development:
        # Whoever can change the response could sign tokens.
        raise InvalidSetting("Setting jwt_keys must be an https URL, except with --development.")
    source = jwks.KeyUrl(settings.jwt_keys, egress)
    return Keys(source=source, rules=rules, age_s=settings.jwt_keys_age_s)
