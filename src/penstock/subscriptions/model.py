"""One subscription in memory: its links and their cursors, its current wake, its pending paths.

Plain state and questions about it. What changes it, and how it is stored, is elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from penstock.protocol.globs import matches
from penstock.protocol.offsets import START
from penstock.protocol.subscription import Config, StreamView
from penstock.protocol.wakes import IDLE, Phase, Wake

if TYPE_CHECKING:
    from penstock.log.stream import Stream


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of a subscription that is neither a link nor a wake.

    `base` is the URL of this server as the client that created the subscription knew it.
    """

    id: str
    config: Config
    created_us: int
    base: str = ""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream of a subscription and its cursor: everything before `position` is acked.

    `stream` is the id of the stream that the position belongs to. A stream that is created at the
    same path later has another id and starts from its beginning; so does one of which nothing is
    acked (0). `explicit` links were asked for by name, the others match the pattern.
    """

    stream: int = 0
    position: int = 0
    explicit: bool = False


class AckedPosition(NamedTuple):
    """A position of a stream up to which everything is processed."""

    path: str
    stream: int
    position: int


class Subscription:
    """`pending` has the paths with something after their cursor. It is updated with every append
    and ack, so that nobody has to go through all links. `unsettled` counts the steps of its wake
    that are being written and are undone if that fails: no wake is issued meanwhile."""

    __slots__ = ("deleted", "links", "pending", "row", "unsettled", "wake")

    def __init__(self, row: Row, wake: Wake = IDLE) -> None:
        self.row = row
        self.links: dict[str, Link] = {}
        self.wake = wake
        self.pending: dict[str, None] = {}
        self.deleted = False
        self.unsettled = 0

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def config(self) -> Config:
        return self.row.config

    @property
    def scope(self) -> str:
        """What its tokens are valid for. A later subscription of the same name has another one."""
        return f"{self.row.created_us}\n{self.id}"

    @property
    def is_idle(self) -> bool:
        return self.wake.phase is Phase.IDLE

    @property
    def status(self) -> Literal["active", "failed"]:
        return "failed" if self.wake.retry_us else "active"

    def matches(self, path: str) -> bool:
        """Whether the pattern of the subscription covers a path."""
        pattern = self.config.pattern
        # Its own wakes must not wake it.
        return pattern is not None and path != self.config.wake_stream and matches(pattern, path)

    def position(self, stream: Stream) -> int:
        """Return the position of the cursor in a stream."""
        link = self.links.get(stream.path)
        # The history of a fork belongs to its source, so the fork starts where it left it.
        return link.position if link is not None and link.stream == stream.id else stream.own_start

    def restore_link(self, path: str, link: Link | None) -> None:
        """Put a link back as it was before a change."""
        if link is None:
            self.links.pop(path, None)
        else:
            self.links[path] = link


def view(subscription: Subscription, path: str, stream: Stream | None, token: Any) -> StreamView:
    """Return a stream of a subscription as workers see it; `token` turns positions to offsets."""
    link = subscription.links.get(path)
    kind: Literal["explicit", "glob"] = "explicit" if link and link.explicit else "glob"
    if stream is None:
        return StreamView(path, kind, START, START, False)
    position = subscription.position(stream)
    is_new = link is None or link.stream != stream.id
    acked = START if is_new and stream.fork is None else token(stream, position)
    return StreamView(path, kind, acked, token(stream, stream.tail), stream.tail > position)
