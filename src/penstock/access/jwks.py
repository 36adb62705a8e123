"""The keys that JWTs are verified with: one secret, or a JWKS (RFC 7517) from a file or a URL.

Knows which key may verify which algorithm, and nothing of tokens. PyJWT is imported when there are
keys to load: most servers have none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penstock.access.jose import Malformed, decode_base64url, parse_object
from penstock.backoff import Backoff
from penstock.errors import EgressFailed, PenstockError
from penstock.limits import JWT_KEYS_BYTES_MAX, JWT_KEYS_MAX

if TYPE_CHECKING:
    from jwt.algorithms import Algorithm

    from penstock.egress import Egress

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
_IGNORED_SHOWN: Final = 5

REFRESH_GAP_S: Final = 5.0
"""Shortest time between two fetches of a URL, however many tokens name unknown keys."""
AGE_MIN_S: Final = 60.0
"""Shortest time between two fetches that the Cache-Control of a URL can ask for."""
FILE_CHECK_S: Final = 1.0
"""Time between two reads of a file."""
FILE_GAP_S: Final = 0.5
_MAX_AGE: Final = re.compile(r'max-age\s*=\s*"?(\d{1,9})', re.ASCII | re.IGNORECASE)

_log = logging.getLogger(__name__)


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


class Document(NamedTuple):
    """A JWKS as bytes, and for how long it may be cached, if its origin says so."""

    data: bytes
    age_s: float | None = None


class Source(Protocol):
    """Where a JWKS comes from. `name` is for messages."""

    @property
    def name(self) -> str: ...

    async def load(self) -> Document: ...


class KeyFile:
    """A JWKS in a file. It is read every time: comparing time stamps would cost as much."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    async def load(self) -> Document:
        return await asyncio.to_thread(self.read)

    def read(self) -> Document:
        with self._path.open("rb") as file:
            return Document(file.read(JWT_KEYS_BYTES_MAX + 1))


class KeyUrl:
    """A JWKS of another server."""

    def __init__(self, url: str, egress: Egress) -> None:
        self._url = url
        self._egress = egress

    @property
    def name(self) -> str:
        return self._url.partition("?")[0]

    async def load(self) -> Document:
        answer = await self._egress.request(
            "GET",
            self._url,
            headers={"accept": "application/jwk-set+json, application/json"},
            bytes_max=JWT_KEYS_BYTES_MAX,
        )
        if answer.status != 200:
            raise EgressFailed(f"{self.name} answers with status {answer.status}, not 200.")
        return Document(answer.body, _age_s(answer.headers.get("cache-control", "")))


def _age_s(cache_control: str) -> float | None:
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return 0.0
    match = _MAX_AGE.search(cache_control)
    return float(match[1]) if match else None


class Keys:
    """The key set in effect. With a source it is renewed in the background: every `age_s`, or
    sooner if the source says so, and when a token names a key that is not there. The last good set
    stays when the source fails. `on_change` is called with every other set.
    """

    def __init__(
        self,
        keys: KeySet | None = None,
        *,
        source: Source | None = None,
        rules: KeyRules | None = None,
        age_s: float = 0.0,
        gap_s: float = REFRESH_GAP_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = KeySet() if keys is None else keys
        self.on_change: Callable[[KeySet], None] = lambda keys: None
        self.loads = 0
        self.failures = 0
        self._source = source
        self._rules = rules
        self._age_s = age_s
        self._gap_s = gap_s
        self._monotonic = monotonic
        self._backoff = Backoff(base_s=min(gap_s, age_s), cap_s=max(age_s, 0.0), jitter=0.2)
        self._wait_s = age_s
        self._attempted_s = float("-inf")
        self._digest = b""
        self._problem = ""
        self._loading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the source now, and again whenever it is due."""
        if self._source is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        for task in (self._task, self._loading):
            if task is not None:
                task.cancel()

    async def refresh(self) -> None:
        """Load the source, unless that was tried a moment ago. Callers at the same time share one
        load."""
        loading = self._load_if_due()
        if loading is not None:
            await asyncio.shield(loading)

    def refresh_soon(self) -> float | None:
        """Begin to load the source, as `refresh` does, and return after how many seconds an unknown
        key may be there; None if it is not to be expected."""
        if self._load_if_due() is not None:
            return 1.0
        # The last set is out of date for an unknown time: it proves nothing about a missing key.
        return self._gap_s if self._problem else None

    def take(self, document: Document) -> None:
        """Replace the key set by that of a document; UnusableKeys leaves it as it is."""
        self._replace(document, self._parse(document))

    def _parse(self, document: Document) -> ParsedKeys | None:
        """Return the keys of a document that is not the last one."""
        assert self._rules is not None
        if hashlib.sha256(document.data).digest() == self._digest:
            return None
        return parse_key_set(document.data, self._rules)

    def _replace(self, document: Document, parsed: ParsedKeys | None) -> None:
        age_s = self._age_s if document.age_s is None else document.age_s
        self._wait_s = min(max(age_s, AGE_MIN_S), self._age_s)
        if parsed is None:
            return
        assert self._source is not None
        self._digest = hashlib.sha256(document.data).digest()
        self.current = parsed.keys
        _report(self._source.name, parsed)
        self.on_change(parsed.keys)

    def _load_if_due(self) -> asyncio.Task[None] | None:
        is_due = self._monotonic() >= self._attempted_s + self._gap_s
        if self._loading is None and self._source is not None and is_due:
            return self._begin()
        return self._loading

    def _begin(self) -> asyncio.Task[None]:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(self._ended)
        return self._loading

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._loading = None

    async def _run(self) -> None:
        failed = 0
        while True:
            await asyncio.shield(self._begin())
            failed = failed + 1 if self._problem else 0
            wait_s = self._backoff.wait_s(failed, random.random()) if failed else self._wait_s
            await asyncio.sleep(wait_s)

    async def _load(self) -> None:
        assert self._source is not None
        self._attempted_s = self._monotonic()
        self.loads += 1
        try:
            document = await self._source.load()
            # On a thread: a hundred keys take long enough to delay every other request.
            self._replace(document, await asyncio.to_thread(self._parse, document))
        except UnusableKeys as error:
            self._failed(f"it {error}")
        except PenstockError as error:
            self._failed(error.detail)
        except OSError as error:
            self._failed(error.strerror or str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next load may succeed
            self._failed(repr(error))
        else:
            if self._problem:
                _log.warning("the keys of JWTs are loaded again: %s", self._source.name)
            self._problem = ""

    def _failed(self, problem: str) -> None:
        assert self._source is not None
        self.failures += 1
        if problem != self._problem:
            _log.warning(
                "cannot load the keys of JWTs from %s, %s: %s",
                self._source.name,
                "the last ones stay" if len(self.current) else "no JWT is accepted",
                problem,
            )
        self._problem = problem


def _report(name: str, parsed: ParsedKeys) -> None:
    if parsed.ignored:
        shown = "; ".join(parsed.ignored[:_IGNORED_SHOWN])
        more = len(parsed.ignored) - _IGNORED_SHOWN
        _log.warning("%s: %s%s", name, shown, f"; and {more} more" if more > 0 else "")
    if not len(parsed.keys):
        _log.warning("%s has no key that can be used: no JWT is accepted", name)
