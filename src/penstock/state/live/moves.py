"""A reset that names another stream: where that is, and taking its state over all at once.

The rules alone, without I/O. Until all of the new stream has been read what was there before is
shown; then readers are told of the differences, and of nothing that stayed as it was.
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
    """The URL that a location in the stream at `url` means.

    Only on the same server: the client's token is for that one, and a stream must not be able to
    send its readers, and their tokens, anywhere else.
    """
    mount, found, _ = url.partition(STREAM_PREFIX)
    if found and location.startswith(STREAM_PREFIX):
        target = mount + location  # the server may be mounted below a path of its own
    else:
        target = urljoin(url, location)
    ours, theirs = urlsplit(url), urlsplit(target)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise StateMoved(
            f"The state of {url} goes on at {target}, on another server. It is not followed there: "
            "begin a new live state with a client for that server if it is right.",
            location=target,
        )
    if theirs.query or theirs.fragment or STREAM_PREFIX not in theirs.path:
        raise StateMoved(
            f"The state of {url} is said to go on at {target}, which is not a stream's URL.",
            location=target,
        )
    return target


def relative(url: str) -> str:
    """A location without its server, which may get another name."""
    return STREAM_PREFIX + url.partition(STREAM_PREFIX)[2]


class Moving:
    """The way from one stream to another, perhaps by way of more that have moved in turn."""

    def __init__(self, url: str, location: str, make: Callable[[str], LiveCore]) -> None:
        """`make` gives an empty state in memory for the stream at a URL."""
        self._seen = {url}
        self._make = make
        self._skipped = 0
        self._begin(url, location)

    def _begin(self, url: str, location: str) -> None:
        self.url = resolved(url, location)
        if self.url in self._seen or len(self._seen) > limits.LIVE_MOVES_MAX:
            way = "in a circle" if self.url in self._seen else "from one stream to the next"
            raise StateMoved(
                f"The resets of {url} and {len(self._seen) - 1} other streams lead {way}, and the "
                "state to none of them; append the current state to one, and no location.",
                location=self.url,
            )
        self._seen.add(self.url)
        self.core = self._make(self.url)

    def take(self, plan: Plan) -> Plan | None:
        """Go on by one batch of the new stream; what the old state becomes, once all is there."""
        core = self.core
        if plan.moves_to is not None:
            self._skipped += core.skipped + plan.skipped
            self._begin(self.url, plan.moves_to)
            return None
        core.commit(plan)
        # Half a snapshot is no state: whoever writes it has not finished.
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
