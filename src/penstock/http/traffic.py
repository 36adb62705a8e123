"""Plain counters of what the HTTP layer did, read when metrics are scraped.

Counting must cost next to nothing: ints and lists only, no locks, event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.http.message import Request, Response
from penstock.http.problems import problem, public_error
from penstock.http.route_stats import OTHER, Routes

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class Traffic:
    """One per App. `requests[method][status // 100]`; an unknown method counts as `other`."""

    __slots__ = (
        "bytes_out",
        "connections",
        "errors",
        "events",
        "long_polls",
        "reads",
        "requests",
        "routes",
        "sse_dropped",
        "sse_readers",
    )

    def __init__(self) -> None:
        self.requests: dict[str, list[int]] = {name: [0] * 6 for name in (*METHODS, OTHER)}
        self.errors: dict[str, int] = {}
        self.routes = Routes(METHODS)
        self.connections: Callable[[], int] = int  # set by the transport
        self.bytes_out = 0
        self.reads = 0  # of streams that were answered; events of live reads are counted apart
        self.events = 0
        self.long_polls = 0
        self.sse_readers = 0
        self.sse_dropped = 0

    def count(self, method: str, response: Response) -> Response:
        row = self.requests.get(method)
        if row is None:
            row = self.requests[OTHER]
        row[response.status // 100] += 1
        return response

    def failed(self, error: BaseException, request: Request | None = None) -> Response:
        """Count an error and return its response."""
        shown = public_error(error, request)
        self.count_error(shown.code)
        return problem(shown)

    def count_error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def failure(self, method: str, future: asyncio.Future[Any]) -> Response:
        """Count and return the response for a future that has failed or was cancelled."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        assert error is not None
        return self.count(method, self.failed(error))
