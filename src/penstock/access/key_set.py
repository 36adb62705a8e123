"""The keys that JWTs are verified with: one secret, or those of a JWKS (RFC 7517).

Knows which key may verify which algorithm, and nothing of tokens or of where keys come from. PyJWT
is imported when there are keys to parse: most servers have none.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.access.jose import Malformed, decode_base64url, parse_object
from penstock.limits import JWT_KEYS_BYTES_MAX, JWT_KEYS_MAX

if TYPE_CHECKING:
    from jwt.algorithms import Algorithm

SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_KINDS: Final[dict[tuple[str, str | None], tuple[str, ...]]] = {
    ("oct", None): SECRET_ALGORITHMS,
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""What a key of each type and curve can verify: never anything else, whatever a token says."""
ALGORITHMS: Final = tuple(dict.fromkeys(name for names in _KINDS.values() for name in names))
_MEMBERS: Final = {"oct": ("k",), "RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_SECRET_BYTES_MIN: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, section 3.2

RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192  # a larger one takes milliseconds for each forged token
_RSA_EXPONENT_BYTES_MAX: Final = 4
KID_CHARACTERS_MAX: Final = 256
_DEPTH_MAX: Final = 8


class UnusableKeys(Exception):
    """A key set, or a secret, that cannot be used. The message completes a sentence about it."""


class Key(NamedTuple):
    """A key, for one algorithm. Keys with the same `fingerprint` are the same key."""

    algorithm: Algorithm
    material: Any
    fingerprint: bytes

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        """Whether `signature` is one of this key for the bytes `signed`."""
        return self.algorithm.verify(signed, self.material, signature)


class KeySet:
    """Keys by their `kid` and algorithm. It never changes: another set takes its place."""

    __slots__ = ("_by_algorithm", "_by_kid", "_fingerprints")

    def __init__(self, keys: Iterable[tuple[str | None, str, Key]] = ()) -> None:
        self._by_kid: dict[tuple[str | None, str], list[Key]] = {}
        self._by_algorithm: dict[str, list[Key]] = {}
        self._fingerprints: set[bytes] = set()
        for kid, algorithm, key in keys:
            self._by_kid.setdefault((kid, algorithm), []).append(key)
            self._by_algorithm.setdefault(algorithm, []).append(key)
            self._fingerprints.add(key.fingerprint)

    def __len__(self) -> int:
        """The number of pairs of a key and an algorithm."""
        return sum(map(len, self._by_algorithm.values()))

    def __contains__(self, key: Key) -> bool:
        return key.fingerprint in self._fingerprints

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the one key for a token; None if there is none, or several that it does not tell
        apart. A key without a `kid` verifies tokens that name no other key."""
        if kid is None:
            keys = self._by_algorithm.get(algorithm, [])
        else:
            keys = self._by_kid.get((kid, algorithm)) or self._by_kid.get((None, algorithm), [])
        return keys[0] if len(keys) == 1 else None


class KeyRules(NamedTuple):
    """Which keys of a JWKS are used: those for these algorithms, and if it `must_name_alg` only
    those that name theirs."""

    algorithms: tuple[str, ...]
    must_name_alg: bool = False


class ParsedKeys(NamedTuple):
    keys: KeySet
    ignored: tuple[str, ...]


def secret_key_set(secret: bytes, algorithms: Iterable[str]) -> KeySet:
    """Return the key set of one secret, or raise UnusableKeys."""
    names = tuple(algorithms)
    _check_secret(secret)
    for name in names:
        if len(secret) < _SECRET_BYTES_MIN[name]:
            raise UnusableKeys(
                f"must have at least {_SECRET_BYTES_MIN[name]} bytes for {name}; "
                "`openssl rand -hex 32` prints 64"
            )
    return KeySet((None, name, _key(name, secret, secret)) for name in names)


def parse_key_set(data: bytes, rules: KeyRules) -> ParsedKeys:
    """Return the keys of a JWKS that can be used, and why others are not; UnusableKeys if the
    document is none."""
    if len(data) > JWT_KEYS_BYTES_MAX:
        raise UnusableKeys(f"has more than {JWT_KEYS_BYTES_MAX} bytes")
    try:
        entries = parse_object(data, depth_max=_DEPTH_MAX).get("keys")
    except Malformed as error:
        raise UnusableKeys(f"is {error}") from None
    if not isinstance(entries, list):
        raise UnusableKeys("is no JWKS: it has no list `keys`")
    if len(entries) > JWT_KEYS_MAX:
        raise UnusableKeys(f"has more than {JWT_KEYS_MAX} keys")
    keys: dict[tuple[str | None, str, int], Key] = {}
    ignored = []
    for index, entry in enumerate(entries):
        try:
            kid, usable = _parse_key(entry, rules)
            # Of nameless keys there may be several; which one a token means is then unknown.
            at = index if kid is None else 0
            if any((kid, name, at) in keys for name in usable):
                raise UnusableKeys("has the `kid` of another one")
            keys.update({(kid, name, at): key for name, key in usable.items()})
        except UnusableKeys as error:
            ignored.append(f"key {index + 1} {error}")
    return ParsedKeys(
        KeySet((kid, name, key) for (kid, name, _), key in keys.items()), tuple(ignored)
    )


def _parse_key(entry: object, rules: KeyRules) -> tuple[str | None, dict[str, Key]]:
    """Return the `kid` of a JWK and its key for each algorithm that it may verify."""
    if not isinstance(entry, dict):
        raise UnusableKeys("is not an object")
    kid = entry.get("kid")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARACTERS_MAX):
        raise UnusableKeys(f"has a `kid` that is not 1 to {KID_CHARACTERS_MAX} characters")
    if entry.get("use", "sig") != "sig":
        raise UnusableKeys("is not for signatures")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKeys("is not for verifying")
    kind = entry.get("kty")
    curve = entry.get("crv") if kind in ("EC", "OKP") else None
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        raise UnusableKeys("has no type")
    names = [name for name in _KINDS.get((kind, curve), ()) if name in rules.algorithms]
    if "alg" in entry:
        names = [name for name in names if name == entry["alg"]]
    elif rules.must_name_alg:
        raise UnusableKeys("has no `alg`, which keys need where jwt_algorithms mixes HS and others")
    if not names:
        raise UnusableKeys("is not for an algorithm of jwt_algorithms")
    return kid, _load(kind, entry, names)


def _load(kind: str, entry: dict[str, Any], names: list[str]) -> dict[str, Key]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from jwt.exceptions import PyJWTError

    if kind != "oct" and "d" in entry:
        raise UnusableKeys("has its private half: publish the public one alone")
    members = {"kty": kind, "crv": entry.get("crv")}
    for name in _MEMBERS[kind]:
        try:
            size = len(decode_base64url(entry[name]))
        except (Malformed, KeyError, TypeError):
            raise UnusableKeys(f"has no valid `{name}`") from None
        if kind == "RSA" and size > (
            _RSA_EXPONENT_BYTES_MAX if name == "e" else RSA_BITS_MAX // 8 + 1
        ):
            raise UnusableKeys(f"has a `{name}` that is too long")
        members[name] = entry[name]
    try:
        material: Any = _algorithms()[names[0]].from_jwk(members)
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        raise UnusableKeys("is not valid") from None
    if kind == "RSA" and material.key_size < RSA_BITS_MIN:
        raise UnusableKeys(f"has less than {RSA_BITS_MIN} bits")
    if kind == "oct":
        _check_secret(material)
        names = [name for name in names if len(material) >= _SECRET_BYTES_MIN[name]]
        if not names:
            raise UnusableKeys("is too short for its algorithm")
    identity = msgspec.json.encode(members, order="deterministic")
    return {name: _key(name, material, identity) for name in names}


def _key(algorithm: str, material: Any, identity: bytes) -> Key:
    fingerprint = hashlib.sha256(f"{algorithm}:".encode("ascii") + identity).digest()
    return Key(_algorithms()[algorithm], material, fingerprint)


def _check_secret(secret: bytes) -> None:
    """Refuse as a secret what is a public key: whoever has it could sign tokens."""
    from jwt.exceptions import InvalidKeyError

    algorithm = _algorithms()["HS256"]
    contents = [secret]
    try:
        contents.append(b64decode(secret, validate=True))
    except ValueError:
        pass
    for content in contents:
        try:
            algorithm.prepare_key(content)
            is_key = b"-----BEGIN" in content
        except InvalidKeyError:
            is_key = True
        if is_key:
            raise UnusableKeys("is a key of another kind, and no secret")


@cache
def _algorithms() -> dict[str, Algorithm]:
    from jwt.algorithms import get_default_algorithms

    supported = get_default_algorithms()
    return {name: supported[name] for name in ALGORITHMS}


def preload() -> None:
    """Import what verifying needs, so that no request waits for it."""
    _algorithms()
