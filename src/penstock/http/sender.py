"""Where a request comes from: the address of its client, the scheme that the client used, and the
certificate that it showed.

Pure: what a proxy says of its client is believed only if the proxy is trusted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

HTTP: Final = "http"
HTTPS: Final = "https"
# Addresses of one header that are looked at: more proxies than that are no real chain.
HOPS_MAX: Final = 32
# Combinations of a proxy and its headers that are remembered.
_REMEMBERED: Final = 1024

_SCHEMES = {b"http": HTTP, b"https": HTTPS}
_WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?|(\d{1,3}(?:\.\d{1,3}){3})(?::\d{1,5})?")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[^"\\]|\\.)*"'
_PAIR = rb"\s*(%s)\s*=\s*(%s|%s)\s*" % (_TOKEN, _TOKEN, _QUOTED)
_PAIRS = re.compile(_PAIR)
# The last element of a `Forwarded` header (RFC 7239): no quote that a stranger left open hides it.
_LAST = re.compile(rb"(?:^|,)(%s(?:;%s)*)\Z" % (_PAIR, _PAIR))
# The end of that header which is looked at.
_FORWARDED_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate that was verified: the names of its subject, and its fingerprint."""

    common_name: str
    dns: tuple[str, ...]
    uris: tuple[str, ...]
    emails: tuple[str, ...]
    sha256: str
    """The SHA-256 fingerprint, in lower-case hexadecimal."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the subject, alternative ones first: they are what authorities check."""
        return (*self.uris, *self.dns, *self.emails, self.common_name)


@dataclass(frozen=True, slots=True)
class Sender:
    """The client of a request. One value serves all requests of a connection."""

    peer: str = ""
    """The client's IP address; empty if it is unknown."""
    scheme: str = HTTP
    certificate: Certificate | None = None
    is_proxy: bool = False
    """Whether this is a trusted proxy, whose headers name the client."""


NOWHERE: Final = Sender()


class Proxies:
    """The networks of the trusted proxies, and what their headers say of clients."""

    __slots__ = ("_forwarded", "_networks")

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(network) for network in networks)
        # Clients repeat their headers, so that parsing them again would be most of the cost.
        self._forwarded = functools.lru_cache(maxsize=_REMEMBERED)(self._parse)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peer: str) -> bool:
        """Whether `peer` is the address of a trusted proxy."""
        try:
            return bool(self._networks) and self._covers(ip_address(peer))
        except ValueError:
            return False

    def client(self, sender: Sender, headers: Mapping[bytes, bytes]) -> Sender:
        """Return the sender of a request that came from `sender` with these headers."""
        if not sender.is_proxy:
            return sender
        return self._forwarded(
            sender,
            headers.get(b"x-forwarded-for"),
            headers.get(b"x-forwarded-proto"),
            headers.get(b"forwarded"),
        )

    def _covers(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)

    def _parse(
        self, sender: Sender, chain: bytes | None, proto: bytes | None, forwarded: bytes | None
    ) -> Sender:
        # A proxy that sets the X- headers passes a client's `Forwarded` on: it says nothing then.
        if chain is not None or proto is not None:
            hops = [] if chain is None else chain.split(b",")[-HOPS_MAX:]
            peer, _ = self._client(sender.peer, [hop.decode("latin-1") for hop in hops])
            scheme = b"" if proto is None else proto.rpartition(b",")[2].strip().lower()
        elif forwarded is not None:
            elements = _elements(forwarded)
            clients = [element.get(b"for", b"").decode("latin-1") for element in elements]
            peer, index = self._client(sender.peer, clients)
            scheme = elements[index].get(b"proto", b"").lower() if elements else b""
        else:
            return sender
        # The certificate is the proxy's own: it says nothing of the client.
        return Sender(peer, _SCHEMES.get(scheme, sender.scheme))

    def _client(self, peer: str, hops: list[str]) -> tuple[str, int]:
        """Return the last address that is no trusted proxy, or else the first, and its index.

        What a stranger wrote is to the left of it. An entry that is no address ends the search:
        the hop after it is the last that is certain.
        """
        index = len(hops)
        while index > 0:
            address = _address(hops[index - 1].strip())
            if address is None:
                break
            index -= 1
            peer = str(address)
            if not self._covers(address):
                break
        return peer, min(index, max(len(hops) - 1, 0))


def plain_address(peer: str) -> str:
    """Return an address of a socket in its usual form: an IPv4 client of an IPv6 socket as IPv4."""
    if ":" not in peer:
        return peer
    address = _address(peer.partition("%")[0])  # without the zone of a link-local address
    return peer if address is None else str(address)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    match = _WITH_PORT.fullmatch(text)
    if match is not None:
        text = match[1] or match[2]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _elements(value: bytes) -> list[dict[bytes, bytes]]:
    """Return the elements of a `Forwarded` header that follow the last mistake in it."""
    value = value[-_FORWARDED_BYTES:]
    elements: list[dict[bytes, bytes]] = []
    while len(elements) < HOPS_MAX and (last := _LAST.search(value)) is not None:
        pairs = _PAIRS.findall(last[1])
        elements.append({name.lower(): _unquoted(text) for name, text in reversed(pairs)})
        value = value[: last.start()]
    return elements[::-1]


def _unquoted(text: bytes) -> bytes:
    return re.sub(rb"\\(.)", rb"\1", text[1:-1]) if text[:1] == b'"' else text
