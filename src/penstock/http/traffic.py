"""Plain counters of what the HTTP layer did, read when metrics are scraped, and error answers.

Counting must cost next to nothing: ints and lists only, no locks, event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.errors import InternalError, PenstockError, ShuttingDown
from penstock.http.message import Response
from penstock.http.problems import problem

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
OTHER = "other"

_log = logging.getLogger("penstock.http")


class Traffic:
    """One per App. `requests[method][status // 100]`; an unknown method counts as `other`."""

    __slots__ = (
        "bytes_out",
        "errors",
        "events",
        "long_polls",
        "requests",
        "sse_dropped",
        "sse_readers",
    )

    def __init__(self) -> None:
        self.requests: dict[str, list[int]] = {name: [0] * 6 for name in (*METHODS, OTHER)}
        self.errors: dict[str, int] = {}
        self.bytes_out = 0
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

    def failed(self, error: BaseException) -> Response:
        """The answer for whatever went wrong; a bug is logged here and told to nobody else."""
        if isinstance(error, asyncio.CancelledError):
            error = ShuttingDown("The server stopped before this was done; retry.")
        elif not isinstance(error, PenstockError):
            _log.error("request failed", exc_info=error)
            error = InternalError("Something went wrong on our side; the server's log says what.")
        self.count_error(error.code)
        return problem(error)

    def count_error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def failure(self, method: str, future: asyncio.Future[Any]) -> Response:
        """The counted answer for a future that has failed or was cancelled."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        assert error is not None
        return self.count(method, self.failed(error))
