"""Which keys of a JWKS are used, for which algorithms, and what is said of the others."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm

from penstock.access.key_set import (
    ALGORITHMS,
    KeyRules,
    ParsedKeys,
    UnusableKeys,
    parse_key_set,
    secret_key_set,
)
from penstock.limits import JWT_KEYS_BYTES_MAX, JWT_KEYS_MAX
from tests.access.minting import Signer, b64, document, signer

ALL = KeyRules(ALGORITHMS)
RSA, EC, HS = signer("RS256"), signer("ES256"), signer("HS256")


def _parse(*jwks: Any, rules: KeyRules = ALL) -> ParsedKeys:
    return parse_key_set(document(*jwks), rules)


def _usable(parsed: ParsedKeys, kid: str | None = "one") -> list[str]:
    return [name for name in ALGORITHMS if parsed.keys.find(kid, name) is not None]


@pytest.mark.parametrize(
    ("issuer", "algorithms"),
    [
        (signer("RS256"), ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (signer("ES256"), ["ES256"]),
        (signer("ES384"), ["ES384"]),
        (signer("ES512"), ["ES512"]),
        (signer("EdDSA"), ["EdDSA"]),
        (signer("HS256"), ["HS256", "HS384", "HS512"]),
    ],
    ids=lambda value: value.algorithm if isinstance(value, Signer) else "",
)
def test_a_key_serves_the_algorithms_of_its_kind(issuer: Signer, algorithms: list[str]) -> None:
    assert _usable(_parse(issuer.jwk(alg=None))) == algorithms
    # Narrowed by its own `alg`, and by the settings.
    assert _usable(_parse(issuer.jwk(alg=algorithms[0]))) == algorithms[:1]
    for name in ALGORITHMS:
        rules = ALL._replace(algorithms=(name,))
        assert _usable(_parse(issuer.jwk(alg=None), rules=rules)) == [
            each for each in algorithms if each == name
        ]


def _members(private: Any) -> dict[str, Any]:
    """The JWK of an RSA key that is not one of `signer`."""
    return Signer("RS256", private, "one").jwk()


@pytest.mark.parametrize(
    ("jwk", "reason"),
    [
        # What it is for
        (RSA.jwk(use="enc"), "not for signatures"),
        (RSA.jwk(use=["sig"]), "not for signatures"),
        (RSA.jwk(key_ops=["encrypt", "sign"]), "not for verifying"),
        (RSA.jwk(key_ops="verify"), "not for verifying"),
        (RSA.jwk(alg="RS1"), "not for an algorithm"),
        (RSA.jwk(alg="none"), "not for an algorithm"),
        (RSA.jwk(alg="ES256"), "not for an algorithm"),
        (RSA.jwk(alg="HS256"), "not for an algorithm"),
        (RSA.jwk(alg=["RS256"]), "not for an algorithm"),
        (EC.jwk(alg="HS256"), "not for an algorithm"),
        (EC.jwk(alg="ES384"), "not for an algorithm"),
        (HS.jwk(alg="RS256"), "not for an algorithm"),
        (HS.jwk(alg="A128KW"), "not for an algorithm"),
        # Its kind
        ("key", "not an object"),
        (None, "not an object"),
        ({}, "has no type"),
        (RSA.jwk(kty=["RSA"]), "has no type"),
        (RSA.jwk(kty="rsa"), "not for an algorithm"),
        (RSA.jwk(kty="oct"), "not for an algorithm"),
        (RSA.jwk(kty="oct", alg="HS256"), "no valid `k`"),
        (EC.jwk(crv=None), "not for an algorithm"),
        (EC.jwk(crv="P-999"), "not for an algorithm"),
        (EC.jwk(crv=256), "has no type"),
        (ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True),
         "not for an algorithm"),
        (OKPAlgorithm.to_jwk(ed448.Ed448PrivateKey.generate().public_key(), as_dict=True),
         "not for an algorithm"),
        # Its name
        (RSA.jwk(kid=1), "`kid`"),
        (RSA.jwk(kid=""), "`kid`"),
        (RSA.jwk(kid="k" * 257), "`kid`"),
        # Its numbers
        (RSA.jwk(n=None), "no valid `n`"),
        (RSA.jwk(n=5), "no valid `n`"),
        (RSA.jwk(n=RSA.jwk()["n"] + "="), "no valid `n`"),
        (RSA.jwk(n="A" * 4096), "`n` that is too long"),
        (RSA.jwk(e="AQAB" * 2), "`e` that is too long"),
        (RSA.jwk(e="Ag"), "is not valid"),
        (_members(rsa.generate_private_key(65537, 1024)), "less than 2048 bits"),
        (RSA.jwk(d="AQAB"), "private half"),
        (EC.jwk(d="AQAB"), "private half"),
        (EC.jwk(x=b64(bytes(31))), "is not valid"),
        (EC.jwk(x=b64(bytes(32)), y=b64(bytes(32))), "is not valid"),
        (EC.jwk(y=EC.jwk()["x"]), "is not valid"),
        (EC.jwk(y=None), "no valid `y`"),
        (signer("EdDSA").jwk(x=b64(bytes(31))), "is not valid"),
        (HS.jwk(k=b64(bytes(31))), "too short"),
        (HS.jwk(k=""), "is not valid"),
        (HS.jwk(alg="HS512", k=b64(bytes(63))), "too short"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_used_is_ignored(jwk: Any, reason: str) -> None:
    other = signer("EdDSA", kid="good")
    parsed = _parse(jwk, other.jwk())
    assert _usable(parsed, "good") == ["EdDSA"]
    assert len(parsed.keys) == 1
    (ignored,) = parsed.ignored
    assert ignored.startswith("key 1 ")
    assert reason in ignored


def test_a_secret_serves_the_algorithms_that_it_is_long_enough_for() -> None:
    assert _usable(_parse(HS.jwk(alg=None, k=b64(b"x" * 48)))) == ["HS256", "HS384"]


def test_where_kinds_are_mixed_a_key_names_its_algorithm() -> None:
    rules = ALL._replace(must_name_alg=True)
    parsed = _parse(RSA.jwk(alg=None), EC.jwk(kid="two"), rules=rules)
    assert (_usable(parsed), _usable(parsed, "two")) == ([], ["ES256"])
    assert "has no `alg`" in parsed.ignored[0]


def test_of_two_keys_with_the_same_kid_and_algorithm_the_first_counts() -> None:
    first, second = signer(name="first"), signer(name="second")
    parsed = _parse(first.jwk(), second.jwk(), RSA.jwk())
    assert _usable(parsed) == ["RS256", "ES256"]  # another kind may have the same kid
    assert parsed.ignored == ("key 2 has the `kid` of another one",)
    key = parsed.keys.find("one", "ES256")
    assert key is not None
    assert key.verifies(first.sign(b"x"), b"x")


PEM = RSA.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DER = RSA.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
SSH = RSA.public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
PUBLIC = [PEM, DER, SSH, b64encode(PEM), b64encode(DER), json.dumps(RSA.jwk()).encode()]
PUBLIC += [PEM.replace(b"\n", b"\\n"), document(RSA.jwk())]


@pytest.mark.parametrize("secret", PUBLIC)
def test_a_public_key_is_refused_as_a_secret(secret: bytes) -> None:
    with pytest.raises(UnusableKeys, match="no secret"):
        secret_key_set(secret, ["HS256"])
    assert "no secret" in _parse(HS.jwk(k=b64(secret))).ignored[0]


@pytest.mark.parametrize(("name", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_is_as_long_as_the_hash(name: str, size: int) -> None:
    assert secret_key_set(b"s" * size, [name]).find(None, name) is not None
    with pytest.raises(UnusableKeys, match=f"at least {size} bytes for {name}"):
        secret_key_set(b"s" * (size - 1), [name])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (PEM, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no list `keys`"),
        (b'{"keys": {}}', "no list `keys`"),
        (json.dumps(RSA.jwk()).encode(), "no list `keys`"),
        (b'{"keys": [], "keys": []}', "occurs twice"),
        (b'{"keys": ' + b"[" * 8 + b"]" * 8 + b"}", "nested too deeply"),
        (document(*[{}] * (JWT_KEYS_MAX + 1)), f"more than {JWT_KEYS_MAX} keys"),
        (b" " * (JWT_KEYS_BYTES_MAX + 1), f"more than {JWT_KEYS_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_key_set_is_refused_as_a_whole(data: bytes, reason: str) -> None:
    with pytest.raises(UnusableKeys, match=reason):
        parse_key_set(data, ALL)


def test_as_many_keys_as_the_limit_are_taken() -> None:
    jwks = [EC.jwk(kid=str(index)) for index in range(JWT_KEYS_MAX)]
    assert len(_parse(*jwks).keys) == JWT_KEYS_MAX


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
VALUES |= st.binary(max_size=80).map(b64)
NAMES = ["kty", "crv", "n", "e", "x", "y", "k", "d", "alg", "use", "key_ops", "kid"]


@given(
    st.sampled_from([signer(name) for name in ALGORITHMS]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
)
def test_any_key_is_used_or_ignored(issuer: Signer, changes: dict[str, Any]) -> None:
    parsed = _parse({**issuer.jwk(), **changes})
    assert (len(parsed.keys) > 0) != bool(parsed.ignored)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_key_set_or_unusable(data: bytes) -> None:
    with pytest.raises(UnusableKeys):
        parse_key_set(data, ALL)
