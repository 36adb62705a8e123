"""JWTs that are valid, claim by claim, and the cache of those that were verified."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.access.jwks import ALGORITHMS, KeySet
from penstock.access.jwt import Identity, check_claims, is_jwt
from penstock.clock import ManualClock
from penstock.errors import KeyUnknown, Unauthorized
from tests.access.minting import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    Signer,
    claims,
    keys,
    policy,
    signer,
    verifier,
)

LEEWAY_S = 30


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_names_its_subject(algorithm: str) -> None:
    issuer = signer(algorithm)
    identity = verifier(issuer).verify(issuer.token(scope="read:chat/** append:chat/in"))
    assert identity == Identity(
        name="ada",
        issuer=ISSUER,
        rules=("read:chat/**", "append:chat/in"),
        expires_at_s=NOW_S + 600 + LEEWAY_S,
    )


@pytest.mark.parametrize(
    "typ", [None, "JWT", "jwt", "at+jwt", "application/at+jwt", "application/jwt"]
)
def test_the_types_of_access_tokens_are_accepted(typ: str | None) -> None:
    issuer = signer()
    assert verifier(issuer).verify(issuer.token({"typ": typ})).name == "ada"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        # Times, with a leeway of 30 s on both sides
        ({"exp": NOW_S - LEEWAY_S + 1}, None),
        ({"exp": NOW_S - LEEWAY_S}, "has expired"),
        ({"exp": NOW_S - LEEWAY_S + 0.5}, None),
        ({"exp": None}, "has no `exp`"),
        ({"nbf": NOW_S + LEEWAY_S}, None),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"exp": 253_402_300_799}, None),
        ({"exp": 253_402_300_800}, "`exp` is not a time"),
        ({"exp": NOW_S * 1000}, "`exp` is not a time"),  # milliseconds
        ({"exp": 10**300}, "`exp` is not a time"),
        ({"exp": float("1e300")}, "`exp` is not a time"),
        ({"exp": -1}, "`exp` is not a time"),
        ({"exp": True}, "`exp` is not a time"),
        ({"exp": str(NOW_S + 600)}, "`exp` is not a time"),
        ({"exp": [NOW_S + 600]}, "`exp` is not a time"),
        ({"nbf": True}, "`nbf` is not a time"),
        ({"nbf": "0"}, "`nbf` is not a time"),
        ({"iat": {}}, "`iat` is not a time"),
        # Issuer
        ({"iss": None}, "issuer"),
        ({"iss": "https://login.example.com"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        # Audience, as text or list
        ({"aud": [AUDIENCE]}, None),
        ({"aud": ["other", AUDIENCE]}, None),
        ({"aud": None}, "another audience"),
        ({"aud": "other"}, "another audience"),
        ({"aud": AUDIENCE + "/"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": [AUDIENCE, 1]}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        # Subject
        ({"sub": "grüße 🌍"}, None),
        ({"sub": None}, "subject"),
        ({"sub": ""}, "subject"),
        ({"sub": 7}, "subject"),
        ({"sub": "a\nb"}, "subject"),
        ({"sub": "\ud800"}, "subject"),
        ({"sub": "s" * 256}, None),
        ({"sub": "s" * 257}, "subject"),
        # Scopes
        ({"scope": 7}, "`scope` is neither"),
        ({"scope": {"read": "a"}}, "`scope` is neither"),
        ({"scope": ["read:a", 7]}, "`scope` is neither"),
        ({"scope": ["read:a"] * 256}, None),
        ({"scope": ["read:a"] * 257}, "more than 256 rules"),
    ],
)
def test_every_claim_is_checked(changes: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        assert check_claims(claims(**changes), policy(), NOW_S).issuer == ISSUER
    else:
        with pytest.raises(Unauthorized, match=reason) as caught:
            check_claims(claims(**changes), policy(), NOW_S)
        assert caught.value.headers == {
            "WWW-Authenticate": 'Bearer realm="penstock", error="invalid_token"'
        }


def test_a_claim_that_is_null_is_no_time() -> None:
    with pytest.raises(Unauthorized, match="`exp` is not a time"):
        check_claims({**claims(), "exp": None}, policy(), NOW_S)


def test_without_leeway_a_token_ends_at_its_time() -> None:
    strict = policy(leeway_s=0.0)
    assert check_claims(claims(exp=NOW_S + 1), strict, NOW_S).expires_at_s == NOW_S + 1
    with pytest.raises(Unauthorized, match="expired"):
        check_claims(claims(exp=NOW_S), strict, NOW_S)


@pytest.mark.parametrize("changes", [{"iss": None}, {"iss": "anybody"}, {"aud": None}])
def test_any_issuer_and_audience_can_be_allowed(changes: dict[str, Any]) -> None:
    anything = policy(issuers=frozenset(), audiences=frozenset())
    identity = check_claims(claims(**changes), anything, NOW_S)
    assert identity.issuer == claims(**changes).get("iss")


@pytest.mark.parametrize(
    ("scope", "prefix", "rules"),
    [
        (None, "", ()),
        ("", "", ()),
        ([], "", ()),
        ("read:a append:b/**", "", ("read:a", "append:b/**")),
        (["read:a", "list:**"], "", ("read:a", "list:**")),
        ("openid profile email read:a offline_access", "", ("read:a",)),
        ("https://other.example.com/scope drop:a READ:a read", "", ()),
        ("penstock:read:a read:b write", "penstock:", ("read:a",)),
        (["penstock:read:a", "penstock:openid", "penstock:"], "penstock:", ("read:a",)),
    ],
)
def test_scopes_that_are_rules_are_the_rules(
    scope: Any, prefix: str, rules: tuple[str, ...]
) -> None:
    identity = check_claims(claims(scope=scope), policy(scope_prefix=prefix), NOW_S)
    assert identity.rules == rules


def test_the_claim_with_the_scopes_can_have_another_name() -> None:
    other = policy(scope_claim="https://example.com/rules")
    changes = {"scope": "read:a", "https://example.com/rules": ["read:b"]}
    assert check_claims(claims(**changes), other, NOW_S).rules == ("read:b",)


def test_only_text_with_dots_is_taken_for_a_jwt() -> None:
    assert is_jwt(signer().token())
    assert not is_jwt("ps_b0d1c2")


# -- which key


def test_a_token_is_verified_with_the_key_that_it_names() -> None:
    one, two = signer(kid="1", name="one"), signer(kid="2", name="two")
    both = verifier(one, two)
    assert both.verify(one.token()).name == both.verify(two.token()).name == "ada"
    with pytest.raises(Unauthorized, match="signature is wrong"):
        both.verify(one.token({"kid": "2"}))


def test_a_token_without_a_kid_needs_a_set_with_one_key_of_its_algorithm() -> None:
    one, two, other = (
        signer(kid="1", name="one"),
        signer(kid="2", name="two"),
        signer("EdDSA", kid="3"),
    )
    nameless = one.token({"kid": None})
    assert verifier(one, other).verify(nameless).name == "ada"
    with pytest.raises(KeyUnknown, match="no `kid`"):
        verifier(one, two).verify(nameless)


def test_a_key_without_a_kid_verifies_tokens_that_name_none_of_the_others() -> None:
    nameless, named = signer(kid=None, name="nameless"), signer(kid="named", name="named")
    both = verifier(nameless, named)
    assert both.verify(nameless.token({"kid": "whatever"})).name == "ada"
    assert both.verify(named.token()).name == "ada"
    with pytest.raises(Unauthorized, match="signature is wrong"):
        both.verify(nameless.token({"kid": "named"}))


def test_an_unknown_key_is_told_apart_from_a_wrong_signature() -> None:
    issuer = signer()
    with pytest.raises(KeyUnknown) as caught:
        verifier(issuer).verify(issuer.token({"kid": "secret-kid"}))
    assert caught.value.status == 401
    assert "secret-kid" not in caught.value.detail


# -- the cache


class CountedKeys(KeySet):
    """A key set that counts how often a key is asked for, which is once per verification."""

    __slots__ = ("count",)

    def __init__(self, issuer: Signer) -> None:
        fixed = keys(issuer.jwk(), algorithms=(issuer.algorithm,)).current
        key = fixed.find(issuer.kid, issuer.algorithm)
        assert key is not None
        super().__init__([(issuer.kid, issuer.algorithm, key)])
        self.count = 0

    def find(self, kid: str | None, algorithm: str) -> Any:
        self.count += 1
        return super().find(kid, algorithm)


def test_a_token_is_verified_once_until_it_expires() -> None:
    clock = ManualClock(NOW_S * 1_000_000)
    issuer = signer()
    checked = verifier(issuer, clock=clock)
    checked._keys.current = counted = CountedKeys(issuer)
    token = issuer.token()
    assert checked.verify(token) is checked.verify(token)
    assert counted.count == 1
    clock.advance(600 + LEEWAY_S - 1)
    assert checked.verify(token).name == "ada"
    assert counted.count == 1
    clock.advance(1)
    with pytest.raises(Unauthorized, match="expired"):
        checked.verify(token)
    assert len(checked) == 0


def test_a_token_of_a_removed_key_is_refused_though_it_was_verified() -> None:
    issuer = signer()
    checked = verifier(issuer)
    token = issuer.token()
    checked.verify(token)
    checked._keys.current = KeySet()
    with pytest.raises(KeyUnknown):
        checked.verify(token)
    assert len(checked) == 0


def test_a_refused_token_is_not_remembered() -> None:
    issuer = signer()
    checked = verifier(issuer)
    for token in ("a.b.c", issuer.token(exp=1), signer(name="other").token()):
        with pytest.raises(Unauthorized):
            checked.verify(token)
    assert len(checked) == 0


def test_the_least_recently_used_token_makes_room() -> None:
    issuer = signer()
    checked = verifier(issuer, cache_max=2)
    checked._keys.current = counted = CountedKeys(issuer)
    first, second, third = (issuer.token(sub=name) for name in ("1", "2", "3"))
    for token in (first, second, first, third):  # the second makes room
        checked.verify(token)
    assert (len(checked), counted.count) == (2, 3)
    checked.verify(first)
    assert counted.count == 3
    checked.verify(second)
    assert (len(checked), counted.count) == (2, 4)


def test_the_library_is_loaded_only_by_servers_that_accept_jwts() -> None:
    script = (
        "import sys, penstock.http.app, penstock.access.jwt\n"
        "from penstock.config.settings import Settings\n"
        "from penstock.egress import Egress\n"
        "settings = Settings(memory=True)\n"
        "assert penstock.access.jwt.open_jwt(settings, Egress(settings)) is None\n"
        "assert 'jwt' not in sys.modules\n"
        "settings = Settings(memory=True, jwt_algorithms=('HS256',), jwt_secret='s' * 32,\n"
        "    jwt_issuer=('*',), jwt_audience=('*',))\n"
        "assert penstock.access.jwt.open_jwt(settings, Egress(settings)) is not None\n"
        "assert 'jwt' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
