"""The keys that webhooks are signed with: created when first needed, stored with the subscriptions,
replaced when they are old. A new key is published before it is used and an old one after, so that
a receiver that caches the key set can check every signature.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.limits import JWKS_MAX_AGE_S
from penstock.protocol.wakes import b64url, from_b64url, signature_header, signed_bytes

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.subscriptions.store import SubscriptionStore

META: Final = "subscription-keys"
_SECOND_US: Final = 1_000_000


class Key(msgspec.Struct, frozen=True):
    """A signing key. `private` and `public` are its raw bytes in base64url; it signs from `from_us`
    on."""

    kid: str
    private: str
    public: str
    from_us: int

    @property
    def jwk(self) -> dict[str, Any]:
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
            "x": self.public,
        }


class Keys:
    def __init__(self, store: SubscriptionStore, settings: Settings, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._age_us = int(settings.webhook_key_age_s * _SECOND_US)
        self._overlap_us = int(settings.webhook_key_overlap_s * _SECOND_US)
        self._keys: list[Key] | None = None
        self._changing = asyncio.Lock()
        self._loaded = False

    @property
    def active(self) -> Key | None:
        """The key that signs now."""
        now = self._clock.now_us()
        usable = [key for key in self._stored() if key.from_us <= now]
        return usable[-1] if usable else None

    def jwks(self) -> dict[str, Any]:
        """Return the public keys that receivers check signatures with."""
        return {"keys": [key.jwk for key in self._published()]}

    async def renew(self) -> None:
        """Create the first key, or the next one when the newest is old enough."""
        async with self._changing:
            newest = self._newest
            if newest is None or self._clock.now_us() >= newest.from_us + self._age_us:
                await self._add()

    async def rotate(self) -> Key:
        """Create the next key now, unless there is one that is published and does not sign yet."""
        async with self._changing:
            newest = self._newest
            if newest is None or newest.from_us <= self._clock.now_us():
                newest = await self._add()
            return newest

    @property
    def _newest(self) -> Key | None:
        keys = self._published()
        return keys[-1] if keys else None

    async def _add(self) -> Key:
        if not self._loaded:
            # On a thread: the import takes long enough to delay every other request.
            await asyncio.to_thread(_load)
            self._loaded = True
        published, now = self._published(), self._clock.now_us()
        # The first key has no predecessor that could sign until receivers have seen it.
        added = _generate(now + JWKS_MAX_AGE_S * _SECOND_US if published else now)
        keys = [*published, added]
        # Stored before it is used: after a crash its signatures could not be checked otherwise.
        await self._store.set_meta(META, msgspec.json.encode(keys))
        self._keys = keys
        return added

    def sign(self, body: bytes) -> str:
        """Return the value of a Webhook-Signature header for a body that is sent now."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = self.active
        assert key is not None, "a key is created before the first webhook"
        timestamp_s = self._clock.now_us() // _SECOND_US
        private = Ed25519PrivateKey.from_private_bytes(from_b64url(key.private))
        return signature_header(timestamp_s, key.kid, private.sign(signed_bytes(timestamp_s, body)))

    def _stored(self) -> list[Key]:
        if self._keys is None:
            value = self._store.meta(META)
            if value is None:
                return []
            self._keys = msgspec.json.decode(value, type=list[Key])
        return self._keys

    def _published(self) -> list[Key]:
        """Return all keys but those whose successor has signed for longer than the overlap."""
        now, keys = self._clock.now_us(), self._stored()
        return [
            key
            for key, successor in zip(keys, [*keys[1:], None], strict=False)
            if successor is None or now < successor.from_us + self._overlap_us
        ]


def _load() -> None:
    # Imported for its side effect: the module is loaded before the first signature is needed.
    import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401


def _generate(from_us: int) -> Key:
    # Imported when there is something to sign: most servers have no webhooks.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = b64url(private.public_key().public_bytes_raw())
    # A thumbprint as in RFC 7638, so that a kid is never used for another key.
    thumb = hashlib.sha256(b'{"crv":"Ed25519","kty":"OKP","x":"%s"}' % public.encode()).digest()
    return Key(f"ds_{b64url(thumb)}", b64url(private.private_bytes_raw()), public, from_us)
