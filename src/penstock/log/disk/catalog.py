"""The SQLite catalog: every stream's row, its segments and producers, written at checkpoints.

Each row carries the LSN up to which it is true and a checksum over what it holds. Two connections:
the loop's reads, the checkpoint thread's writes (WAL, so neither waits for the other).
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import Damaged
from penstock.log.disk import catalog_cold
from penstock.log.disk.catalog_cold import Cold, ColdChanges, LocalSegment, Totals
from penstock.log.disk.catalog_rows import (
    COLUMNS,
    PRODUCER_TOTAL,
    WIDTH,
    Row,
    checksum,
    decode,
    encode,
)
from penstock.log.disk.segment import ColdSegment, SegmentInfo
from penstock.log.stream import Deadline, Renewals, StreamInfo, decode_renewals
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
CREATE INDEX IF NOT EXISTS streams_forked ON streams (forked_from, path)
  WHERE forked_from IS NOT NULL;
CREATE TABLE IF NOT EXISTS segments (
  stream_id INTEGER NOT NULL, base INTEGER NOT NULL, length INTEGER NOT NULL,
  first_ordinal INTEGER NOT NULL, open_ordinal INTEGER NOT NULL, open_time_us INTEGER NOT NULL,
  open_crc INTEGER NOT NULL, PRIMARY KEY (stream_id, base)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS producers (
  stream_id INTEGER NOT NULL, producer_id TEXT NOT NULL, epoch INTEGER NOT NULL,
  seq INTEGER NOT NULL, PRIMARY KEY (stream_id, producer_id)) WITHOUT ROWID;
"""

_PRODUCER_CRC = ("producers", "crc")
# Columns that the first databases did not have, by table and name.
ADDED = {
    ("streams", "fork_count"): "INTEGER",
    ("streams", "fork_path"): "TEXT",
    ("streams", "forks"): "INTEGER NOT NULL DEFAULT 0",
    ("streams", "pinned"): "INTEGER",
    ("streams", "earliest_ordinal"): "INTEGER NOT NULL DEFAULT 0",
    _PRODUCER_CRC: "INTEGER",
}

_INFO = (
    "path, id, content_type, tail, count, closed, created_us, touched_us, ttl_s, expires_at_us, "
    "earliest, earliest_ordinal, fork_path, "
    "CASE WHEN meta IS NULL THEN NULL ELSE meta->>'renewals' END"
)

_HELD = "tail - max(min(earliest, ifnull(pinned, earliest)), ifnull(fork_position, 0))"

# One statement for all rows: a call per row would take and give the interpreter lock per row.
_PUT_STREAMS = f"""INSERT OR REPLACE INTO streams ({COLUMNS}, crc, inline)
SELECT {", ".join(f"value->>{i}" for i in range(WIDTH + 1))},
  CASE WHEN value->>{WIDTH + 1} IS NULL THEN NULL
  ELSE substr(?2, value->>{WIDTH + 1}, value->>{WIDTH + 2}) END
FROM json_each(?1)"""
_PUT_SEGMENTS = f"""INSERT OR REPLACE INTO segments
SELECT {", ".join(f"value->>{i}" for i in range(7))} FROM json_each(?1)"""
_PUT_PRODUCERS = f"""INSERT OR REPLACE INTO producers (stream_id, producer_id, epoch, seq, crc)
SELECT {", ".join(f"value->>{i}" for i in range(5))} FROM json_each(?1)"""
_PUT_META = "INSERT OR REPLACE INTO meta SELECT value->>0, value->>1 FROM json_each(?)"
_DROP_SEGMENTS = """DELETE FROM segments WHERE (stream_id, base) IN
(SELECT value->>0, value->>1 FROM json_each(?))"""
_OWNED = (("streams", "id"), ("segments", "stream_id"), ("producers", "stream_id"))
_META_CRC = "crc"
ROWS = f"SELECT {COLUMNS}, crc, inline FROM streams"
_CACHE, _CHECK_CACHE = -8192, -65536
"""Page caches in KiB; a check jumps between a table and its indexes."""
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
    tiered: ColdChanges | None = None


class CatalogCheck(NamedTuple):
    """The result of a check at a start: what was wrong, and whether new indexes have mended it."""

    faults: list[str]
    is_complete: bool
    is_repaired: bool


def producer_checksum(stream_id: int, producer_id: str, epoch: int, seq: int) -> int:
    return zlib.crc32(repr((stream_id, producer_id, epoch, seq)).encode())


