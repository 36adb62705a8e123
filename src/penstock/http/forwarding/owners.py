"""Who owns a path: this process, or a peer that requests are forwarded to.

An interface. What decides about ownership (a hash over the processes of one machine, leases in a
database) is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.errors import NotOwner


class Address(NamedTuple):
    """Where a peer listens for its peers: the path of a UNIX socket, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0


class Peer(NamedTuple):
    """A process that serves with this one. Its name never changes; its address may."""

    name: str
    address: Address


class Owners(Protocol):
    """The owners of all paths, as far as this process knows."""

    @property
    def name(self) -> str:
        """The name of this process among its peers."""

    def owner(self, path: str) -> Peer | None:
        """Return the peer that owns a path; None if it is this process. NotOwner if nobody does
        now."""

    def peers(self) -> Sequence[Peer]:
        """Return all others that serve with this process; together they own every path."""

    def peer(self, name: str) -> Peer | None:
        """Return the peer of a name; None for this process itself. NotOwner for a name that nobody
        has."""


def unowned(what: str) -> NotOwner:
    return NotOwner(f"{what} Repeat the request shortly.", Retry_After="1")
