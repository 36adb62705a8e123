"""JWTs that are valid, claim by claim, and the keys that they are valid by."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.access.jwt import check_claims, is_jwt
from penstock.access.key_set import ALGORITHMS
from penstock.access.rules import Rule, Verb
from penstock.errors import KeyUnknown, Unauthorized
from tests.access.minting import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    claims,
    name_of,
    policy,
    signer,
    verifier,
)

LEEWAY_S = 30


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_names_its_subject(algorithm: str) -> None:
    issuer = signer(algorithm)
    token = issuer.token(scope="read:chat/** append:chat/in")
    identity = verifier(issuer).verify(token).identity
    assert identity[:2] == ("ada", ISSUER)
    assert identity.rules.all == (Rule(Verb.READ, "chat/**"), Rule(Verb.APPEND, "chat/in"))
    assert identity.expires_at_s == NOW_S + 600 + LEEWAY_S


@pytest.mark.parametrize(
    "typ", [None, "JWT", "jwt", "at+jwt", "application/at+jwt", "application/jwt"]
)
def test_the_types_of_access_tokens_are_accepted(typ: str | None) -> None:
    issuer = signer()
    assert name_of(verifier(issuer), issuer.token({"typ": typ})) == "ada"


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
        ({"scope": [f"read:{number}" for number in range(256)]}, None),
        ({"scope": [f"read:{number}" for number in range(257)]}, "too many rules"),
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
        ("https://other.example.com/scope drop:a READ:a read read: :a read:a?b", "", ()),
        ("*:a/**", "", ("*:a/**",)),
        ("penstock:read:a read:b write", "penstock:", ("read:a",)),
        (["penstock:read:a", "penstock:openid", "penstock:"], "penstock:", ("read:a",)),
    ],
)
def test_scopes_that_are_rules_are_the_rules(
    scope: Any, prefix: str, rules: tuple[str, ...]
) -> None:
    identity = check_claims(claims(scope=scope), policy(scope_prefix=prefix), NOW_S)
    assert tuple(map(str, identity.rules.all)) == rules


def test_the_claim_with_the_scopes_can_have_another_name() -> None:
    other = policy(scope_claim="https://example.com/rules")
    changes = {"scope": "read:a", "https://example.com/rules": ["read:b"]}
    assert check_claims(claims(**changes), other, NOW_S).rules.all == (Rule(Verb.READ, "b"),)


def test_only_text_with_dots_is_taken_for_a_jwt() -> None:
    assert is_jwt(signer().token())
    assert not is_jwt("b0d1c2")
    assert not is_jwt("b0.d1c2")


# -- which key


def test_a_token_is_verified_with_the_key_that_it_names() -> None:
    one, two = signer(kid="1", name="one"), signer(kid="2", name="two")
    both = verifier(one, two)
    assert name_of(both, one.token()) == name_of(both, two.token()) == "ada"
    with pytest.raises(Unauthorized, match="signature is wrong"):
        both.verify(one.token({"kid": "2"}))


def test_a_token_without_a_kid_needs_a_set_with_one_key_of_its_algorithm() -> None:
    one, two, other = (
        signer(kid="1", name="one"),
        signer(kid="2", name="two"),
        signer("EdDSA", kid="3"),
    )
    nameless = one.token({"kid": None})
    assert name_of(verifier(one, other), nameless) == "ada"
    with pytest.raises(KeyUnknown, match="no `kid`"):
        verifier(one, two).verify(nameless)


def test_a_key_without_a_kid_verifies_tokens_that_name_none_of_the_others() -> None:
    nameless, named = signer(kid=None, name="nameless"), signer(kid="named", name="named")
    both = verifier(nameless, named)
    assert name_of(both, nameless.token({"kid": "whatever"})) == "ada"
    assert name_of(both, named.token()) == "ada"
    with pytest.raises(Unauthorized, match="signature is wrong"):
        both.verify(nameless.token({"kid": "named"}))


def test_an_unknown_key_is_told_apart_from_a_wrong_signature() -> None:
    issuer = signer()
    with pytest.raises(KeyUnknown) as caught:
        verifier(issuer).verify(issuer.token({"kid": "secret-kid"}))
    assert caught.value.status == 401
    assert "secret-kid" not in caught.value.detail


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
