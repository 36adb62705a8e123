# Generated from client/aio/many.py by scripts/unasync.py; do not edit.
"""Several streams on one connection of the blocking client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.client.many import ManyFollower, StreamBatch

if TYPE_CHECKING:
    from penstock.client.sync.client import Client


class FollowMany:
    """The batches of `follow_many`. `close()`, or the end of `with`, ends the connection."""

    def __init__(self, client: Client, follower: ManyFollower) -> None:
        self._follower = follower
        self._batches = client.iterate(follower.flow())

    @property
    def cursor(self) -> str | None:
        """The position of all streams after the last whole event; None before the first."""
        return self._follower.cursor

    @property
    def offsets(self) -> dict[str, str]:
        """The offset at which each stream is read on, by path."""
        return self._follower.offsets

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamBatch:
        batch: StreamBatch = next(self._batches)
        return batch

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
