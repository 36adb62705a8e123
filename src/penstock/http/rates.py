"""How fast one client may send: requests and bytes per second, by address and by principal.

Knows requests, principals and time; nothing of what a request asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from math import ceil
from typing import TYPE_CHECKING, Final

from penstock.errors import ByteRateLimited, PenstockError, RateLimited

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.http.message import Request

PEERS_MAX: Final = 10_000
"""Clients that one limit remembers."""
_WITH_BODY: Final = ("POST", "PUT")
_SITE_BITS: Final = 64
"""What one customer of a provider gets of the IPv6 addresses: it has all of them at will."""


def counts_requests(settings: Settings) -> bool:
    """Whether every request has to be counted, also one whose head was let in before."""
    return any(
        (
            settings.rate_limit_per_s,
            settings.principal_rate_per_s,
            settings.address_bytes_per_s,
            settings.principal_bytes_per_s,
        )
    )


@lru_cache(maxsize=PEERS_MAX)
def site(address: str) -> str:
    """Return what an address is counted as: an IPv6 address as its network of 64 bits."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> _SITE_BITS << _SITE_BITS)}/{_SITE_BITS}"


def holder(principal: Principal, peer: str) -> str | None:
    """Return whose limits a request counts for; None for root, who has none.

    Anonymous requests share one principal, but each address has its own share of it: one stranger
    must not lock out all the others.
    """
    if principal.is_root:
        return None
    return f"anonymous {site(peer)}" if principal.is_anonymous else f"principal {principal.id}"


class RateLimit:
    """A token bucket per client, one second deep, in a table of bounded size.

    What is larger than the bucket is let in when the bucket is full, and leaves a debt.
    """

    __slots__ = ("_buckets", "_burst", "_monotonic", "_peers_max", "_per_s", "_refusal")

    def __init__(
        self,
        per_s: float,
        *,
        refusal: Callable[[str, int], PenstockError] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        peers_max: int = PEERS_MAX,
    ) -> None:
        self._per_s = float(per_s)
        self._burst = max(1.0, self._per_s)
        self._refusal = refusal or _too_many_requests("rate_limit_per_s", "from one address")
        self._monotonic = monotonic
        self._peers_max = peers_max
        # client -> (remaining tokens, when counted), least recently seen first.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str, amount: float = 1.0) -> None:
        """Spend tokens of a client; raise the refusal when there are too few."""
        if not amount:
            return  # A debt is no reason to refuse what costs nothing.
        tokens, now = self._refilled(client)
        needed = min(amount, self._burst)
        if tokens < needed:
            self._buckets[client] = (tokens, now)
            wait_s = max(1, ceil((needed - tokens) / self._per_s))
            raise self._refusal(f"{self._per_s:g}", wait_s)
        self._buckets[client] = (tokens - amount, now)

    def charge(self, client: str, amount: float) -> None:
        """Spend tokens of a client for what has arrived already, however few there are."""
        tokens, now = self._refilled(client)
        self._buckets[client] = (tokens - amount, now)

    def _refilled(self, client: str) -> tuple[float, float]:
        """Take out the bucket of a client; its tokens as of now."""
        now = self._monotonic()
        tokens, then = self._buckets.pop(client, (self._burst, now))
        if len(self._buckets) >= self._peers_max:
            # The least recently seen client has had the longest to refill: forgetting it gives
            # away the least.
            del self._buckets[next(iter(self._buckets))]
        return min(self._burst, tokens + (now - then) * self._per_s), now


class Rates:
    """The limits of one server that are on. One per guard, if there is any."""

    __slots__ = ("_address_bytes", "_address_requests", "_principal_bytes", "_principal_requests")

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float]) -> None:
        def limit(per_s: float, refusal: Callable[[str, int], PenstockError]) -> RateLimit | None:
            return RateLimit(per_s, refusal=refusal, monotonic=monotonic) if per_s > 0 else None

        self._address_requests = limit(
            settings.rate_limit_per_s, _too_many_requests("rate_limit_per_s", "from one address")
        )
        self._principal_requests = limit(
            settings.principal_rate_per_s,
            _too_many_requests("principal_rate_per_s", "of one principal"),
        )
        self._address_bytes = limit(
            settings.address_bytes_per_s, _too_many_bytes("address_bytes_per_s", "from one address")
        )
        self._principal_bytes = limit(
            settings.principal_bytes_per_s,
            _too_many_bytes("principal_bytes_per_s", "of one principal"),
        )

    def take_request(self, head: Request) -> None:
        """Count a request for the address that it comes from."""
        if self._address_requests is not None:
            self._address_requests.take(site(head.peer))

    def take_bytes(self, head: Request) -> None:
        """Count the body that a head announces for the address that it comes from."""
        if self._address_bytes is not None:
            self._address_bytes.take(site(head.peer), _needed(head))

    def take_principal(self, head: Request, principal: Principal) -> None:
        """Count a request for its principal, by its head."""
        client = holder(principal, head.peer)
        if client is None:
            return
        if self._principal_requests is not None:
            self._principal_requests.take(client)
        if self._principal_bytes is not None:
            self._principal_bytes.take(client, _needed(head))

    def received(self, request: Request) -> None:
        """Count a body whose length was not announced."""
        if not request.body or announced(request) is not None:
            return
        size = len(request.body) - _needed(request)
        if self._address_bytes is not None:
            self._address_bytes.charge(site(request.peer), size)
        if self._principal_bytes is not None and request.principal is not None:
            client = holder(request.principal, request.peer)
            if client is not None:
                self._principal_bytes.charge(client, size)


def announced(head: Request) -> int | None:
    """Return the length of the body that a head announces; None if it announces none."""
    length = head.headers.get(b"content-length")
    # Digits only: the native parser guarantees it, a server in front of ASGI may not.
    return int(length) if length is not None and length.isdigit() else None


def _needed(head: Request) -> int:
    """Return the bytes to take for a head. A body of unknown length is let in unless there is a
    debt, and counted when it is there."""
    length = announced(head)
    if length is None:
        return 1 if head.method in _WITH_BODY else 0
    return length


def _too_many_requests(setting: str, whose: str) -> Callable[[str, int], PenstockError]:
    return lambda per_s, wait_s: RateLimited(
        f"More than {per_s} requests a second {whose} ({setting}); retry in {wait_s} s.",
        Retry_After=str(wait_s),
    )


def _too_many_bytes(setting: str, whose: str) -> Callable[[str, int], PenstockError]:
    return lambda per_s, wait_s: ByteRateLimited(
        f"More than {per_s} bytes of bodies a second {whose} ({setting}); retry in {wait_s} s.",
        Retry_After=str(wait_s),
    )
