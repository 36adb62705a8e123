"""Looks entities up in the state index by key, many at a time: where each was set, and its value.

Speaks SQL over the connection of the index, which is its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_ONE: Final = """SELECT position, length, value FROM entities
WHERE stream = ? AND type = ? AND key = ?"""

_KEYS: Final = "SELECT key FROM entities WHERE stream = ? AND type = ?"


class Entity(NamedTuple):
    """The event that set an entity, and its value unless that is too large for the index."""

    position: int
    length: int
    value: bytes | None


def find(db: Any, stream: int, type: str, keys: Iterable[str]) -> dict[str, Entity]:
    """Those of the keys that are in the state, as far as the stream is indexed."""
    found = {}
    for key in keys:
        row = db.execute(_ONE, (stream, type, key)).fetchone()
        if row is not None:
            found[key] = Entity(*row)
    return found


def keys(db: Any, stream: int, type: str) -> list[str]:
    """All keys of a type that are in the state."""
    return [row[0] for row in db.execute(_KEYS, (stream, type))]
