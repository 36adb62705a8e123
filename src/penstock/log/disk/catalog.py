"""The SQLite catalog: every stream's row, its segments and producers, written at checkpoints.

Each row carries the LSN up to which it is true and a checksum over what it holds. Two connections:
the loop's reads, the checkpoint thread's writes (WAL, so neither waits for the other).
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Damaged
from penstock.log.disk.catalog_rows import COLUMNS, WIDTH, Row, checksum, decode, encode
from penstock.log.disk.segment import SegmentInfo
from penstock.log.stream import Deadline, StreamInfo
from penstock.protocol.producer import ProducerState

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, content_type TEXT NOT NULL,
  ttl_s INTEGER, expires_at_us INTEGER, created_us INTEGER NOT NULL, touched_us INTEGER NOT NULL,
  deadline_us INTEGER, earliest INTEGER NOT NULL, tail INTEGER NOT NULL, count INTEGER NOT NULL,
  closed INTEGER NOT NULL, closed_by TEXT, stream_seq TEXT, producers INTEGER NOT NULL,
  applied_lsn INTEGER NOT NULL, meta TEXT, inline BLOB, crc INTEGER NOT NULL,
  forked_from INTEGER, fork_position INTEGER, soft_deleted INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS streams_deadline ON streams (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX IF NOT EXISTS streams_meta ON streams (path) WHERE meta IS NOT NULL;
CREATE INDEX IF NOT EXISTS streams_touched ON streams
  (touched_us, id, path, tail, earliest, soft_deleted)
  WHERE tail > earliest AND NOT soft_deleted;
CREATE INDEX IF NOT EXISTS streams_filed ON streams (path)
  WHERE tail > earliest AND NOT soft_deleted AND (inline IS NULL OR forked_from IS NOT NULL);
CREATE TABLE IF NOT EXISTS segments (
  stream_id INTEGER NOT NULL, base INTEGER NOT NULL, length INTEGER NOT NULL,
  first_ordinal INTEGER NOT NULL, open_ordinal INTEGER NOT NULL, open_time_us INTEGER NOT NULL,
  open_crc INTEGER NOT NULL, PRIMARY KEY (stream_id, base)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS producers (
  stream_id INTEGER NOT NULL, producer_id TEXT NOT NULL, epoch INTEGER NOT NULL,
  seq INTEGER NOT NULL, PRIMARY KEY (stream_id, producer_id)) WITHOUT ROWID;
"""

# Columns that the first databases did not have.
ADDED = {
    "fork_count": "INTEGER",
    "fork_path": "TEXT",
    "forks": "INTEGER NOT NULL DEFAULT 0",
    "pinned": "INTEGER",
    "earliest_ordinal": "INTEGER NOT NULL DEFAULT 0",
}

_INFO = (
    "path, id, content_type, tail, count, closed, created_us, touched_us, ttl_s, expires_at_us, "
    "earliest, earliest_ordinal, fork_path"
)

# One statement for all rows: a call per row would take and give the interpreter lock per row.
_PUT_STREAMS = f"""INSERT OR REPLACE INTO streams ({COLUMNS}, crc, inline)
SELECT {", ".join(f"value->>{i}" for i in range(WIDTH + 1))},
  CASE WHEN value->>{WIDTH + 1} IS NULL THEN NULL
  ELSE substr(?2, value->>{WIDTH + 1}, value->>{WIDTH + 2}) END
FROM json_each(?1)"""
_PUT_SEGMENTS = f"""INSERT OR REPLACE INTO segments
SELECT {", ".join(f"value->>{i}" for i in range(7))} FROM json_each(?1)"""
_PUT_PRODUCERS = f"""INSERT OR REPLACE INTO producers
SELECT {", ".join(f"value->>{i}" for i in range(4))} FROM json_each(?1)"""
_PUT_META = "INSERT OR REPLACE INTO meta SELECT value->>0, value->>1 FROM json_each(?)"
_DROP_SEGMENTS = """DELETE FROM segments WHERE (stream_id, base) IN
(SELECT value->>0, value->>1 FROM json_each(?))"""
_OWNED = (("streams", "id"), ("segments", "stream_id"), ("producers", "stream_id"))
_META_CRC = "crc"
ROWS_A_STATEMENT = 5000


CatalogError = sqlite3.Error
"""The error of every method when the database or its disk fails."""
CATALOG_ERRORS = (CatalogError, UnicodeError)
"""The errors of reading a damaged database: SQLite's messages quote it, and may not be UTF-8."""


