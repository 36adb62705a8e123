"""The engine's watcher of one stream for all responses over several streams that have it.

Each commit is encoded once, however many groups of readers get it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.http.streams.many.entries import data_entry

if TYPE_CHECKING:
    from penstock.http.streams.many.group import Group
    from penstock.http.streams.many.live import ManyLive
    from penstock.log.stream import Stream

PUBLISH_BYTES_MAX: Final = 1024 * 1024
"""A commit with more is read from the log by each reader at its own pace."""


class Feed:
    """One stream and the groups that read it."""

    __slots__ = ("_live", "groups", "stream")

    def __init__(self, live: ManyLive, stream: Stream) -> None:
        self._live = live
        self.stream = stream
        self.groups: dict[Group, None] = {}

    @property
    def readers(self) -> int:
        """The number of responses that the stream is part of."""
        return sum(len(group.joined) + len(group.behind) for group in self.groups)

    # -- called by the engine

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        entry = b""
        for group in list(self.groups):
            try:
                if not group.joined:
                    group.skip(self, end, closed)
                elif len(wire) > PUBLISH_BYTES_MAX:
                    group.fall_behind()
                    group.skip(self, end, closed)
                else:
                    entry = entry or self.entry(wire, end, closed)
                    group.publish(self, entry, end, closed)
            except Exception as error:  # noqa: BLE001 - the commit is done, its readers are cut off
                self._live.traffic.failed(error)
                group.abort_readers()

    def ended(self) -> None:
        for group in list(self.groups):
            group.leave(self)
        self._live.release(self)

    # -- called by groups

    def entry(self, wire: bytes, end: int, closed: bool) -> bytes:
        """Return the entry of the last bytes of the stream."""
        offset = self._live.engine.token(self.stream, end)
        is_all = self._live.engine.is_current()
        return data_entry(self.stream, offset, wire, up_to_date=is_all, closed=closed)
