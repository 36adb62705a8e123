"""The deadlines of entities in the state index: which expire, and when the next one does.

The SQL runs on the connection of the state index, which owns it. Every query is a lookup by stream
and time.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

SCHEMA: Final = """
CREATE INDEX IF NOT EXISTS deadlines ON entities (stream, expires_us)
  WHERE expires_us IS NOT NULL;
"""

_FIRSTS: Final = """SELECT entities.stream, streams.path, min(expires_us)
FROM entities JOIN streams ON streams.id = entities.stream
WHERE expires_us IS NOT NULL GROUP BY entities.stream"""
_FIRST: Final = """SELECT min(expires_us) FROM entities
WHERE stream = ? AND expires_us IS NOT NULL AND position >= ?"""
_DUE: Final = """SELECT type, key FROM entities
WHERE stream = ? AND expires_us IS NOT NULL AND expires_us <= ? AND position >= ?
ORDER BY expires_us LIMIT ?"""
_FORGET: Final = """UPDATE entities SET expires_us = NULL
WHERE stream = ? AND expires_us IS NOT NULL"""


class Deadline(NamedTuple):
    """When the first entity of a stream expires."""

    stream: int
    path: str
    time_us: int


def all_streams(db: Any) -> list[Deadline]:
    """Return the first deadline of each stream that has one."""
    return [Deadline(*row) for row in db.execute(_FIRSTS)]


def first(db: Any, stream: int, earliest: int) -> int | None:
    """Return the first deadline of a stream, of the entities that were set from `earliest` on: the
    index may still have some that a trim has removed."""
    row = db.execute(_FIRST, (stream, earliest)).fetchone()
    return None if row is None else row[0]


def due(db: Any, stream: int, now_us: int, *, earliest: int, limit: int) -> list[tuple[str, str]]:
    """Return the entities of a stream that have expired, earliest deadline first; of those that
    were set from position `earliest` on."""
    rows = db.execute(_DUE, (stream, now_us, earliest, limit))
    return [(type, key) for type, key in rows]


def forget(db: Any, stream: int) -> None:
    """Remove the deadlines of a stream; its entities stay."""
    db.execute(_FORGET, (stream,))
