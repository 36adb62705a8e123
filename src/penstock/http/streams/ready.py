"""Answers to reads that were given before and are true still.

Many readers ask for the same few bytes at the tail of a stream, again and again, with the same
request to the byte. Knows requests and streams by identity; what an answer says is its maker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.http.message import Request, Response
    from penstock.log.stream import Stream

ENTRIES_MAX: Final = 4096
MISSES_MAX: Final = 4 * ENTRIES_MAX
"""Answers that a full cache does not take before it begins anew: to replace all of them again and
again would cost more than it saves."""
BODY_BYTES_MAX: Final = 2048
"""Larger answers cost more to send than to make."""


class ReadyAnswer:
    """A response, and everything that it depends on."""

    __slots__ = (
        "_closed",
        "_earliest",
        "_generation",
        "_headers",
        "_meta",
        "_principal",
        "_tail",
        "response",
    )

    def __init__(self, request: Request, stream: Stream, response: Response) -> None:
        self._headers = request.headers
        self._principal = request.principal
        self._generation = stream.id  # not the stream, which may leave the memory
        self._tail = stream.tail
        self._earliest = stream.earliest
        self._closed = stream.closed
        self._meta = stream.meta
        self.response = response

    def is_for(self, request: Request, stream: Stream) -> bool:
        """Whether the response is the one to this request. Headers are the same object where a
        transport has seen all of the request before; those of other requests are never equal."""
        return (
            self._headers is request.headers
            and self._principal is request.principal
            and self._generation == stream.id
            and self._tail == stream.tail
            and self._earliest == stream.earliest
            and self._closed is stream.closed
            and self._meta is stream.meta
        )


class ReadyAnswers:
    """Bounded: when it is full it begins anew."""

    __slots__ = ("_answers", "_misses")

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], ReadyAnswer] = {}
        self._misses = 0

    def get(self, path: str, request: Request) -> ReadyAnswer | None:
        """Return what was answered to an equal query; `is_for` says whether it is true still."""
        return self._answers.get((path, request.query))

    def add(self, path: str, request: Request, stream: Stream, response: Response) -> None:
        """Note an answer, unless time alone would change it, or it is large."""
        config, body = stream.config, response.body
        if config.ttl_s is not None or config.expires_at_us is not None or response.status != 200:
            return
        if not isinstance(body, bytes) or len(body) > BODY_BYTES_MAX:
            return
        key = (path, request.query)
        if len(self._answers) >= ENTRIES_MAX and key not in self._answers:
            self._misses += 1
            if self._misses < MISSES_MAX:
                return
            self._misses = 0
            self._answers.clear()
        self._answers[key] = ReadyAnswer(request, stream, response)
