"""What goes with a wake: tokens that are good for it alone, the form of a signature, and how long
to wait after a failure. Pure; keys and time are passed in.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

SIGNATURE: Final = "webhook-signature"


def mint_token(secret: bytes, scope: str, generation: int) -> str:
    """A bearer token for one generation of one subscription."""
    return f"{generation}.{_mac(secret, scope, generation)}"


def token_generation(secret: bytes, scope: str, token: str) -> int | None:
    """The generation that a token was made for; None if it was not made by us for `scope`."""
    number, _, mac = token.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 16):
        return None
    generation = int(number)
    wanted = _mac(secret, scope, generation)
    same = hmac.compare_digest(wanted.encode(), mac.encode("utf-8", "replace"))
    return generation if same and number == str(generation) else None


def signed_bytes(timestamp_s: int, body: bytes) -> bytes:
    """What a webhook's signature is over."""
    return b"%d.%s" % (timestamp_s, body)


def signature_header(timestamp_s: int, kid: str, signature: bytes) -> str:
    return f"t={timestamp_s},kid={kid},ed25519={b64url(signature)}"


def b64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_b64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _mac(secret: bytes, scope: str, generation: int) -> str:
    said = f"{scope}\n{generation}".encode("utf-8", "surrogatepass")
    return b64url(hmac.new(secret, said, hashlib.sha256).digest())
