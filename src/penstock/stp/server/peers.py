"""Which peers the server trusts, the tokens it sends to them, and the paths of their mirrors. Pure.

A peer is a host. Whether an address may be connected to at all is decided by egress.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from penstock.config.setting import InvalidSetting
from penstock.errors import EgressRefused, InvalidUrl
from penstock.protocol.headers import parse_stream_path
from penstock.protocol.outbound import Target, is_loopback, parse_url

if TYPE_CHECKING:
    from penstock.config.settings import Settings


TABLES: Final = "/v1/table/"
MIRRORS: Final = "mirror"


class Peers:
    """The allow-list of `stp_peers`, and `stp_peer_tokens`."""

    __slots__ = ("_development", "_patterns", "_tokens")

    def __init__(self, settings: Settings) -> None:
        self._patterns = tuple(text.lower() for text in settings.stp_peers)
        self._development = settings.development
        self._tokens = dict(_tokens(settings.stp_peer_tokens))

    def trusts(self, target: Target) -> bool:
        """Whether a Notify may make this server follow or notify a URL."""
        if self._development and _is_this_machine(target.host):
            return True
        return any(_matches(pattern, target) for pattern in self._patterns)

    def check(self, target: Target) -> None:
        """Refuse a source that an operator asks for, if there is an allow-list without it."""
        if self._patterns and not self.trusts(target):
            raise EgressRefused(
                f"{target.host} is not among the peers of this server; add it to stp_peers."
            )

    def headers(self, target: Target) -> dict[str, str]:
        """Return the credentials of a server: a token is for one scheme, host and port."""
        token = self._tokens.get(target.origin)
        return {} if token is None else {"authorization": f"Bearer {token}"}


def mirror_path(surl: Target) -> str:
    """Return the default path of a mirror: below `mirror`, by host and path."""
    path, _, query = surl.path.partition("?")
    path = path.removeprefix(TABLES.rstrip("/")).strip("/")
    host = surl.authority.replace("[", "").replace("]", "").replace(":", "_")
    parts = [MIRRORS, host, *filter(None, path.split("/"))]
    if query:
        parts.append(hashlib.sha256(query.encode()).hexdigest()[:12])
    return parse_stream_path("/".join(parts).encode())


def _matches(pattern: str, target: Target) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*."):
        return target.host.endswith(pattern[1:])
    return pattern in (target.host, target.authority, target.origin)


def _is_this_machine(host: str) -> bool:
    try:
        return is_loopback(ip_address(host))
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _tokens(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        url, equals, token = text.partition("=")
        try:
            target = parse_url(url)
        except InvalidUrl:
            equals = ""
        if not equals or not token:
            raise InvalidSetting("stp_peer_tokens: each is https://host=token, or with a port")
        yield target.origin, token
