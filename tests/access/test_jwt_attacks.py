"""Tokens that somebody forged, altered or built to confuse: all of them are refused, with 401."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.utils import raw_to_der_signature

from penstock.access.jwt import JwtVerifier
from penstock.access.key_set import ALGORITHMS
from penstock.errors import KeyUnknown, Unauthorized
from tests.access.minting import CURVES, NOW_S, Signer, b64, claims, name_of, signer, verifier

ISSUER = signer("RS256")
CHECKED = verifier(ISSUER)


def _refused(checked: JwtVerifier, token: str, reason: str = "token") -> None:
    with pytest.raises(Unauthorized, match=reason):
        checked.verify(token)


def test_the_issuer_itself_is_accepted() -> None:
    assert name_of(CHECKED, ISSUER.token()) == "ada"


# -- algorithms

NONES = ["none", "None", "NONE", "nOnE", "none ", "\x00none", "", "null"]


@pytest.mark.parametrize("algorithm", [*NONES, None, 0, False, [], ["RS256"], {}, {"RS256": 1}])
@pytest.mark.parametrize("has_signature", [False, True])
def test_no_algorithm_is_no_algorithm(algorithm: Any, has_signature: bool) -> None:
    token = ISSUER.raw({"typ": "JWT", "alg": algorithm, "kid": "one"}, claims())
    if not has_signature:
        token = token.rpartition(".")[0] + "."
    _refused(CHECKED, token, "algorithm is not accepted")


def test_a_token_without_an_algorithm_is_refused() -> None:
    _refused(CHECKED, ISSUER.raw({"typ": "JWT", "kid": "one"}, claims()), "algorithm")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "RS256"])
def test_an_algorithm_that_is_not_listed_is_refused(algorithm: str) -> None:
    other = signer(algorithm)
    _refused(CHECKED, other.token(), "algorithm is not accepted")
    _refused(CHECKED, ISSUER.token({"alg": algorithm}), "algorithm is not accepted")


@pytest.mark.parametrize(
    "secret",
    [
        ISSUER.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        ISSUER.public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        ISSUER.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        ISSUER.jwk()["n"].encode(),
        json.dumps(ISSUER.jwk()).encode(),
        b"",
        bytes(64),
    ],
)
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_is_no_secret(secret: bytes, algorithm: str) -> None:
    """Also where HS is accepted beside RS: a key serves its own kind of algorithm alone."""
    forger = Signer(algorithm, secret, "one")
    mixed = verifier(ISSUER, signer(algorithm, kid="other"))
    for checked in (CHECKED, mixed):
        _refused(checked, forger.token())
    with pytest.raises(KeyUnknown):
        mixed.verify(forger.token())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("key", ALGORITHMS)
def test_a_key_verifies_only_the_algorithm_that_it_names(algorithm: str, key: str) -> None:
    """Also if the signature is right: RS and PS have the same kind of key, and so have all HS."""
    if algorithm == key:
        return
    owner, other = signer(key, kid="one"), signer(algorithm, kid="other", name="other")
    is_same_kind = {algorithm[:2], key[:2]} in ({"HS"}, {"RS"}, {"PS"}, {"RS", "PS"})
    forger = Signer(algorithm, owner.private, "one") if is_same_kind else other
    with pytest.raises(KeyUnknown):
        verifier(owner, other).verify(forger.token({"kid": "one"}))


# -- signatures


def test_every_changed_byte_of_a_token_is_noticed() -> None:
    """Each character becomes each of its neighbours: also those that decode to the same bytes."""
    issuer = signer("EdDSA")
    checked = verifier(issuer)
    token = issuer.token()
    for index, character in enumerate(token):
        for other in {chr(ord(character) ^ bit) for bit in (1, 2, 4, 8, 16, 32)} | {"A", "=", "."}:
            if other != character:
                _refused(checked, token[:index] + other + token[index + 1 :])
    assert name_of(checked, token) == "ada"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_changed_bit_of_a_signature_is_noticed(algorithm: str) -> None:
    issuer = signer(algorithm)
    checked = verifier(issuer)
    signed = f"{b64(issuer.header())}.{b64(claims())}"
    signature = issuer.sign(signed.encode())
    for index in range(len(signature)):
        changed = bytearray(signature)
        changed[index] ^= 1 << index % 8
        _refused(checked, f"{signed}.{b64(bytes(changed))}", "signature is wrong")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [0, 1, 31, 32, 48, 63, 64, 65, 96, 132, 255, 256, 257, 4096])
def test_a_signature_of_zeros_is_wrong(algorithm: str, size: int) -> None:
    """Of ECDSA too, where an implementation once took r = s = 0 for a signature of anything."""
    signed = f"{b64(signer(algorithm).header())}.{b64(claims())}"
    _refused(verifier(signer(algorithm)), f"{signed}.{b64(bytes(size))}", "signature is wrong")


@pytest.mark.parametrize("algorithm", CURVES)
def test_only_the_raw_form_of_an_ecdsa_signature_is_one(algorithm: str) -> None:
    issuer = signer(algorithm)
    signed = f"{b64(issuer.header())}.{b64(claims())}"
    raw = issuer.sign(signed.encode())
    der = raw_to_der_signature(raw, CURVES[algorithm])
    assert name_of(verifier(issuer), f"{signed}.{b64(raw)}") == "ada"
    for other in (der, raw + b"\0", b"\0" + raw, encode_dss_signature(0, 0), raw[:-1]):
        _refused(verifier(issuer), f"{signed}.{b64(other)}", "signature is wrong")


def test_claims_and_header_are_signed_together() -> None:
    header, payload, signature = ISSUER.token().split(".")
    for forged in (
        f"{header}.{b64(claims(sub='root'))}.{signature}",
        f"{b64(ISSUER.header(x=1))}.{payload}.{signature}",
        f"{header}.{payload}.",
        f"{payload}.{header}.{signature}",
    ):
        _refused(CHECKED, forged)


def test_a_stranger_with_the_same_kid_is_refused() -> None:
    stranger = signer("RS256", name="stranger")
    assert stranger.kid == ISSUER.kid
    _refused(CHECKED, stranger.token(), "signature is wrong")


# -- headers


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c", "x5t"])
def test_a_key_that_the_token_brings_along_is_ignored(member: str) -> None:
    stranger = signer("RS256", name="stranger")
    value = stranger.jwk() if member == "jwk" else "https://evil.example.com/jwks.json"
    _refused(CHECKED, stranger.token({member: value}), "signature is wrong")
    _refused(CHECKED, stranger.token({member: value, "kid": "new"}), "names a key")
    assert name_of(CHECKED, ISSUER.token({member: value})) == "ada"


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("crit", ["exp"]),
        ("crit", []),
        ("crit", ["b64"]),
        ("b64", False),
        ("b64", True),
        ("zip", "DEF"),
        ("enc", "A128GCM"),
    ],
)
def test_a_header_that_changes_the_meaning_of_the_rest_is_refused(member: str, value: Any) -> None:
    _refused(CHECKED, ISSUER.token({member: value}), f"`{member}`, which is not supported")


@pytest.mark.parametrize("typ", ["JWE", "dpop+jwt", "logout+jwt", "", 1, ["JWT"]])
def test_a_token_for_another_purpose_is_refused(typ: Any) -> None:
    _refused(CHECKED, ISSUER.token({"typ": typ}), "`typ`")


@pytest.mark.parametrize(
    "kid",
    [
        "../../../../dev/null",
        "/etc/passwd",
        "..\\..\\windows\\win.ini",
        "one' OR '1'='1",
        "one\0",
        "one ",
        "ONE",
        "",
        "file:///dev/null",
        "https://evil.example.com/one",
        "$(id)",
        "\u0000",
        "\ud800",
        "k" * 256,
    ],
)
def test_a_kid_is_only_looked_up(kid: str) -> None:
    with pytest.raises(KeyUnknown):
        CHECKED.verify(ISSUER.token({"kid": kid}))


@pytest.mark.parametrize("kid", [1, True, ["one"], {"one": 1}, "k" * 257])
def test_a_kid_is_text_of_a_usual_length(kid: Any) -> None:
    _refused(CHECKED, ISSUER.token({"kid": kid}), "`kid`")


# -- notation


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a", "a.b", "a.b.c", "a.b.c.d", "Bearer a.b.c", " ", "\0.\0.\0", "é.é.é",
     "\ud800.a.b", "{}.{}.{}", "e30.e30.e30", "bnVsbA.bnVsbA.bnVsbA", "W10.W10.W10"],
)  # fmt: skip
def test_what_is_no_token_is_refused(token: str) -> None:
    _refused(CHECKED, token)


def test_an_encrypted_token_is_refused() -> None:
    header = b64({"alg": "RSA-OAEP", "enc": "A128GCM"})
    _refused(CHECKED, f"{header}.AAAA.AAAA.AAAA.AAAA", "encrypted")


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token + "=",
        lambda token: token + "\n",
        lambda token: " " + token,
        lambda token: token.replace(".", " ."),
        lambda token: token.replace(".", "..", 1),
        lambda token: token[:10] + "\n" + token[10:],
        lambda token: token[:10] + "+" + token[10:],
        lambda token: token + ".",
        lambda token: token + "." + token,
        lambda token: "\ufeff" + token,
    ],
)
def test_a_token_has_one_spelling(change: Any) -> None:
    _refused(CHECKED, change(ISSUER.token()))


def test_every_shortened_token_is_refused() -> None:
    issuer = signer("EdDSA")
    checked = verifier(issuer)
    token = issuer.token()
    for length in range(len(token)):
        _refused(checked, token[:length])


@pytest.mark.parametrize(
    ("header", "payload", "reason"),
    [
        (b'{"alg":"none","alg":"RS256","kid":"one"}', None, "occurs twice"),
        (b'{"alg":"RS256","kid":"one","kid":"two"}', None, "occurs twice"),
        (b'{"alg":"RS256","kid":"one","x":{"a":1,"a":2}}', None, "occurs twice"),
        (b'{"alg":"RS256","k\\u0069d":"one","kid":"two"}', None, "occurs twice"),
        (None, b'{"exp":1900000000,"exp":1,"sub":"ada"}', "occurs twice"),
        (None, b'{"sub":"ada","sub":"root"}', "occurs twice"),
        (None, b'{"a":[{"b":1,"b":1}]}', "occurs twice"),
        (b'["RS256"]', None, "not a JSON object"),
        (b'"RS256"', None, "not a JSON object"),
        (b"", None, "not JSON"),
        (b'{"alg":"RS256",}', None, "not JSON"),
        (b"\xef\xbb\xbf{}", None, "not JSON"),
        ('{"alg":"RS256"}'.encode("utf-16"), None, "not JSON"),
        (b'{"alg":"RS256","x":"\xff"}', None, "not JSON"),
        (None, b"null", "not a JSON object"),
        (None, b"[]", "not a JSON object"),
        (None, b"", "not JSON"),
        (None, b'{"exp":NaN}', "not JSON"),
        (None, b'{"exp":Infinity}', "not JSON"),
        (None, b'{"exp":1e999,"sub":"ada"}', "`exp` is not a time"),
        (None, b'{"exp":' + b"9" * 4000 + b"}", "`exp` is not a time"),
        (None, b'{"exp":' + b"9" * 5000 + b"}", "not JSON"),
        (None, b'{"exp":1} {"exp":2}', "not JSON"),
        (b'{"x":' + b"[" * 16 + b"]" * 16 + b"}", None, "nested too deeply"),
        (None, b'{"x":' + b'{"x":' * 16 + b"1" + b"}" * 17, "nested too deeply"),
        (b"[" * 5000, None, "nested too deeply"),
        (None, b'{"x":' * 1000, "nested too deeply"),
    ],
)
def test_header_and_claims_are_strict_json(
    header: bytes | None, payload: bytes | None, reason: str
) -> None:
    token = ISSUER.raw(
        ISSUER.header() if header is None else header, claims() if payload is None else payload
    )
    _refused(CHECKED, token, reason)


def test_brackets_within_text_are_not_nesting() -> None:
    text = '[{"' * 40 + "\\"
    assert name_of(CHECKED, ISSUER.token({"x": text}, y=text)) == "ada"


def test_a_token_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    checked = verifier(ISSUER, bytes_max=1000)
    short = ISSUER.token(x="y" * 100)
    assert len(short) < 1000
    assert name_of(checked, short) == "ada"
    _refused(checked, ISSUER.token(x="y" * 1000), "more than 1000 bytes")
    _refused(checked, "." * 1_000_000, "more than 1000 bytes")


def test_no_header_takes_long_to_parse() -> None:
    """A forger needs no key for a header: what it costs has to grow with its length alone."""
    hostile = [b'{"' + b'\\"' * 2900, b'"' * 5800, b"[" * 5800, b'{"a":' * 1100, b"\\" * 5800]
    hostile += [b'{"x":' + b"9" * 5800 + b"}", b'{"' + b"a" * 5800, b'"\\' * 2900]
    started = time.process_time()
    for header in hostile * 20:
        _refused(CHECKED, f"{b64(header)}.e30.e30")
    assert time.process_time() - started < 2.0  # 160 of them; a quadratic one takes a minute


# -- whatever else


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "cty"])
CLAIMS = st.sampled_from(["exp", "nbf", "iat", "iss", "aud", "sub", "scope"])


@given(st.text() | st.text(alphabet="eyJ0.-_A=", max_size=60))
def test_any_text_is_a_token_or_unauthorized(text: str) -> None:
    _refused(CHECKED, text)


@given(st.dictionaries(HEADERS | st.text(), JSON, max_size=4))
def test_any_header_is_one_or_unauthorized(header: dict[str, Any]) -> None:
    _only_unauthorized(ISSUER_FAST.raw({**ISSUER_FAST.header(), **header}, claims()))


@given(st.dictionaries(CLAIMS | st.text(), JSON, max_size=4))
def test_any_claims_are_some_or_unauthorized(changes: dict[str, Any]) -> None:
    _only_unauthorized(ISSUER_FAST.raw(ISSUER_FAST.header(), {**claims(), **changes}))


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_a_token_or_unauthorized(
    header: bytes, payload: bytes, signature: bytes
) -> None:
    _refused(CHECKED, f"{b64(header)}.{b64(payload)}.{b64(signature)}")


@given(st.sampled_from(ALGORITHMS), st.binary(max_size=600))
def test_any_signature_is_wrong(algorithm: str, signature: bytes) -> None:
    issuer = signer(algorithm)
    signed = f"{b64(issuer.header())}.{b64(claims())}"
    _refused(verifier(issuer), f"{signed}.{b64(signature)}", "signature is wrong")


ISSUER_FAST = signer("EdDSA", kid="fast")
CHECKED_FAST = verifier(ISSUER_FAST)


def _only_unauthorized(token: str) -> None:
    try:
        identity = CHECKED_FAST.verify(token).identity
    except Unauthorized:
        return
    assert identity.name
    assert identity.expires_at_s > NOW_S
    assert all(":" in str(rule) for rule in identity.rules.all)
