"""The storage of a live state: its entities, and their position in the stream."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.state.live.plan import Entity, Position
from penstock.state.lookup import tokens

Indexes = Mapping[str, Sequence[str]]  # type → indexed fields
Entities = list[tuple[str, bytes]]  # keys, with their values as JSON


class Backend(Protocol):
    """Stores entities, for one writer, and readers on any thread that never see half a commit."""

    blocking: bool  # whether a commit waits for a disk

    def open(self, stream: str, indexes: Indexes) -> Position:
        """Prepare for the stream at a URL; return the position of the entities.

        A state that selects entities adds its selection as a fragment: `…#type=user&prefix=a`.
        """

    def commit(
        self,
        before: Position,
        after: Position,
        writes: Mapping[Entity, bytes | None],
        *,
        clear: bool,
    ) -> None:
        """Remove everything if `clear`, then apply the writes and the position, atomically."""

    def get(self, type: str, key: str) -> bytes | None: ...

    def items(self, type: str) -> Entities: ...

    def find(self, type: str, field: str, token: bytes) -> Entities:
        """Return the entities with a token in an indexed field."""

    def count(self, type: str) -> int: ...

    def types(self) -> list[str]: ...

    def close(self) -> None: ...


class MemoryBackend:
    """Entities in memory: each start reads the stream from its beginning."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: dict[str, dict[str, bytes]] = {}
        self._indexes: Indexes = {}
        self._keys: dict[tuple[str, str, bytes], dict[str, None]] = {}  # by indexed token

    def open(self, stream: str, indexes: Indexes) -> Position:
        if self._types or self._indexes:
            raise ValueError("This MemoryBackend is in use: make one for each live state.")
        self._indexes = {type: tuple(fields) for type, fields in indexes.items()}
        return Position()

    def commit(
        self,
        before: Position,
        after: Position,
        writes: Mapping[Entity, bytes | None],
        *,
        clear: bool,
    ) -> None:
        with self._lock:
            if clear:
                self._types.clear()
                self._keys.clear()
            for (type, key), value in writes.items():
                keys = self._types.setdefault(type, {})
                if type in self._indexes:
                    self._index(type, key, keys.get(key), value)
                if value is not None:
                    keys[key] = value
                else:
                    keys.pop(key, None)
                    if not keys:
                        del self._types[type]

    def get(self, type: str, key: str) -> bytes | None:
        with self._lock:
            return self._types.get(type, {}).get(key)

    def items(self, type: str) -> Entities:
        with self._lock:
            return list(self._types.get(type, {}).items())

    def find(self, type: str, field: str, token: bytes) -> Entities:
        with self._lock:
            keys = self._types.get(type, {})
            return [(key, keys[key]) for key in self._keys.get((type, field, token), ())]

    def count(self, type: str) -> int:
        with self._lock:
            return len(self._types.get(type, ()))

    def types(self) -> list[str]:
        with self._lock:
            return list(self._types)

    def close(self) -> None:
        """Do nothing: the entities stay readable."""

    def _index(self, type: str, key: str, old: bytes | None, new: bytes | None) -> None:
        fields = self._indexes[type]
        for field, token in tokens(old, fields) if old is not None else ():
            slot = (type, field, token)
            del self._keys[slot][key]
            if not self._keys[slot]:
                del self._keys[slot]
        for field, token in tokens(new, fields) if new is not None else ():
            self._keys.setdefault((type, field, token), {})[key] = None
