"""Who can reach a server: whether it listens on loopback alone, and whether it has access rules.

Resolves host names; opens no socket.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

from penstock.config.setting import InvalidSetting
from penstock.protocol.outbound import is_loopback

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.config.settings import Settings


def check_exposure(settings: Settings, access: Access) -> None:
    """Raise InvalidSetting for a server that other machines could reach without access rules."""
    if settings.insecure or not access.is_open or listens_on_loopback(settings.host):
        return
    raise InvalidSetting(
        f"Other machines can reach {settings.host}, and without access rules anyone there may read "
        "and delete every stream. Set a token (--token or PENSTOCK_TOKEN), or start with "
        "--insecure (PENSTOCK_INSECURE=true)."
    )


def listens_on_loopback(host: str) -> bool:
    """Whether every address of `host` is one of this machine's loopback addresses.

    OSError for a name that cannot be resolved.
    """
    if not host:
        return False  # the empty name is every address of the machine
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    addresses = socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    # An IPv6 address may have a zone, which names an interface: fe80::1%eth0.
    return all(
        is_loopback(ip_address(str(address[0]).partition("%")[0]))
        for _, _, _, _, address in addresses
    )
