"""Numbers the changes of each type in a stream, inside the state index: how many there are, and
where the one with a given number is.

A mark is kept for some of them, close enough to read on from. Speaks SQL over the connection of
the index, which is its owner.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

MARK_CHANGES: Final = 256
MARK_BYTES: Final = 64 * 1024
"""From a mark to any change before the next there are fewer changes, and fewer bytes."""
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
# Set last by a change, and yet not in the state: a reset took them away.
_UNDONE: Final = """SELECT last.type, last.key FROM (
  SELECT type, key, max(position), operation FROM changes WHERE stream = ?1 GROUP BY type, key
) AS last WHERE last.operation <> ?2 AND NOT EXISTS (
  SELECT 1 FROM entities
  WHERE stream = ?1 AND entities.type = last.type AND entities.key = last.key)"""


class Numbers(NamedTuple):
    """Changes of a type up to a position, of how many messages in all, and the ordinal (from 0)
    of the last; -1 if there is none."""

    position: int
    messages: int
    changes: int
    ordinal: int


class Mark(NamedTuple):
    """The place of change `number` (from 0) of a type."""

    number: int
    position: int
    ordinal: int


def add(db: Any, stream: int, numbered: dict[str, list[tuple[int, int]]]) -> None:
    """Take in new changes, as (position, ordinal) by type, in order."""
    marks: list[tuple[object, ...]] = []
    for type, places in numbered.items():
        sql = "SELECT changes, mark_number, mark_position FROM types WHERE stream = ? AND type = ?"
        row = db.execute(sql, (stream, type)).fetchone()
        number, mark_number, mark_position = row or (0, -MARK_CHANGES, 0)
        for position, ordinal in places:
            far = number - mark_number >= MARK_CHANGES or position - mark_position >= MARK_BYTES
            if far:
                marks.append((stream, type, number, position, ordinal))
                mark_number, mark_position = number, position
            number += 1
        db.execute(_SET, (stream, type, number, places[-1][1], mark_number, mark_position))
    db.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?)", marks)


def count(db: Any, stream: int, type: str) -> Numbers:
    """How many changes of a type there are, up to where the stream is indexed."""
    sql = "SELECT position, ordinal FROM streams WHERE id = ?"
    position, messages = db.execute(sql, (stream,)).fetchone()
    sql = "SELECT changes, ordinal FROM types WHERE stream = ? AND type = ?"
    found = db.execute(sql, (stream, type)).fetchone() or (0, -1)
    return Numbers(position, messages, *found)


def mark(db: Any, stream: int, type: str, number: int) -> Mark | None:
    """The last mark at or before a number."""
    row = db.execute(_MARK, (stream, type, number)).fetchone()
    return None if row is None else Mark(*row)


def live(db: Any, stream: int, type: str) -> tuple[array[int], array[int], array[int]]:
    """Where the changes are that set the entities of a type: positions, lengths and ordinals, in
    the order of the log. Arrays, since there may be millions."""
    found = (array("q"), array("q"), array("q"))
    cursor = db.execute(_LIVE, (stream, type))
    while rows := cursor.fetchmany(FETCH_ROWS):
        for column, values in zip(found, zip(*rows, strict=True), strict=True):
            column.extend(values)
    return found


def live_keys(db: Any, stream: int, limit: int) -> list[tuple[str, str]]:
    """The type and key of every entity, at most `limit`."""
    sql = "SELECT type, key FROM entities WHERE stream = ? LIMIT ?"
    found: list[tuple[str, str]] = db.execute(sql, (stream, limit)).fetchall()
    return found


def undone_keys(db: Any, stream: int, delete: int) -> list[tuple[str, str]]:
    """The type and key of every entity that a reset, and no change, took away."""
    found: list[tuple[str, str]] = db.execute(_UNDONE, (stream, delete)).fetchall()
    return found
