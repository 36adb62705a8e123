"""The header of a forwarded request: a secret that peers share, and what the first process knows of
the client.

Pure. A request that carries it is never forwarded again.
"""

from __future__ import annotations

import functools
import hmac
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final

import msgspec

from penstock.http.sender import Certificate, Sender

HEADER: Final = b"penstock-hop"
OWNER: Final = b"penstock-owner"
"""The header of a `not-owner` answer that names the peer which owns the path."""
_REMEMBERED: Final = 1024


class Hop(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a peer is told of a request. `is_local` asks it to answer whoever owns the path: for its
    part of a list, or because the path's home has said that the stream is there. `to` is the name
    of the peer, where one address has several. `fills` says that the one who asks reads old bytes
    itself, and takes a plan (see plans.py) for a body."""

    peer: str = ""
    scheme: str = "http"
    certificate: Certificate | None = None
    is_local: bool = False
    to: str = ""
    fills: bool = False

    @property
    def sender(self) -> Sender:
        return Sender(self.peer, self.scheme, self.certificate)


class Hops:
    """Writes and reads the header with the secret of these peers."""

    __slots__ = ("_encode", "_parse", "_secret")

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        # Clients repeat themselves, so that encoding them again would be most of the cost.
        self._encode = functools.lru_cache(maxsize=_REMEMBERED)(self._encoded)
        self._parse = functools.lru_cache(maxsize=_REMEMBERED)(self._parsed)

    def value(
        self, sender: Sender, *, is_local: bool = False, to: str = "", fills: bool = False
    ) -> bytes:
        """Return the value of the header for a request of `sender`."""
        return self._encode(sender, is_local, to, fills)

    def parse(self, value: bytes) -> Hop | None:
        """Return what a header says; None if its secret is wrong."""
        return self._parse(value)

    def _encoded(self, sender: Sender, is_local: bool, to: str, fills: bool) -> bytes:
        hop = Hop(sender.peer, sender.scheme, sender.certificate, is_local, to, fills)
        return b"%b %b" % (self._secret, b2a_base64(msgspec.json.encode(hop), newline=False))

    def _parsed(self, value: bytes) -> Hop | None:
        secret, _, content = value.partition(b" ")
        if not hmac.compare_digest(secret, self._secret):
            return None
        try:
            return msgspec.json.decode(a2b_base64(content), type=Hop)
        except (Base64Error, msgspec.MsgspecError):
            return None