def _producer_values(item: tuple[int, str, ProducerState]) -> list[int | str]:
    stream_id, producer_id, state = item
    crc = producer_checksum(stream_id, producer_id, *state)
    return [stream_id, producer_id, *state, crc]


def _meta_crc(items: Iterable[tuple[str, int | str]]) -> int:
    return zlib.crc32(repr(sorted(items)).encode())


class Catalog:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only` is for a database without a WAL that no process writes to: SQLite then makes
        no file of its own and takes no lock."""
        self.path = path
        uri = path.absolute().as_uri()
        if read_only:
            self._reader = self._writer = connect(f"{uri}?mode=ro&immutable=1")
            return
        self._reader, self._writer = connect(f"{uri}?mode=rwc"), connect(f"{uri}?mode=rwc")
        for connection in (self._reader, self._writer):
            connection.executescript(
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size={_CACHE};"
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
            row = self._reader.execute(f"{ROWS} WHERE {column} = ?", (value,)).fetchone()
            if row is None:
                return None
            inline = row[WIDTH + 1]
            # A stream that fits into its row has no files.
            segments = self._segments(row[0]) if inline is None else ()
        finally:
            self._reader.execute("COMMIT")
        # An altered index leads to the row of another path.
        if not is_row_sound(row, segments) or (column == "path" and row[1] != value):
            raise Damaged(
                f"The catalog row of stream {row[1]!r} does not match its checksum. "
                "Run `penstock verify` and restore from a backup."
            )
        return decode(row[:WIDTH], inline, segments)

    def _segments(self, stream_id: int) -> tuple[SegmentInfo, ...]:
        return segments_of(self._reader, stream_id)

    def producer(self, stream_id: int, producer_id: str) -> ProducerState | None:
        row = self._reader.execute(
            "SELECT epoch, seq, crc FROM producers WHERE stream_id = ? AND producer_id = ?",
            (stream_id, producer_id),
        ).fetchone()
        if row is None:
            return None
        epoch, seq, crc = row
        if producer_checksum(stream_id, producer_id, epoch, seq) != crc:
            raise Damaged(
                f"The catalog row of producer {producer_id!r} of stream {stream_id} does not match "
                "its checksum. Run `penstock verify` and restore from a backup."
            )
        return ProducerState(epoch, seq)

    def list_producers(
        self, stream_id: int, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        """Return producers of a stream in the order of their ids."""
        rows = self._reader.execute(
            "SELECT producer_id, epoch, seq FROM producers "
            "WHERE stream_id = ? AND producer_id > ? ORDER BY producer_id LIMIT ?",
            (stream_id, after, limit),
        )
        return [(id, ProducerState(epoch, seq)) for id, epoch, seq in rows]

    def check_producers(self, stream_id: int) -> None:
        """Raise Damaged unless all producers of a stream are there, each as it was written: one
        whose id was altered would otherwise look like one that never wrote."""
        # One transaction: a checkpoint may commit between the number and the rows.
        self._reader.execute("BEGIN")
        try:
            total = self._reader.execute(
                "SELECT producers FROM streams WHERE id = ?", (stream_id,)
            ).fetchone()
            rows = self._reader.execute(
                "SELECT stream_id, producer_id, epoch, seq, crc FROM producers WHERE stream_id = ?",
                (stream_id,),
            ).fetchall()
        finally:
            self._reader.execute("COMMIT")
        is_whole = all(producer_checksum(*row[:4]) == row[4] for row in rows)
        if total is None or (len(rows),) != total or not is_whole:
            raise Damaged(
                f"The catalog does not have the producers of stream {stream_id} as they were "
                "written. Run `penstock verify` and restore from a backup."
            )

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
        return list(map(info_from, rows))

    def list_forks(self, source_id: int, after: str, limit: int) -> list[StreamInfo]:
        """Return the forks of a stream in the order of their paths."""
        rows = self._reader.execute(
            f"SELECT {_INFO} FROM streams "
            "WHERE forked_from = ? AND path > ? AND NOT soft_deleted ORDER BY path LIMIT ?",
            (source_id, after, limit),
        )
        return list(map(info_from, rows))

    def sizes(self, after_id: int, limit: int) -> list[tuple[int, str, int]]:
        """Return (id, path, own bytes that are held) of all streams after an id, in that order."""
        rows = self._reader.execute(
            f"SELECT id, path, {_HELD} FROM streams WHERE id > ?1 ORDER BY id LIMIT ?2",
            (after_id, limit),
        )
        return rows.fetchall()

    def totals_query(self) -> TotalsQuery:
        """Return a query for the totals of the catalog as it is now, whatever follows."""
        return TotalsQuery(f"{self.path.absolute().as_uri()}?mode=ro")

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
        """Whether the database has every table and column that this version uses."""
        tables = {name for (name,) in self._reader.execute("SELECT name FROM sqlite_schema")}
        return not _missing(self._reader) and tables.issuperset(catalog_cold.TABLES)

    def ids(self) -> Iterable[int]:
        for (stream_id,) in self._reader.execute("SELECT id FROM streams ORDER BY id"):
            yield stream_id

    def segment_names(self) -> set[tuple[int, int]]:
        # On the connection of the checkpoint thread: that of the event loop may be in the middle of
        # a read, before the last commit, and files in use would look like strays.
        return set(self._writer.execute("SELECT stream_id, base FROM segments"))

    def cold(self, stream_id: int, base: int) -> Cold | None:
        """Return where the object store has a segment; None if the segment has a file."""
        row = self._reader.execute(catalog_cold.ONE, (stream_id, base)).fetchone()
        return None if row is None else catalog_cold.decode_one(row)

    def cold_segments(self) -> list[ColdSegment]:
        """Return all cold segments whose row is sound. Checkpoint thread only, like
        `segment_names`."""
        rows = self._writer.execute(catalog_cold.ALL)
        return [catalog_cold.decode(row) for row in rows if catalog_cold.is_sound(row)]

    def cold_totals(self) -> Totals:
        return catalog_cold.decode_totals(self._reader.execute(catalog_cold.TOTALS).fetchone())

    def doomed(self, limit: int) -> list[str]:
        """Return objects that no segment needs."""
        rows = self._reader.execute("SELECT object FROM doomed LIMIT ?", (limit,))
        return [name for (name,) in rows]

    @contextmanager
    def survey(self) -> Iterator[tuple[Totals, Iterator[LocalSegment]]]:
        """Provide the totals, and the segments with a file that never changes again, oldest first.
        It has a connection of its own, for any thread."""
        connection = connect(f"{self.path.absolute().as_uri()}?mode=ro")
        try:
            totals = connection.execute(catalog_cold.TOTALS).fetchone()
            local = connection.execute(catalog_cold.LOCAL)
            yield catalog_cold.decode_totals(totals), catalog_cold.decode_local(local)
        finally:
            connection.close()

    def integrity(self) -> list[str]:
        """Return what is wrong with the database: its pages, or an index that does not agree with
        its table."""
        return integrity_faults(self._reader)

    def check(self, *, timeout_s: float) -> CatalogCheck:
        """Check the database, and build its indexes again if nothing else is damaged; a database
        that stays damaged is left as it is. For a start, before the loop reads."""
        writer, deadline = self._writer, time.monotonic() + timeout_s
        writer.execute(f"PRAGMA cache_size={_CHECK_CACHE}")
        writer.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
        try:
            faults = integrity_faults(writer)
        except sqlite3.OperationalError:
            if time.monotonic() <= deadline:
                raise
            return CatalogCheck([], is_complete=False, is_repaired=False)
        finally:
            writer.set_progress_handler(None, 0)
            writer.execute(f"PRAGMA cache_size={_CACHE}")
        is_repaired = bool(faults) and self._rebuild_indexes()
        return CatalogCheck(faults, is_complete=True, is_repaired=is_repaired)

    def _rebuild_indexes(self) -> bool:
        """Return whether new indexes leave a database without a fault; else nothing is changed."""
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            writer.execute("REINDEX")
            is_sound = not integrity_faults(writer) and _are_rows_sound(writer)
        except CATALOG_ERRORS:
            is_sound = False
        if writer.in_transaction:
            writer.execute("COMMIT" if is_sound else "ROLLBACK")
        return is_sound

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
            catalog_cold.forget_streams(write, deleted)
            if changes.dropped:
                dropped = json.dumps(list(changes.dropped))
                write(_DROP_SEGMENTS, (dropped,))
                catalog_cold.forget_segments(write, dropped)
            for start in range(0, len(changes.rows), ROWS_A_STATEMENT):
                write(_PUT_STREAMS, encode(changes.rows[start : start + ROWS_A_STATEMENT]))
            write(_PUT_SEGMENTS, (json.dumps([[i, *info] for i, info in changes.segments]),))
            write(_PUT_PRODUCERS, (json.dumps([*map(_producer_values, changes.producers)]),))
            if changes.tiered is not None:
                catalog_cold.write(write, changes.tiered)
            write(_PUT_META, (json.dumps(list(changes.meta.items())),))
            meta = write("SELECT key, value FROM meta WHERE key != ?", (_META_CRC,)).fetchall()
            write(_PUT_META, (json.dumps([[_META_CRC, _meta_crc(meta)]]),))
            write("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                write("ROLLBACK")
            raise

    def forget_cold(self) -> None:
        """Forget where an object store has segments, because files have all of them."""
        self._writer.executescript("BEGIN; DELETE FROM cold; DELETE FROM doomed; COMMIT")

    def close(self) -> None:
        if self._writer is not self._reader:
            self._writer.close()
        self._reader.close()


def info_from(row: Sequence[Any]) -> StreamInfo:
    """Return a result of `_INFO`."""
    renewals: Renewals = () if row[-1] is None else decode_renewals(b64decode(row[-1]))
    return StreamInfo._make((*row[:5], bool(row[5]), *row[6:-1], renewals))


def integrity_faults(connection: sqlite3.Connection) -> list[str]:
    # Not quick_check: it does not compare an index with its table, and most flipped bits of an
    # index are found in no other way.
    rows = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    return [] if rows == ["ok"] else rows


class TotalsQuery:
    """Counts the streams of a catalog, and the bytes they hold, in the snapshot that was current
    when it was made. `run` is for a thread: it reads every row. `stop` ends it."""

    def __init__(self, uri: str) -> None:
        self._is_stopped = False
        self._connection = connect(uri)
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM meta").fetchone()  # takes the snapshot

    def run(self, excluded: Iterable[int]) -> tuple[int, int] | None:
        """Return the streams that were not deleted, and the bytes of all, without those whose ids
        are excluded; None if it was stopped or failed."""
        try:
            if self._is_stopped:
                return None
            row = self._connection.execute(
                f"SELECT count(*) FILTER (WHERE NOT soft_deleted), ifnull(sum({_HELD}), 0) "
                "FROM streams WHERE id NOT IN (SELECT value FROM json_each(?))",
                (json.dumps(list(excluded)),),
            ).fetchone()
        except CATALOG_ERRORS:
            return None
        finally:
            self._connection.close()
        return row[0], row[1]

    def stop(self) -> None:
        self._is_stopped = True
        with suppress(sqlite3.ProgrammingError):  # it has ended
            self._connection.interrupt()


def segments_of(connection: sqlite3.Connection, stream_id: int) -> tuple[SegmentInfo, ...]:
    rows = connection.execute(
        "SELECT base, length, first_ordinal, open_ordinal, open_time_us, open_crc "
        "FROM segments WHERE stream_id = ? ORDER BY base",
        (stream_id,),
    )
    return tuple(SegmentInfo(*row) for row in rows)


def is_row_sound(row: Sequence[Any], segments: tuple[SegmentInfo, ...]) -> bool:
    """Whether a result of `ROWS` matches its checksum."""
    values, crc, inline = row[:WIDTH], row[WIDTH], row[WIDTH + 1]
    return isinstance(inline, bytes | None) and checksum(values, inline, segments) == crc


def _are_rows_sound(connection: sqlite3.Connection) -> bool:
    """Whether all rows are there, each as it was written."""
    producers = 0
    for row in connection.execute(f"{ROWS} NOT INDEXED"):
        segments = segments_of(connection, row[0]) if row[WIDTH + 1] is None else ()
        if not is_row_sound(row, segments):
            return False
        producers += row[PRODUCER_TOTAL]
    for row in connection.execute("SELECT stream_id, producer_id, epoch, seq, crc FROM producers"):
        if producer_checksum(*row[:4]) != row[4]:
            return False
        producers -= 1
    return producers == 0 and all(map(catalog_cold.is_sound, connection.execute(catalog_cold.ALL)))


def connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=30)


def _missing(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return (table, column) of what a database of an earlier version lacks."""
    columns = {
        table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for table in ("streams", "producers")
    }
    # Another table that is not there is not of an earlier version: the first query fails.
    return [
        (table, column)
        for table, column in ADDED
        if columns[table] and column not in columns[table]
    ]


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(SCHEMA + catalog_cold.SCHEMA)
    missing = _missing(connection)
    if not missing:
        return
    # One transaction: a database has the column only if every row has its checksum.
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table, column in missing:
            kind = ADDED[table, column]
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        if _PRODUCER_CRC in missing:
            connection.create_function("producer_checksum", 4, producer_checksum)
            connection.execute(
                "UPDATE producers SET crc = producer_checksum(stream_id, producer_id, epoch, seq)"
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def settle(path: Path) -> None:
    """Move the WAL into the database file, and create missing tables and columns."""
    connection = connect(path.absolute().as_uri())
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        _make_tables(connection)
    finally:
        connection.close()
