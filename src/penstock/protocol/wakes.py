"""What goes with a wake: tokens that are good for it alone, the form of a signature, and how long
to wait after a failure. Pure; keys and time are passed in.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

JITTER: Final = 0.2
SIGNATURE: Final = "webhook-signature"


def mint_token(secret: bytes, scope: str, generation: int) -> str:
    """Return a bearer token for one generation of one subscription."""
    return f"{generation}.{_mac(secret, scope, generation)}"


def token_generation(secret: bytes, scope: str, token: str) -> int | None:
    """Return the generation of a token; None unless this server made it for `scope`."""
    number, _, mac = token.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 16):
        return None
    generation = int(number)
    expected = _mac(secret, scope, generation)
    same = hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace"))
    return generation if same and number == str(generation) else None


def signed_bytes(timestamp_s: int, body: bytes) -> bytes:
    """Return the bytes that the signature of a webhook covers."""
    return b"%d.%s" % (timestamp_s, body)


def signature_header(timestamp_s: int, kid: str, signature: bytes) -> str:
    return f"t={timestamp_s},kid={kid},ed25519={b64url(signature)}"


def retry_wait_s(attempts: int, first_s: float, max_s: float, chance: float) -> float:
    """How long to wait after so many failures in a row; `chance` is from 0 to 1."""
    wait_s = min(first_s * 2.0 ** min(max(attempts, 1) - 1, 30), max_s)
    return wait_s * (1 + JITTER * (2 * chance - 1))


def b64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_b64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _mac(secret: bytes, scope: str, generation: int) -> str:
    message = f"{scope}\n{generation}".encode("utf-8", "surrogatepass")
    return b64url(hmac.new(secret, message, hashlib.sha256).digest())
