"""How long requests take and how large they are, by route, method and class of status.

Counting must cost an append next to nothing: fixed buckets, no locks, event loop only. A route is
a template, never a path: the number of them does not grow with the streams.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from penstock.http.message import RangeBody, Request, Response

SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
BYTES: Final = tuple(4**power for power in range(3, 13))  # 64 to 16 MiB


_BITS: Final = 65

LIVE: Final = "live"
NO_ROUTE: Final = "none"
OTHER: Final = "other"


class Cell:
    """The requests of one method and route with one class of status.

    `received` and `sent` count bodies by the bits of the last index of a byte, which is cheaper
    than a search: `by_size` has them by `BYTES`. Bodies of no bytes are not counted, but the rest.
    """

    __slots__ = ("received", "received_bytes", "seconds", "seconds_total", "sent", "sent_bytes")

    def __init__(self) -> None:
        self.seconds = [0] * (len(SECONDS) + 1)
        self.seconds_total = 0.0
        self.received = [0] * _BITS
        self.received_bytes = 0
        self.sent = [0] * _BITS
        self.sent_bytes = 0

    def by_size(self, counts: list[int]) -> list[int]:
        """Return `received` or `sent` by `BYTES`, with those of no bytes among the smallest."""
        empty = sum(self.seconds) - sum(counts)
        ends = [0, *(bound.bit_length() for bound in BYTES), _BITS]
        sizes = [sum(counts[start:end]) for start, end in pairwise(ends)]
        return [sizes[0] + empty, *sizes[1:]]


class RouteStats:
    """The cells of one method and route, by class of status."""

    __slots__ = ("cells", "method", "route")

    def __init__(self, method: str, route: str) -> None:
        self.method = method
        self.route = route
        self.cells: list[Cell | None] = [None] * 6


class Routes:
    """All that is counted: the App adds those of its routes to `all`.

    Live reads have a route of their own, because they wait for data.
    """

    __slots__ = ("_live", "_unrouted", "all")

    def __init__(self, methods: Iterable[str]) -> None:
        self._live = RouteStats("GET", LIVE)
        self._unrouted = {name: RouteStats(name, NO_ROUTE) for name in (*methods, "")}
        self._unrouted[""].method = OTHER
        self.all = [self._live, *self._unrouted.values()]

    def answered(
        self,
        request: Request,
        response: Response,
        seconds: float,
        received: int,
        weight: int = 1,
    ) -> None:
        """Count a request with a body of so many bytes, whose response began after `seconds`. It
        stands for `weight` requests."""
        route = request.route
        if route is None:
            stats = self._unrouted.get(request.method) or self._unrouted[""]
        elif request.query and b"live=" in request.query:
            stats = self._live
        else:
            stats = route[2]
        cell = stats.cells[response.status // 100]
        if cell is None:
            cell = stats.cells[response.status // 100] = Cell()
        cell.seconds[bisect_left(SECONDS, seconds)] += weight
        cell.seconds_total += seconds * weight
        if received:
            cell.received[(received - 1).bit_length()] += weight
            cell.received_bytes += received * weight
        if response.body:
            sent = _length(request, response)
            if sent:
                cell.sent[(sent - 1).bit_length()] += weight
                cell.sent_bytes += sent * weight


def _length(request: Request, response: Response) -> int:
    """Return the bytes of a body that are sent; 0 for a live one, whose length nobody knows."""
    body = response.body
    if request.method == "HEAD":
        return 0
    if isinstance(body, bytes):
        return len(body)
    return body.length if isinstance(body, RangeBody) else 0
