"""One subscription in memory: its links and their cursors, its current wake, what is pending.

Plain state and questions about it; what changes it, and what is kept of it, is elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.protocol.globs import matches
from penstock.protocol.offsets import START
from penstock.protocol.subscription import Config, StreamView

if TYPE_CHECKING:
    from penstock.log.stream import Stream


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a subscription itself. `base` is this server as its creator knew it."""

    id: str
    config: Config
    created_us: int
    base: str = ""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a stream is processed. `stream` is the one that `position` belongs to: another that
    is made at the same path later begins anew, as does one of which nothing is acked (0)."""

    stream: int = 0
    position: int = 0
    explicit: bool = False


class Wake(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current wake, or none (`wake_id` empty).

    A holder has claimed it. A lease ends at `lease_us`; a webhook that failed `attempts` times in a
    row is called again at `retry_us`. `told` says that the wake event is in the wake stream, or
    that the webhook has accepted it.
    """

    generation: int = 0
    wake_id: str = ""
    holder: str = ""
    lease_us: int = 0
    attempts: int = 0
    retry_us: int = 0
    told: bool = False

    @property
    def deadline_us(self) -> int:
        """When something is to be done about it; 0 for never."""
        return self.retry_us or self.lease_us


IDLE: Final = Wake()


class Subscription:
    """`pending` are the paths with something after their cursor: kept as appends and acks come,
    so that nobody looks at all links to find out."""

    __slots__ = ("deleted", "links", "pending", "row", "wake")

    def __init__(self, row: Row, wake: Wake = IDLE) -> None:
        self.row = row
        self.links: dict[str, Link] = {}
        self.wake = wake
        self.pending: dict[str, None] = {}
        self.deleted = False

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def config(self) -> Config:
        return self.row.config

    @property
    def scope(self) -> str:
        """What its tokens are good for: also not for one of the same name made later."""
        return f"{self.row.created_us}\n{self.id}"

    @property
    def is_idle(self) -> bool:
        """Nothing in flight, held, or to be tried again."""
        return not self.wake.wake_id and not self.wake.retry_us

    @property
    def status(self) -> Literal["active", "failed"]:
        return "failed" if self.wake.retry_us else "active"

    def matches(self, path: str) -> bool:
        pattern = self.config.pattern
        # Its own wakes must not wake it.
        return pattern is not None and path != self.config.wake_stream and matches(pattern, path)

    def position(self, stream: Stream) -> int:
        """Where the cursor of a stream stands."""
        link = self.links.get(stream.path)
        # A fork's history is its source's: it begins where it left it.
        return link.position if link is not None and link.stream == stream.id else stream.own_start

    def acked(self, stream: Stream, position: int, *, explicit: bool) -> Link:
        return Link(stream.id, position, explicit)


def view(subscription: Subscription, path: str, stream: Stream | None, token: Any) -> StreamView:
    """A stream of a subscription as others are told of it; `token` spells offsets."""
    link = subscription.links.get(path)
    kind: Literal["explicit", "glob"] = "explicit" if link and link.explicit else "glob"
    if stream is None:
        return StreamView(path, kind, START, START, False)
    position = subscription.position(stream)
    is_new = link is None or link.stream != stream.id
    acked = START if is_new and stream.fork is None else token(stream, position)
    return StreamView(path, kind, acked, token(stream, stream.tail), stream.tail > position)
