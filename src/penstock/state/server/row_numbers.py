"""Numbers of the changes of each type in a stream: their count, and the position of each number.

The index stores a mark for some of them, and readers read on from the nearest. The SQL runs on the
connection of the state index, which owns it.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

MARK_CHANGES: Final = 256
MARK_BYTES: Final = 64 * 1024
"""The distance between two marks is at most so many changes, and so many bytes."""
FETCH_ROWS: Final = 10_000

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS types (
  stream INTEGER NOT NULL, type TEXT NOT NULL, changes INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  mark_number INTEGER NOT NULL, mark_position INTEGER NOT NULL,
  PRIMARY KEY (stream, type)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (
  stream INTEGER NOT NULL, type TEXT NOT NULL, number INTEGER NOT NULL, position INTEGER NOT NULL,
  ordinal INTEGER NOT NULL, PRIMARY KEY (stream, type, number)) WITHOUT ROWID;
"""
DROP: Final = ("DELETE FROM types WHERE stream = ?", "DELETE FROM marks WHERE stream = ?")

_SET: Final = "INSERT OR REPLACE INTO types VALUES (?, ?, ?, ?, ?, ?)"
_MARK: Final = """SELECT number, position, ordinal FROM marks
WHERE stream = ? AND type = ? AND number <= ? ORDER BY number DESC LIMIT 1"""
_LIVE: Final = """SELECT position, length, ordinal FROM entities
WHERE stream = ? AND type = ? ORDER BY position"""
# Their last change is no delete, and yet they are not in the state: a reset removed them.
_UNDONE: Final = """SELECT last.type, last.key FROM (
  SELECT type, key, max(position), operation FROM changes WHERE stream = ?1 GROUP BY type, key
) AS last WHERE last.operation <> ?2 AND NOT EXISTS (
  SELECT 1 FROM entities
  WHERE stream = ?1 AND entities.type = last.type AND entities.key = last.key)"""


class Numbers(NamedTuple):
    """The number of changes of a type up to a position, of all messages up to it, and the ordinal
    (from 0) of the last change; -1 if there is none."""

    position: int
    messages: int
    changes: int
    ordinal: int


class Mark(NamedTuple):
    """The position and ordinal of change `number` (from 0) of a type."""

    number: int
    position: int
    ordinal: int


def add(db: Any, stream: int, numbered: dict[str, list[tuple[int, int]]]) -> None:
    """Add new changes: (position, ordinal) by type, in order."""
    marks: list[tuple[object, ...]] = []
    for type, changes in numbered.items():
        sql = "SELECT changes, mark_number, mark_position FROM types WHERE stream = ? AND type = ?"
        row = db.execute(sql, (stream, type)).fetchone()
        number, mark_number, mark_position = row or (0, -MARK_CHANGES, 0)
        for position, ordinal in changes:
            is_far = number - mark_number >= MARK_CHANGES or position - mark_position >= MARK_BYTES
            if is_far:
                marks.append((stream, type, number, position, ordinal))
                mark_number, mark_position = number, position
            number += 1
        db.execute(_SET, (stream, type, number, changes[-1][1], mark_number, mark_position))
    db.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?)", marks)


def count(db: Any, stream: int, type: str) -> Numbers:
    """Return the number of changes of a type, as far as the stream is indexed."""
    sql = "SELECT position, ordinal FROM streams WHERE id = ?"
    position, messages = db.execute(sql, (stream,)).fetchone()
    sql = "SELECT changes, ordinal FROM types WHERE stream = ? AND type = ?"
    row = db.execute(sql, (stream, type)).fetchone() or (0, -1)
    return Numbers(position, messages, *row)


def mark(db: Any, stream: int, type: str, number: int) -> Mark | None:
    """Return the last mark at or before a number."""
    row = db.execute(_MARK, (stream, type, number)).fetchone()
    return None if row is None else Mark(*row)


def live(db: Any, stream: int, type: str) -> tuple[array[int], array[int], array[int]]:
    """Return the changes that set the entities of a type: positions, lengths and ordinals, in the
    order of the log. Arrays, because there may be millions."""
    columns = (array("q"), array("q"), array("q"))
    cursor = db.execute(_LIVE, (stream, type))
    while rows := cursor.fetchmany(FETCH_ROWS):
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
    return columns


def live_keys(db: Any, stream: int, limit: int) -> dict[tuple[str, str], int]:
    """Return the type and key of every entity, at most `limit`, and the position of its event."""
    sql = "SELECT type, key, position FROM entities WHERE stream = ? LIMIT ?"
    return {(type, key): position for type, key, position in db.execute(sql, (stream, limit))}


def undone_keys(db: Any, stream: int, delete: int) -> list[tuple[str, str]]:
    """Return the type and key of every entity that a reset, and no change, has removed."""
    entities: list[tuple[str, str]] = db.execute(_UNDONE, (stream, delete)).fetchall()
    return entities
