"""The server's index of declared streams: `(type, key)` → the positions of its change events.

Rows are ordered by position, which offsets name and which grows with the ordinal, so that the state
at any offset is a lookup. The state at the tail is stored too, with its values. The index is a
cache: lost rows are read from the log again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from penstock.log.disk.files import Files
from penstock.state.event import OPERATIONS
from penstock.state.server import deadlines, row_numbers
from penstock.state.server.deadlines import Deadline
from penstock.state.server.index_batch import DELETE, NOTHING, Batch
from penstock.state.server.json_pages import JoinedPage, join

T = TypeVar("T")

FORMAT: Final = 3
CACHE_KIB: Final = 32 * 1024
PROGRESS_STEPS: Final = 100_000
"""Steps of the database, about a millisecond, after which it looks whether it is interrupted."""
RESET: Final = len(OPERATIONS)

IndexFault = sqlite3.Error
"""Every method may raise it when the database or its disk fails."""


def is_passing(error: Exception) -> bool:
    """Whether a retry may succeed: the disk is full or busy, and the database is not broken."""
    return isinstance(error, sqlite3.OperationalError)


_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS streams (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, position INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  skip_until INTEGER NOT NULL, skipped INTEGER NOT NULL, mark_bytes INTEGER NOT NULL,
  mark_crc INTEGER NOT NULL, first INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS changes (
  stream INTEGER NOT NULL, type TEXT NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL,
  length INTEGER NOT NULL, ordinal INTEGER NOT NULL, operation INTEGER NOT NULL,
  PRIMARY KEY (stream, type, key, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resets (
  stream INTEGER NOT NULL, position INTEGER NOT NULL, length INTEGER NOT NULL,
  ordinal INTEGER NOT NULL, floor INTEGER NOT NULL, PRIMARY KEY (stream, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entities (
  stream INTEGER NOT NULL, type TEXT NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL,
  length INTEGER NOT NULL, value BLOB, ordinal INTEGER NOT NULL, expires_us INTEGER,
  PRIMARY KEY (stream, type, key)) WITHOUT ROWID;
{row_numbers.SCHEMA}{deadlines.SCHEMA}
PRAGMA user_version = {FORMAT};
"""
# SQLite takes the other columns of a group from the row with the greatest position. Most values
# are those at the tail; only values that have changed since must be read from the log.
_PAGE: Final = """SELECT past.type, past.key, past.position, past.length, value, operation FROM (
  SELECT stream, type, key, max(position) AS position, length, operation FROM changes
  WHERE stream = ? AND (type, key) >= (?, ?) AND position >= ? AND position < ? GROUP BY type, key
) AS past LEFT JOIN entities USING (stream, type, key, position)"""
_LAST_PAGE: Final = """SELECT type, key, position, length, value, -1 FROM entities
WHERE stream = ? AND (type, key) >= (?, ?)"""
_ONE: Final = """SELECT type, key, position, length, operation FROM changes
WHERE stream = ? AND type = ? AND key = ? AND position >= ? AND position < ?
ORDER BY position DESC LIMIT 1"""
_HISTORY: Final = """SELECT position, length, ordinal, operation FROM changes
WHERE stream = ?1 AND type = ?2 AND key = ?3 AND position > ?4 AND position < ?5
UNION ALL SELECT position, length, ordinal, ?7 FROM resets
WHERE stream = ?1 AND position > ?4 AND position < ?5 AND position > (
  SELECT min(position) FROM changes WHERE stream = ?1 AND type = ?2 AND key = ?3)
ORDER BY position LIMIT ?6"""
_DROP: Final = (
    "DELETE FROM streams WHERE id = ?",
    "DELETE FROM changes WHERE stream = ?",
    "DELETE FROM resets WHERE stream = ?",
    "DELETE FROM entities WHERE stream = ?",
    *row_numbers.DROP,
)


class IndexProgress(NamedTuple):
    """How far a stream is indexed, and the length and checksum of its last indexed message."""

    position: int
    mark_bytes: int
    mark_crc: int
    first: int
    """The position of the earliest event; everything before it was trimmed."""


class Entry(NamedTuple):
    """An entity of a state: the position of the event that set it, and its value if indexed."""

    type: str
    key: str
    position: int
    length: int
    value: bytes | None = None


class Page(NamedTuple):
    """A page of the state at a position: its entities, or (`joined`) their JSON instead."""

    at: int
    entities: list[Entry]
    more: bool
    joined: JoinedPage | None = None


class HistoryStep(NamedTuple):
    """A change in the history of an entity; `operation` is RESET for a reset of the stream."""

    position: int
    length: int
    ordinal: int
    operation: int


