"""A reset that redirects to another stream: its URL, and the switch to its state.

Rules without I/O. Readers see the old state until all of the new stream has been read; then
listeners get the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from penstock import limits
from penstock.client.requests import STREAM_PREFIX
from penstock.errors import StateMoved
from penstock.state.live.plan import Plan, Position

if TYPE_CHECKING:
    from penstock.state.live.core import LiveCore


def resolved(url: str, location: str) -> str:
    """Return the URL of a location that the stream at `url` names.

    It must be on the same server: a stream must not be able to send its readers, and their tokens,
    to another.
    """
    mount, prefix, _ = url.partition(STREAM_PREFIX)
    if prefix and location.startswith(STREAM_PREFIX):
        target = mount + location  # the server may be mounted below a path of its own
    else:
        target = urljoin(url, location)
    ours, theirs = urlsplit(url), urlsplit(target)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise StateMoved(
            f"The state of {url} continues at {target}, on another server, and is not followed "
            "there. If you trust that server, make a client and a live state for it.",
            location=target,
        )
    if theirs.query or theirs.fragment or STREAM_PREFIX not in theirs.path:
        raise StateMoved(
            f"The state of {url} is said to continue at {target}, which is no URL of a stream.",
            location=target,
        )
    return target


def relative(url: str) -> str:
    """Return the location of a stream without its server, whose name may change."""
    return STREAM_PREFIX + url.partition(STREAM_PREFIX)[2]


class Moving:
    """The switch from one stream to another, possibly over several redirects."""

    def __init__(self, url: str, location: str, make: Callable[[str], LiveCore]) -> None:
        """`make` returns an empty state in memory for the stream at a URL."""
        self._seen = {url}
        self._make = make
        self._skipped = 0
        self._begin(url, location)

    def _begin(self, url: str, location: str) -> None:
        self.url = resolved(url, location)
        if self.url in self._seen or len(self._seen) > limits.LIVE_MOVES_MAX:
            way = "in a circle" if self.url in self._seen else "too far"
            raise StateMoved(
                f"The resets of {url} and {len(self._seen) - 1} other streams redirect {way}. "
                "Append the current state to one of them, and no location.",
                location=self.url,
            )
        self._seen.add(self.url)
        self.core = self._make(self.url)

    def take(self, plan: Plan) -> Plan | None:
        """Apply a batch of the new stream; return the plan of the switch once all of it is read."""
        core = self.core
        if plan.moves_to is not None:
            self._skipped += core.skipped + plan.skipped
            self._begin(self.url, plan.moves_to)
            return None
        core.commit(plan)
        # Half a snapshot is no state: its writer has not finished.
        if not core.up_to_date or core.position.in_snapshot:
            return None
        return Plan(
            position=Position(core.position.offset, location=relative(self.url)),
            up_to_date=True,
            clears=True,
            replaces=True,
            writes=core.everything(),
            txids=core.txids(),
            skipped=self._skipped + core.skipped,
        )
