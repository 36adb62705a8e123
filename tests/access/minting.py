"""Keys and tokens of an issuer, and of those who would like to be one.

issuer = signer("RS256", kid="a")
token = issuer.token(scope="read:chat/**")
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from penstock.access.jwks import Keys
from penstock.access.jwt import JwtAccess, JwtPolicy, JwtVerifier
from penstock.access.key_set import KeyRules, parse_key_set
from penstock.clock import ManualClock

NOW_S = 1_800_000_000
ISSUER = "https://login.example.com/"
AUDIENCE = "https://streams.example.com"
SECRET = b"s" * 64
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
_ALGORITHMS = get_default_algorithms()


def b64(data: bytes | Mapping[str, Any]) -> str:
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are valid at NOW_S; a change to None leaves a claim out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW_S + 600, "iat": NOW_S}
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


class Signer(NamedTuple):
    algorithm: str
    private: Any
    kid: str | None

    @property
    def public(self) -> Any:
        return self.private if self.algorithm.startswith("HS") else self.private.public_key()

    def jwk(self, **members: Any) -> dict[str, Any]:
        """The public key as a JWK; a member that is None is left out."""
        jwk = json.loads(_ALGORITHMS[self.algorithm].to_jwk(self.public))
        jwk |= {"kid": self.kid, "alg": self.algorithm, "use": "sig", **members}
        return {name: value for name, value in jwk.items() if value is not None}

    def sign(self, signed: bytes) -> bytes:
        return _ALGORITHMS[self.algorithm].sign(signed, self.private)

    def header(self, **members: Any) -> dict[str, Any]:
        header = {"typ": "JWT", "alg": self.algorithm, "kid": self.kid, **members}
        return {name: value for name, value in header.items() if value is not None}

    def raw(self, header: bytes | Mapping[str, Any], payload: bytes | Mapping[str, Any]) -> str:
        """A token with any header and any claims, valid or not, under a true signature."""
        signed = f"{b64(header)}.{b64(payload)}"
        return f"{signed}.{b64(self.sign(signed.encode()))}"

    def token(self, header: Mapping[str, Any] | None = None, **changes: Any) -> str:
        return self.raw(self.header(**(header or {})), claims(**changes))


@cache
def signer(algorithm: str = "ES256", kid: str | None = "one", name: str = "issuer") -> Signer:
    """The signer of a `name`: another name is another key, with the same `kid` if it likes."""
    if algorithm.startswith("HS"):
        private: Any = (name.encode() * 64)[:64]
    elif algorithm in CURVES:
        private = ec.generate_private_key(CURVES[algorithm])
    elif algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = _rsa(name)
    return Signer(algorithm, private, kid)


@cache
def _rsa(_name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def document(*jwks: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": jwks}).encode()


def policy(*algorithms: str, **changes: Any) -> JwtPolicy:
    usual: dict[str, Any] = {
        "algorithms": algorithms or ("ES256",),
        "issuers": frozenset({ISSUER}),
        "audiences": frozenset({AUDIENCE}),
        "leeway_s": 30.0,
        "scope_claim": "scope",
        "scope_prefix": "",
        "bytes_max": 8192,
    }
    return JwtPolicy(**{**usual, **changes})


def keys(*jwks: Mapping[str, Any], algorithms: tuple[str, ...]) -> Keys:
    """Fixed keys, all of them usable."""
    parsed = parse_key_set(document(*jwks), KeyRules(algorithms))
    assert parsed.ignored == ()
    return Keys(parsed.keys)


def verifier(*signers: Signer, **changes: Any) -> JwtVerifier:
    """A verifier that has the keys of `signers` and accepts their algorithms."""
    algorithms = tuple(dict.fromkeys(each.algorithm for each in signers))
    return JwtVerifier(
        policy(*algorithms, **changes),
        keys(*(each.jwk() for each in signers), algorithms=algorithms),
        clock=ManualClock(NOW_S * 1_000_000),
    )


def write_keys(path: Path, *jwks: Mapping[str, Any]) -> Path:
    path.write_bytes(document(*jwks))
    return path


def name_of(checked: JwtVerifier | JwtAccess, token: str) -> str:
    """The name in a valid token."""
    if isinstance(checked, JwtVerifier):
        return checked.verify(token).identity.name
    principal = checked.principal(token)
    assert principal is not None
    return principal.name.removeprefix("jwt:")
