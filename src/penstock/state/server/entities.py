"""Lookup of entities in the state index by key: the event that set each, and its value.

The SQL runs on the connection of the state index, which owns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_ONE: Final = """SELECT position, length, value FROM entities
WHERE stream = ? AND type = ? AND key = ?"""

_POSITION: Final = "SELECT position FROM entities WHERE stream = ? AND type = ? AND key = ?"

_POSITIONS: Final = "SELECT type, key, position FROM entities WHERE stream = ? AND type = ? LIMIT ?"

_KEYS: Final = "SELECT key FROM entities WHERE stream = ? AND type = ?"


Positions = list[tuple[str, str, int]]
"""Type, key, and the position of the event that set the entity."""


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


def positions(db: Any, stream: int, types: Iterable[str], limit: int) -> Positions:
    """Return the positions of all entities of some types, at most `limit`."""
    rows: Positions = []
    for type in types:
        rows += db.execute(_POSITIONS, (stream, type, limit - len(rows)))
    return rows


def positions_of(db: Any, stream: int, entities: Iterable[tuple[str, str]]) -> Positions:
    """Return the positions of those of the entities that are in the state."""
    rows: Positions = []
    for type, key in entities:
        row = db.execute(_POSITION, (stream, type, key)).fetchone()
        if row is not None:
            rows.append((type, key, row[0]))
    return rows
