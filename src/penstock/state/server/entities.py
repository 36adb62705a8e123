"""Lookup of entities in the state index by key: the event that set each, and its value.

The SQL runs on the connection of the state index, which owns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_ONE: Final = """SELECT position, length, value FROM entities
WHERE stream = ? AND type = ? AND key = ?"""

_KEYS: Final = "SELECT key FROM entities WHERE stream = ? AND type = ?"


class Entity(NamedTuple):
    """The position of the event that set an entity, and its value unless it is too large."""

    position: int
    length: int
    value: bytes | None


def find(db: Any, stream: int, type: str, keys: Iterable[str]) -> dict[str, Entity]:
    """Return those of the keys that are in the state, as far as the stream is indexed."""
    entities = {}
    for key in keys:
        row = db.execute(_ONE, (stream, type, key)).fetchone()
        if row is not None:
            entities[key] = Entity(*row)
    return entities


def keys(db: Any, stream: int, type: str) -> list[str]:
    """Return all keys of a type that are in the state."""
    return [row[0] for row in db.execute(_KEYS, (stream, type))]
