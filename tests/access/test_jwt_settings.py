"""The settings of JWTs: what cannot be used is refused at the start, in one line that says why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.access.jwt import JwtAccess, open_jwt
from penstock.access.key_set import KeySet
from penstock.access.rules import Rule, Verb
from penstock.clock import ManualClock
from penstock.config.setting import InvalidSetting
from penstock.config.settings import SETTINGS, Settings
from penstock.egress import Egress
from penstock.errors import KeyUnknown, Unauthorized
from tests.access.minting import AUDIENCE, ISSUER, NOW_S, Signer, name_of, signer, write_keys

SECRET = "0123456789abcdef" * 4
EC, HS = signer("ES256", kid="ec"), signer("HS256", kid="hs")


def _open(**settings: Any) -> JwtAccess | None:
    usual: dict[str, Any] = {"jwt_issuer": (ISSUER,), "jwt_audience": (AUDIENCE,)}
    values = Settings(**{"memory": True, **usual, **settings})
    return open_jwt(values, Egress(values), clock=ManualClock(NOW_S * 1_000_000))


def _opened(**settings: Any) -> JwtAccess:
    access = _open(**settings)
    assert access is not None
    return access


def test_jwts_are_off_by_default() -> None:
    assert _open(jwt_issuer=(), jwt_audience=()) is None


def test_a_secret_verifies_tokens() -> None:
    access = _opened(jwt_algorithms=("HS256", "HS512"), jwt_secret=SECRET)
    for algorithm in ("HS256", "HS512"):
        issuer = Signer(algorithm, SECRET.encode(), None)
        assert name_of(access, issuer.token()) == "ada"
        assert name_of(access, issuer.token({"kid": "any"})) == "ada"


def test_the_secret_alone_is_never_loaded_again() -> None:
    access = _opened(jwt_algorithms=("HS256",), jwt_secret=SECRET)
    access.keys.current = KeySet()
    with pytest.raises(KeyUnknown):
        access.principal(HS.token())


def test_a_file_verifies_tokens_of_mixed_kinds_if_each_key_names_its_algorithm(
    tmp_path: Path,
) -> None:
    path = write_keys(tmp_path / "jwks.json", EC.jwk(), HS.jwk(), signer("EdDSA").jwk(alg=None))
    access = _opened(jwt_algorithms=("ES256", "HS256", "EdDSA"), jwt_keys=str(path))
    assert name_of(access, EC.token()) == name_of(access, HS.token()) == "ada"
    assert access.keys.current.find("one", "EdDSA") is None


def test_the_settings_reach_the_checks(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "jwks.json", EC.jwk())
    access = _opened(
        jwt_algorithms=("ES256",),
        jwt_keys=str(path),
        jwt_issuer=("a", "b"),
        jwt_audience=("*",),
        jwt_leeway_s=5,
        jwt_scope_claim="scp",
        jwt_scope_prefix="penstock.",
        jwt_bytes_max=1000,
    )
    token = EC.token(iss="b", aud=None, exp=NOW_S, scp=["penstock.read:a", "read:b"])
    principal = access.principal(token)
    assert principal is not None
    assert principal.rules.all == (Rule(Verb.READ, "a"),)
    assert 4 < principal.until_s - time.monotonic() <= 5
    with pytest.raises(Unauthorized, match="more than 1000 bytes"):
        access.principal(EC.token(x="y" * 1000))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        # Without algorithms
        ({}, "jwt_issuer has no effect without jwt_algorithms"),
        ({"jwt_issuer": (), "jwt_keys": "x"}, "jwt_keys has no effect without jwt_algorithms"),
        ({"jwt_issuer": (), "jwt_secret": SECRET}, "jwt_secret has no effect"),
        # Algorithms
        ({"jwt_algorithms": ("none",), "jwt_keys": "x"}, "'none' is none of HS256"),
        ({"jwt_algorithms": ("NONE",), "jwt_keys": "x"}, "'NONE' is none of"),
        ({"jwt_algorithms": ("rs256",), "jwt_keys": "x"}, "'rs256' is none of"),
        ({"jwt_algorithms": ("ES256K",), "jwt_keys": "x"}, "'ES256K' is none of"),
        ({"jwt_algorithms": ("RS256", "*"), "jwt_keys": "x"}, r"'\*' is none of"),
        # Keys
        ({"jwt_algorithms": ("RS256",)}, "needs either jwt_keys, a JWKS, or jwt_secret"),
        ({"jwt_algorithms": ("HS256",), "jwt_keys": "x", "jwt_secret": SECRET}, "not both"),
        ({"jwt_algorithms": ("RS256",), "jwt_secret": SECRET}, "HS256, HS384 and HS512 alone"),
        ({"jwt_algorithms": ("HS256", "RS256"), "jwt_secret": SECRET}, "Name no others"),
        ({"jwt_algorithms": ("HS256",), "jwt_keys": "https://a.example"}, "cannot hold secrets"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": "s" * 31}, "at least 32 bytes for HS256"),
        ({"jwt_algorithms": ("HS256", "HS512"), "jwt_secret": "s" * 63}, "64 bytes for HS512"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": "-----BEGIN PUBLIC KEY-----MIIBIjANBg"},
         "jwt_secret is a key of another kind"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ"},
         "jwt_secret is a key of another kind"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "http://a.example/"}, "https"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "HTTP://a.example/"}, "https"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "https://127.0.0.1/"}, "not a public address"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "https://u:p@a.example/"}, "user or password"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "http://10.0.0.1/", "egress_http": True,
          "egress_networks": ("10.0.0.0/8",)}, "must be an https URL"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "/absent/jwks.json"}, "read: No such file"),
        ({"jwt_algorithms": ("RS256",), "jwt_keys": "/"}, "cannot be read: Is a directory"),
        # Claims
        ({"jwt_algorithms": ("HS256",), "jwt_secret": SECRET, "jwt_issuer": ()},
         r"jwt_issuer must name what .* have in `iss`, or be \*"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": SECRET, "jwt_audience": ()},
         r"jwt_audience must name what .* have in `aud`, or be \*"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": SECRET, "jwt_audience": ("*", "a")}, "alone"),
        ({"jwt_algorithms": ("HS256",), "jwt_secret": SECRET, "jwt_leeway_s": 301}, "at most 300"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as caught:
        _open(**settings)
    assert caught.value.detail.startswith("Setting jwt_")
    assert caught.value.detail.count("\n") == 0
    assert SECRET not in caught.value.detail


@pytest.mark.parametrize(
    ("jwk", "reason"),
    [
        (EC.jwk(use="enc"), "has no key for ES256"),
        (signer("EdDSA").jwk(), "has no key for ES256"),
    ],
)
def test_a_file_without_a_usable_key_is_refused(
    jwk: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = write_keys(tmp_path / "jwks.json", jwk)
    with pytest.raises(InvalidSetting, match=reason):
        _open(jwt_algorithms=("ES256",), jwt_keys=str(path))


def test_a_file_that_is_no_key_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN PUBLIC KEY-----")
    with pytest.raises(InvalidSetting, match="is not JSON"):
        _open(jwt_algorithms=("ES256",), jwt_keys=str(path))


def test_the_secret_is_not_shown() -> None:
    (setting,) = [each for each in SETTINGS if each.name == "jwt_secret"]
    assert SECRET not in setting.show(SECRET)
