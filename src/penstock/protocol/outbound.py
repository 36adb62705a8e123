"""Where the server may connect to: rules for URLs and addresses, before anything is sent.

Pure: names are resolved, and connections made, in egress.py alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import EgressRefused, InvalidUrl

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_BYTES_MAX: Final = 2048
PORTS: Final = {"https": 443, "http": 80}
PORT_FREE_MIN: Final = 1024
"""Below it only the port of the scheme is used: other servers must not be reached, such as those
for mail, names and files."""

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
_URL_BYTES = re.compile(r"[!$-;=?-Z\[\]_a-z~%]+", re.ASCII)
_SCHEME: Final = re.compile(r"[a-z]+:/{0,2}", re.ASCII | re.IGNORECASE)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

# The special-purpose registries of IANA, less what is globally reachable, and two addresses that
# look public but are a cloud's own: Python's `is_global` differs between versions.
_REFUSED_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # Azure's metadata and DNS
    )
)  # fmt: skip
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
_LOOPBACK: Final = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
# Services of a cloud or of this machine that trust whoever reaches them, and speak plain http.
_METADATA: Final[tuple[Network, ...]] = (
    *(IPv4Network(text) for text in ("169.254.0.0/16", "168.63.129.16/32", "192.0.0.192/32")),
    *(IPv4Network(text) for text in ("100.100.100.200/32", "0.0.0.0/8")),
    *(IPv6Network(text) for text in ("fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128")),
)
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")


class Target(NamedTuple):
    """A URL that may be requested. `path` includes the query; `host` is without brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return self.origin + self.path


def parse_url(text: str, *, bytes_max: int = URL_BYTES_MAX) -> Target:
    """Return the parts of an absolute http or https URL; InvalidUrl says what is wrong with it."""
    shown = repr(shown_url(text)[:100])
    if len(text) > bytes_max:
        raise InvalidUrl(f"A URL has at most {bytes_max} bytes here; {shown}… has more.")
    if not _URL_BYTES.fullmatch(text) or _BAD_ESCAPE.search(text):
        raise InvalidUrl(f"{shown} has characters that a URL cannot have; percent-encode them.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidUrl(f"{shown} is not a URL: its host or port cannot be read.") from None
    if parts.scheme not in PORTS:
        raise InvalidUrl(f"{shown} is not an absolute https URL.")
    if parts.username is not None or parts.password is not None:
        raise InvalidUrl("The URL has a user or password in it. Remove them.")
    if port is None:
        if parts.netloc.endswith(":"):
            raise InvalidUrl(f"{shown} has a colon without a port.")
        port = PORTS[parts.scheme]
    if port != PORTS[parts.scheme] and port < PORT_FREE_MIN:
        raise InvalidUrl(
            f"Port {port} is not allowed. Use {PORTS[parts.scheme]}, or one from {PORT_FREE_MIN} "
            "on."
        )
    host = _host(parts.hostname or "", shown)
    if ("[" in parts.netloc) != (":" in host):
        raise InvalidUrl(f"{shown} has brackets around what is no IPv6 address.")
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, host, port, (parts.path or "/") + query)


def shown_url(text: str) -> str:
    """Return what may be shown of a URL, or of what was meant to be one: no query and no user."""
    text = text.partition("?")[0].partition("#")[0]
    before, at, after = text.rpartition("@")
    if not at:
        return text
    scheme = _SCHEME.match(before)
    return f"{scheme[0] if scheme else ''}***@{after}"


def _host(host: str, shown: str) -> str:
    try:
        if "%" in host:
            raise ValueError  # a zone names an interface of this machine
        return str(ip_address(host))
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    # A name that ends in a number is an address in one of its odd spellings (127.1, 0x7f.1).
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1][:1].isdigit():
        raise InvalidUrl(f"{shown} has no host that can be resolved.")
    return host.lower()


class Policy(NamedTuple):
    """The exceptions of the settings: networks that are not public, plain http to them, and
    loopback for development."""

    networks: tuple[Network, ...] = ()
    development: bool = False
    http: bool = False

    def check_url(self, target: Target) -> None:
        """Refuse a URL that is not allowed whatever its host resolves to."""
        literal = _literal(target.host)
        # A name whose addresses may be allowed passes here: they are checked later.
        allows_http = self.development or (self.http and self.networks)
        if target.scheme == "http" and not allows_http:
            raise EgressRefused(
                f"{target.origin} is plain http; only https is used. egress_networks with "
                "egress_http allows http within private networks, --development to loopback."
            )
        if literal is not None:
            self.check_address(literal, target)

    def check_address(self, address: Address, target: Target) -> None:
        """Refuse an address that is not public, or for plain http one that the settings do not
        name."""
        if target.scheme == "http" and not self._allows_http(address):
            raise EgressRefused(
                f"{target.origin} is {address}, where plain http does not go. It goes to private "
                "networks that egress_networks names, with egress_http, and to loopback with "
                "--development; never to the metadata services of clouds."
            )
        if not self._allows(address):
            raise EgressRefused(
                f"{target.origin} is {address}, which is not a public address; "
                "egress_networks can allow its network."
            )

    def _allows_http(self, address: Address) -> bool:
        """Whether plain http may go to an address: it is in a private network that the settings
        name, and so is the IPv4 address that it leads to."""
        if self.development and is_loopback(address):
            return True
        if not self.http or is_public(address) or not _is_in(address, self.networks):
            return False
        inner = _embedded(address)
        return not _is_in(address, _METADATA) and (inner is None or self._allows_http(inner))

    def _allows(self, address: Address) -> bool:
        if self.development and is_loopback(address):
            return True
        if not _is_in(address, self.networks) and not is_public(address):
            return False
        inner = _embedded(address)
        return inner is None or self._allows(inner)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


def is_loopback(address: Address) -> bool:
    return _is_in(address, _LOOPBACK)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(network.version == address.version and address in network for network in networks)


def is_public(address: Address) -> bool:
    """Whether an address is public, not one of this machine, its network or its cloud."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def _embedded(address: Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, IPv4Address):
        return None
    if any(address in network for network in (_MAPPED, _NAT64)) or (
        address in _COMPATIBLE and int(address) > 1  # :: and ::1 are their own
    ):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.sixtofour


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
