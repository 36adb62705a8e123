"""What an App does for a node of a cluster only: it fetches the streams that a request needs, and
refuses nothing while another node may own them.

Elsewhere a stream is loaded in the middle of a decision, and nobody else can own it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import ClusterUnavailable, PenstockError
from penstock.http.headers import header_text
from penstock.http.message import Request, Response
from penstock.http.router import parse_source

if TYPE_CHECKING:
    from penstock.log.engine import Engine

SOURCE_BYTES_MAX = 4096
"""A longer path of a source is refused by the handler."""


_READS: Final = frozenset(("GET", "HEAD"))
_REFUSALS: Final = frozenset((400, 404, 409, 410, 412))
"""The statuses of refusals that rest on what a stream has, or whether it exists."""


class Fetching:
    """What an App does for a node of a cluster only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, request: Request) -> None:
        """Refuse a write while another node may own the streams: what it would be told rests on
        what this node knows, and may be wrong."""
        if request.method not in _READS and not self._engine.is_current():
            raise _unavailable()

    def doubt(self, request: Request, response: Response) -> PenstockError | None:
        """Return the error instead of a refusal that may be wrong, because another node may own the
        streams: an offset that is beyond the tail here, a stream that is unknown here."""
        if response.status in _REFUSALS and request.method in _READS:
            return None if self._engine.is_current() else _unavailable()
        return None

    def is_needed(self, path: str, request: Request) -> bool:
        """Whether something that a request is about has to be fetched first."""
        if not path:
            return False
        producer = request.headers.get(b"producer-id")
        producer_id = None if producer is None else producer.decode("latin-1")
        return b"stream-forked-from" in request.headers or not self._engine.is_at_hand(
            path, producer_id
        )

    async def fetch(self, path: str, request: Request) -> None:
        """Fetch the stream of a request, its producer, and the source of a fork."""
        await self._engine.fetch(path, header_text(request.headers, b"producer-id"))
        source = header_text(request.headers, b"stream-forked-from")
        if source is not None:
            try:
                source_path = parse_source(source, bytes_max=SOURCE_BYTES_MAX)
            except PenstockError:
                return  # the handler says what is wrong with it
            await self._engine.fetch(source_path)


def _unavailable() -> ClusterUnavailable:
    return ClusterUnavailable(
        "This node does not know whether it still owns the streams. Try again.", Retry_After="1"
    )
