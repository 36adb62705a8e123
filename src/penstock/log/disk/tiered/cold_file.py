"""A cold segment that is read as its file was, for tools that check or copy segments.

Calls wait for the object store: they belong on threads, or into a command.
"""

from __future__ import annotations

from penstock.errors import ObjectNotFound
from penstock.log.disk.segment import ColdSegment
from penstock.object_store import ObjectStore


class ColdFile:
    """Nothing is checked here; StorageError if the store does not have the bytes to give."""

    __slots__ = ("_cold", "_store")

    def __init__(self, store: ObjectStore, cold: ColdSegment) -> None:
        self._store = store
        self._cold = cold

    def read_at(self, position: int, length: int) -> bytes:
        """Return `length` bytes; fewer only at the end of the segment."""
        end = min(position + length, self._cold.length)
        return self._store.get_range(self._cold.object, position, end)

    def size(self) -> int:
        """Return the bytes of the segment, as far as the object has them."""
        blob = self._store.head(self._cold.object)
        if blob is None:
            raise ObjectNotFound(f"{self._store.url} has no {self._cold.object!r}.")
        return min(blob.size, self._cold.length)

    def close(self) -> None:
        pass
