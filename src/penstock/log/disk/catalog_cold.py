"""The tables of cold segments in the catalog: their rows, checksums and statements.

Every object that may exist is in one of two tables: in `cold` while a segment is read from it, else
in `doomed`, from before it is written until it is gone. Knows no SQLite, which is `catalog`'s.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.errors import Damaged
from penstock.log.disk.segment import ColdSegment, SegmentInfo

Execute = Callable[[str, tuple[str, ...]], object]

SCHEMA = """
CREATE TABLE IF NOT EXISTS cold (
  stream_id INTEGER NOT NULL, base INTEGER NOT NULL, length INTEGER NOT NULL,
  object TEXT NOT NULL, object_crc INTEGER NOT NULL, crc INTEGER NOT NULL,
  PRIMARY KEY (stream_id, base)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS doomed (object TEXT PRIMARY KEY) WITHOUT ROWID;
"""
TABLES = ("cold", "doomed")

ALL = "SELECT stream_id, base, length, object, object_crc, crc FROM cold"
ONE = """SELECT stream_id, base, c.length, object, object_crc, crc,
  base, s.length, first_ordinal, open_ordinal, open_time_us, open_crc
FROM cold AS c JOIN segments AS s USING (stream_id, base) WHERE stream_id = ? AND base = ?"""
TOTALS = "SELECT count(*), total(length), (SELECT total(length) FROM segments) FROM cold"
# A segment that another follows never changes again, and neither does the last of a closed stream.
LOCAL = """SELECT s.stream_id, s.base, s.length, s.first_ordinal, s.open_ordinal, s.open_time_us,
  s.open_crc, path, iif(is_last, touched_us, s.open_time_us) AS time_us
FROM (SELECT *, lead(base) OVER (PARTITION BY stream_id ORDER BY base) IS NULL AS is_last
  FROM segments) AS s
JOIN streams ON streams.id = s.stream_id
WHERE (closed OR NOT is_last) AND NOT EXISTS
  (SELECT 1 FROM cold WHERE cold.stream_id = s.stream_id AND cold.base = s.base)
ORDER BY time_us, s.stream_id, s.base"""

_DOOM_STREAMS = """INSERT OR IGNORE INTO doomed SELECT object FROM cold
WHERE stream_id IN (SELECT value FROM json_each(?))"""
_DROP_STREAMS = "DELETE FROM cold WHERE stream_id IN (SELECT value FROM json_each(?))"
_DOOM_SEGMENTS = """INSERT OR IGNORE INTO doomed SELECT object FROM cold
WHERE (stream_id, base) IN (SELECT value->>0, value->>1 FROM json_each(?))"""
_DROP_SEGMENTS = """DELETE FROM cold WHERE (stream_id, base) IN
(SELECT value->>0, value->>1 FROM json_each(?))"""
_DOOM = "INSERT OR IGNORE INTO doomed SELECT value FROM json_each(?)"
_FORGET = "DELETE FROM doomed WHERE object IN (SELECT value FROM json_each(?))"
_PUT = """INSERT OR IGNORE INTO cold
SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5 FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM segments WHERE stream_id = value->>0 AND base = value->>1
  AND length = value->>2)"""
_KEEP = """DELETE FROM doomed WHERE object IN (SELECT object FROM cold
WHERE (stream_id, base) IN (SELECT value->>0, value->>1 FROM json_each(?)))"""


class Cold(NamedTuple):
    segment: ColdSegment
    info: SegmentInfo


class LocalSegment(NamedTuple):
    """A segment with a file that never changes again. `time_us` is the time of its last block."""

    stream_id: int
    info: SegmentInfo
    path: str
    time_us: int


class Totals(NamedTuple):
    cold_segments: int
    cold_bytes: int
    local_bytes: int
    """Of segments with a file."""


class ColdChanges(NamedTuple):
    cold: Sequence[ColdSegment] = ()
    """Segments that are in the object store. Those that are gone by now stay doomed."""
    doomed: Sequence[str] = ()
    """Objects that are about to be written."""
    removed: Sequence[str] = ()
    """Doomed objects that are gone."""


def forget_streams(execute: Execute, deleted: str) -> None:
    """Doom the objects of deleted streams; `deleted` is a JSON list of ids."""
    for statement in (_DOOM_STREAMS, _DROP_STREAMS):
        execute(statement, (deleted,))


def forget_segments(execute: Execute, dropped: str) -> None:
    """Doom the objects of trimmed segments; `dropped` is a JSON list of [stream id, base]."""
    for statement in (_DOOM_SEGMENTS, _DROP_SEGMENTS):
        execute(statement, (dropped,))


def write(execute: Execute, changes: ColdChanges) -> None:
    cold = json.dumps([[*each, checksum(each)] for each in changes.cold])
    execute(_PUT, (cold,))
    execute(_KEEP, (cold,))
    execute(_DOOM, (json.dumps(list(changes.doomed)),))
    execute(_FORGET, (json.dumps(list(changes.removed)),))


def checksum(cold: ColdSegment) -> int:
    return zlib.crc32(repr(tuple(cold)).encode())


def is_sound(row: Sequence[Any]) -> bool:
    """Whether a result of `ALL` matches its checksum."""
    return bool(checksum(ColdSegment(*row[:5])) == row[5])


def decode(row: Sequence[Any]) -> ColdSegment:
    """Return a result of `ALL`; Damaged if it does not match its checksum."""
    if not is_sound(row):
        raise Damaged(
            f"The catalog row of the cold segment of stream {row[0]} at {row[1]} does not match "
            "its checksum. Run `penstock verify` and restore from a backup."
        )
    return ColdSegment(*row[:5])


def decode_one(row: Sequence[Any]) -> Cold:
    """Return a result of `ONE`; Damaged if it does not match its checksum."""
    return Cold(decode(row), SegmentInfo(*row[6:]))


def decode_totals(row: Sequence[Any]) -> Totals:
    """Return the result of `TOTALS`."""
    return Totals(row[0], int(row[1]), int(row[2]) - int(row[1]))


def decode_local(rows: Iterator[Sequence[Any]]) -> Iterator[LocalSegment]:
    """Yield the results of `LOCAL`."""
    for row in rows:
        yield LocalSegment(row[0], SegmentInfo(*row[1:7]), row[7], row[8])