class StateQuery(NamedTuple):
    """A query for entities at a position, or with `latest` at that or any later one.

    With `as_json` the page may be JSON that the database has joined.
    """

    stream: int
    at: int
    latest: bool = False
    type: str | None = None
    key: str | None = None
    prefix: str = ""
    after: tuple[str, str] | None = None
    limit: int = 1000
    bytes_max: int = 1024 * 1024
    as_json: bool = False


class StateIndex:
    """One database. Calls come from one thread at a time."""

    def __init__(self, path: Path | None) -> None:
        """Without a path the database is in memory."""
        self._path = path
        self._files = Files()
        self._is_interrupted = False
        self.odd_timestamps = 0  # of events indexed since the start
        self.applied_deadline_us: int | None = None  # the earliest of the last batch
        if path is None:
            self._connect(":memory:")
            return
        try:
            self._files.make_folder(path.parent)
            self._connect(str(path))
            if self._one("PRAGMA user_version") not in ((0,), (FORMAT,)):
                self.recreate()
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        except sqlite3.OperationalError:
            raise  # the disk failed, not the database
        except sqlite3.DatabaseError:
            self.recreate()

    def _connect(self, where: str) -> None:
        self._db = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
        # Not synced at every commit: after a power cut it is consistent, and at worst behind.
        self._db.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA checkpoint_fullfsync=ON; "
            f"PRAGMA cache_size=-{CACHE_KIB}; PRAGMA wal_autocheckpoint=4000;"
        )
        if self._one("PRAGMA user_version") == (0,):
            self._db.executescript(_SCHEMA)
        # A statement that touches every row of a stream can take minutes.
        self._db.set_progress_handler(lambda: self._is_interrupted, PROGRESS_STEPS)

    def recreate(self) -> None:
        """Replace a broken database by an empty one."""
        assert self._path is not None
        self._db.close()
        for suffix in ("", "-wal", "-shm"):
            self._files.remove(self._path.with_name(self._path.name + suffix))
        self._connect(str(self._path))

    def close(self) -> None:
        self._db.close()

    def interrupt(self) -> None:
        """Make the call that runs in another thread raise IndexFault soon, and all after it: what
        was not committed is read from the log again."""
        self._is_interrupted = True

    # -- writing

    def streams(self, after: int = 0, limit: int = -1) -> list[tuple[int, str]]:
        """Return the id and path of every indexed stream."""
        sql = "SELECT id, path FROM streams WHERE id > ? ORDER BY id LIMIT ?"
        return self._db.execute(sql, (after, limit)).fetchall()

    def progress(self, stream: int) -> IndexProgress | None:
        sql = "SELECT position, mark_bytes, mark_crc, first FROM streams WHERE id = ?"
        row = self._one(sql, stream)
        return None if row is None else IndexProgress(*row)

    def begin(self, stream: int, path: str, first: int = 0, ordinal: int = 0) -> None:
        """Begin to index a stream, or begin again, at the position of message `ordinal`."""
        self.drop(stream)
        sql = "INSERT INTO streams VALUES (?, ?, ?, ?, 0, 0, 0, 0, ?)"
        self._db.execute(sql, (stream, path, first, ordinal, first))

    def prune(self, stream: int, first: int) -> None:
        """Remove the events before a position, and their entities: the stream was trimmed."""
        with self._db:
            self._db.execute("BEGIN")
            for table in ("changes", "resets", "entities"):
                # The names are the three above; a table cannot be a parameter.
                self._db.execute(
                    f"DELETE FROM {table} WHERE stream = ? AND position < ?",  # noqa: S608
                    (stream, first),
                )
            self._db.execute("UPDATE streams SET first = ? WHERE id = ?", (first, stream))

    def drop(self, stream: int) -> None:
        with self._db:
            self._db.execute("BEGIN")
            for statement in _DROP:
                self._db.execute(statement, (stream,))

    def apply(
        self, stream: int, start: int, wire: bytes, inherited: Mapping[int, int] = NOTHING
    ) -> int:
        """Index the messages of wire bytes from `start` on; return how many were no events."""
        row = self._one("SELECT position, ordinal, skip_until FROM streams WHERE id = ?", stream)
        if row is None or row[0] != start:
            raise sqlite3.OperationalError(f"stream {stream} is not indexed up to {start}")
        batch = Batch(stream, start, row[1], row[2], inherited=inherited)
        batch.add_all(wire)
        mark = wire[wire.rfind(b"\n", 0, len(wire) - 1) + 1 :]
        with self._db:
            self._db.execute("BEGIN")
            # In the order of the table, where neighbours are on the same page.
            batch.changes.sort()
            self._db.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", batch.changes)
            self._db.executemany("INSERT INTO resets VALUES (?, ?, ?, ?, ?)", batch.resets)
            if batch.resets:
                self._db.execute(
                    "DELETE FROM entities WHERE stream = ? AND position < ?", (stream, batch.floor)
                )
            self._db.executemany(
                "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                batch.set_entities(),
            )
            row_numbers.add(self._db, stream, batch.numbered)
            self._db.executemany(
                "DELETE FROM entities WHERE stream = ? AND type = ? AND key = ?",
                batch.deleted_entities(),
            )
            self._db.execute(
                "UPDATE streams SET position = ?, ordinal = ?, skip_until = ?, "
                "skipped = skipped + ?, mark_bytes = ?, mark_crc = ? WHERE id = ?",
                (batch.position, batch.ordinal, batch.skip_until, batch.skipped,
                 len(mark), zlib.crc32(mark), stream),
            )  # fmt: skip
        self.odd_timestamps += batch.odd_timestamps
        self.applied_deadline_us = batch.deadline_us
        return batch.skipped

    def skipped(self, stream: int) -> int:
        """Return the number of messages of a stream that were no events."""
        row = self._one("SELECT skipped FROM streams WHERE id = ?", stream)
        return 0 if row is None else int(row[0])

    # -- queries; None if the index has not reached their position

    def page(self, query: StateQuery) -> Page | None:
        """Return entities in the order of type and key."""
        progress = self.progress(query.stream)
        if progress is None or progress.position < query.at:
            return None
        if query.latest:
            query = query._replace(at=progress.position)
        floor = self._floor(query)
        if query.type is not None and query.key is not None:
            where = (query.stream, query.type, query.key, floor, query.at)
            row = self._one(_ONE, *where)
            entries = [] if row is None or row[4] == DELETE else [Entry(*row[:4])]
            return Page(query.at, entries, more=False)
        low = (query.type or "", query.prefix)
        if query.after is not None:
            low = max(low, (query.after[0], query.after[1] + "\0"))  # the next possible key
        if query.at == progress.position:
            if query.as_json and query.type is None:
                limits = {"limit": query.limit, "bytes_max": query.bytes_max}
                joined = join(self._all, query.stream, low, **limits)
                if joined is not None:
                    return Page(query.at, [], joined.more, joined)
            cursor = self._db.execute(_LAST_PAGE, (query.stream, *low))
        else:
            cursor = self._db.execute(_PAGE, (query.stream, *low, floor, query.at))
        entities: list[Entry] = []
        size = 0
        try:
            for type, key, position, length, value, operation in cursor:
                if query.type is not None and type != query.type:
                    break
                if not key.startswith(query.prefix):
                    break
                if operation == DELETE:
                    continue
                size += length
                if entities and (len(entities) >= query.limit or size > query.bytes_max):
                    return Page(query.at, entities, more=True)
                entities.append(Entry(type, key, position, length, value))
        finally:
            cursor.close()
        return Page(query.at, entities, more=False)

    def history(self, query: StateQuery, after: int) -> list[HistoryStep] | None:
        """Return the changes of an entity after a position, oldest first."""
        if not self._reaches(query):
            return None
        entity = (query.stream, query.type, query.key)
        rows = self._db.execute(_HISTORY, (*entity, after, query.at, query.limit + 1, RESET))
        return [HistoryStep(*row) for row in rows]

    def ask(self, stream: int, at: int, question: Callable[[Any, IndexProgress], T]) -> T | None:
        """Return the answer of a question to the database, if the stream is indexed up to `at`."""
        progress = self.progress(stream)
        if progress is None or progress.position < at:
            return None
        return question(self._db, progress)

    def write(self, job: Callable[[Any, int], None], stream: int) -> None:
        """Run a change of a stream's rows in one transaction."""
        with self._db:
            self._db.execute("BEGIN")
            job(self._db, stream)

    def deadlines(self) -> list[Deadline]:
        """Return the first deadline of each stream that has one."""
        return deadlines.all_streams(self._db)

    def _reaches(self, query: StateQuery) -> bool:
        progress = self.progress(query.stream)
        return progress is not None and progress.position >= query.at

    def _floor(self, query: StateQuery) -> int:
        """Return the position from which events count at the position of a query."""
        sql = "SELECT max(floor) FROM resets WHERE stream = ? AND position < ?"
        row = self._one(sql, query.stream, query.at)
        return 0 if row is None or row[0] is None else int(row[0])

    def _all(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: object) -> Any:
        return self._db.execute(sql, values).fetchone()