@contextmanager
def as_damage() -> Iterator[None]:
    """Turn errors of reading the catalog into Damaged."""
    try:
        yield
    except CATALOG_ERRORS as error:
        raise Damaged(
            f"The catalog cannot be read ({error!a}). Run `penstock verify`, restore from a backup."
        ) from error


def is_catalog_full(error: Exception) -> bool:
    """Whether the disk of the catalog is full, which may pass."""
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)


class Changes(NamedTuple):
    """Everything one checkpoint writes, in one transaction."""

    rows: list[Row]
    segments: list[tuple[int, SegmentInfo]]
    producers: list[tuple[int, str, ProducerState]]
    deleted: list[int]
    meta: dict[str, int | str]
    dropped: Sequence[tuple[int, int]] = ()
    """(stream id, base) of segments that were trimmed away."""


def _meta_crc(items: Iterable[tuple[str, int | str]]) -> int:
    return zlib.crc32(repr(sorted(items)).encode())


class Catalog:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only` is for a database without a WAL that no process writes to: SQLite then makes
        no file of its own and takes no lock."""
        self._path = path
        uri = path.absolute().as_uri()
        if read_only:
            self._reader = self._writer = _connect(f"{uri}?mode=ro&immutable=1")
            return
        self._reader, self._writer = _connect(f"{uri}?mode=rwc"), _connect(f"{uri}?mode=rwc")
        for connection in (self._reader, self._writer):
            connection.executescript(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-8192;"
                # On macOS a sync that empties the cache of the drive; nothing elsewhere.
                "PRAGMA fullfsync=ON; PRAGMA checkpoint_fullfsync=ON;"
            )
        _make_tables(self._writer)

    def meta(self) -> dict[str, int | str]:
        """Return the LSN and ids up to which the catalog goes; empty before the first commit."""
        meta = dict(self._reader.execute("SELECT key, value FROM meta"))
        if meta and meta.pop(_META_CRC, None) != _meta_crc(meta.items()):
            raise Damaged(
                "The catalog's own position does not match its checksum. "
                "Run `penstock verify` and restore from a backup."
            )
        return meta

    def by_path(self, path: str) -> Row | None:
        return self._row("path", path)

    def by_id(self, stream_id: int) -> Row | None:
        return self._row("id", stream_id)

    def _row(self, column: str, value: object) -> Row | None:
        # One transaction: a checkpoint may commit between the row and its segments.
        self._reader.execute("BEGIN")
        try:
            row = self._reader.execute(
                f"SELECT {COLUMNS}, crc, inline FROM streams WHERE {column} = ?", (value,)
            ).fetchone()
            if row is None:
                return None
            values, crc, inline = row[:WIDTH], row[WIDTH], row[WIDTH + 1]
            # A stream that fits into its row has no files.
            segments = self._segments(values[0]) if inline is None else ()
        finally:
            self._reader.execute("COMMIT")
        if not isinstance(inline, bytes | None) or checksum(values, inline, segments) != crc:
            raise Damaged(
                f"The catalog row of stream {row[1]!r} does not match its checksum. "
                "Run `penstock verify` and restore from a backup."
            )
        return decode(values, inline, segments)

    def _segments(self, stream_id: int) -> tuple[SegmentInfo, ...]:
        rows = self._reader.execute(
            "SELECT base, length, first_ordinal, open_ordinal, open_time_us, open_crc "
            "FROM segments WHERE stream_id = ? ORDER BY base",
            (stream_id,),
        )
        return tuple(SegmentInfo(*row) for row in rows)

    def producer(self, stream_id: int, producer_id: str) -> ProducerState | None:
        row = self._reader.execute(
            "SELECT epoch, seq FROM producers WHERE stream_id = ? AND producer_id = ?",
            (stream_id, producer_id),
        ).fetchone()
        return None if row is None else ProducerState(*row)

    def list_streams(
        self, prefix: str, after: str, limit: int, *, filed: bool = False
    ) -> list[StreamInfo]:
        """Return streams whose path starts with `prefix` and sorts after `after`, in path order;
        with `filed` only those that have data outside of their row."""
        clauses, values = ["path > ?", "NOT soft_deleted"], [after]
        if filed:
            clauses += ["tail > earliest", "(inline IS NULL OR forked_from IS NOT NULL)"]
        if prefix:
            # Paths are ASCII: everything with the prefix sorts below the prefix followed by DEL.
            clauses += ["path >= ?", "path < ?"]
            values += [prefix, prefix + "\x7f"]
        rows = self._reader.execute(
            f"SELECT {_INFO} FROM streams WHERE {' AND '.join(clauses)} ORDER BY path LIMIT ?",
            (*values, limit),
        )
        return [StreamInfo._make((*row[:5], bool(row[5]), *row[6:])) for row in rows]

    def list_meta(self, name: str, after: str, limit: int) -> list[tuple[int, str]]:
        """Return (id, path) of streams that have the meta value `name`, in path order."""
        rows = self._reader.execute(
            "SELECT id, path FROM streams WHERE meta IS NOT NULL AND path > ?1 "
            "AND instr(meta, ?2) AND NOT soft_deleted ORDER BY path LIMIT ?3",
            (after, json.dumps(name) + ":", limit),
        )
        return rows.fetchall()

    def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Return streams with data that were last touched before `since_us`, in the order of (time,
        id), after the pair `after`."""
        rows = self._reader.execute(
            "SELECT touched_us, id, path FROM streams WHERE tail > earliest AND NOT soft_deleted "
            "AND touched_us < ?1 AND (touched_us, id) > (?2, ?3) ORDER BY touched_us, id LIMIT ?4",
            (since_us, *after, limit),
        )
        return [Deadline(*row) for row in rows]

    def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        """Return streams whose deadline has passed, in the order of (deadline, id), after
        `after`."""
        rows = self._reader.execute(
            "SELECT deadline_us, id, path FROM streams WHERE deadline_us <= ?1 AND "
            "(deadline_us, id) > (?2, ?3) ORDER BY deadline_us, id LIMIT ?4",
            (now_us, *after, limit),
        )
        return [Deadline(*row) for row in rows]

    def is_current(self) -> bool:
        """Whether the database has every column that this version uses."""
        return not _missing(self._reader)

    def ids(self) -> Iterable[int]:
        for (stream_id,) in self._reader.execute("SELECT id FROM streams ORDER BY id"):
            yield stream_id

    def segment_names(self) -> set[tuple[int, int]]:
        # On the connection of the checkpoint thread: that of the event loop may be in the middle of
        # a read, before the last commit, and files in use would look like strays.
        return set(self._writer.execute("SELECT stream_id, base FROM segments"))

    def integrity(self) -> list[str]:
        rows = [row[0] for row in self._reader.execute("PRAGMA integrity_check")]
        return [] if rows == ["ok"] else rows

    def totals(self) -> tuple[int, int]:
        """Return the number of streams, and of the bytes that they hold themselves."""
        count, size = self._reader.execute(
            "SELECT count(*), total(tail - max(earliest, ifnull(fork_position, 0))) FROM streams"
        ).fetchone()
        return count, int(size)

    def commit(self, changes: Changes) -> None:
        """Write one checkpoint, all or nothing. Checkpoint thread only."""
        write = self._writer.execute
        write("BEGIN IMMEDIATE")
        try:
            deleted = json.dumps(changes.deleted)
            for table, column in _OWNED:
                write(
                    f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",
                    (deleted,),
                )
            if changes.dropped:
                write(_DROP_SEGMENTS, (json.dumps(list(changes.dropped)),))
            for start in range(0, len(changes.rows), ROWS_A_STATEMENT):
                write(_PUT_STREAMS, encode(changes.rows[start : start + ROWS_A_STATEMENT]))
            write(_PUT_SEGMENTS, (json.dumps([[i, *info] for i, info in changes.segments]),))
            write(_PUT_PRODUCERS, (json.dumps([[i, p, *s] for i, p, s in changes.producers]),))
            write(_PUT_META, (json.dumps(list(changes.meta.items())),))
            meta = write("SELECT key, value FROM meta WHERE key != ?", (_META_CRC,)).fetchall()
            write(_PUT_META, (json.dumps([[_META_CRC, _meta_crc(meta)]]),))
            write("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                write("ROLLBACK")
            raise

    def close(self) -> None:
        if self._writer is not self._reader:
            self._writer.close()
        self._reader.close()


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=30)


def _missing(connection: sqlite3.Connection) -> list[str]:
    existing = {row[1] for row in connection.execute("PRAGMA table_info(streams)")}
    return [column for column in ADDED if column not in existing]


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA)
    for column in _missing(connection):
        connection.execute(f"ALTER TABLE streams ADD COLUMN {column} {ADDED[column]}")


def settle(path: Path) -> None:
    """Move the WAL into the database file, and create missing tables and columns."""
    connection = _connect(path.absolute().as_uri())
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        _make_tables(connection)
    finally:
        connection.close()
