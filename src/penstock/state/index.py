"""The server's index of declared streams: `(type, key)` → where its change events are in the log.

Rows are ordered by position, which is what offsets name and grows with the ordinal, so that a state
at any offset is a lookup. The state at the end is kept beside it, with its values. A cache: what is
lost is read from the log again.
"""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import BadRequest, InvalidEvent
from penstock.log.files import Files
from penstock.protocol.json_mode import unframe
from penstock.protocol.offsets import Offset, parse_offset
from penstock.state._event import OPERATIONS, ControlEvent
from penstock.state._parsing import decode_exactly, decode_loosely, parse

FORMAT: Final = 2
VALUE_BYTES_MAX: Final = 4096
"""Larger values stay in the log alone."""
CACHE_KIB: Final = 32 * 1024
DELETE: Final = OPERATIONS.index("delete")
RESET: Final = len(OPERATIONS)

IndexFault = sqlite3.Error
"""What every method may raise when the database or its disk fails."""


def is_passing(error: Exception) -> bool:
    """Whether the same may work later: a full or busy disk, not a broken database."""
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
  ordinal INTEGER NOT NULL, PRIMARY KEY (stream, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entities (
  stream INTEGER NOT NULL, type TEXT NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL,
  length INTEGER NOT NULL, value BLOB, PRIMARY KEY (stream, type, key)) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""
# SQLite takes the other columns of a group from the row that has the greatest position.
_PAGE: Final = """SELECT type, key, max(position), length, NULL, operation FROM changes
WHERE stream = ? AND (type, key) >= (?, ?) AND position > ? AND position < ? GROUP BY type, key"""
_LAST_PAGE: Final = """SELECT type, key, position, length, value, -1 FROM entities
WHERE stream = ? AND (type, key) >= (?, ?)"""
_ONE: Final = """SELECT type, key, position, length, operation FROM changes
WHERE stream = ? AND type = ? AND key = ? AND position > ? AND position < ?
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
)


class Standing(NamedTuple):
    """How far a stream is indexed, and what its last indexed message looked like."""

    position: int
    mark_bytes: int
    mark_crc: int
    first: int
    """Where the earliest event is that may be indexed: what was before it is trimmed away."""


class Entry(NamedTuple):
    """An entity of a state, where the event is that set its value, and its value if at hand."""

    type: str
    key: str
    position: int
    length: int
    value: bytes | None = None


class Page(NamedTuple):
    """Some entities of the state at a position."""

    at: int
    entities: list[Entry]
    more: bool


class Past(NamedTuple):
    """One step in the history of an entity; `operation` is RESET for a reset of the stream."""

    position: int
    length: int
    ordinal: int
    operation: int


class Wanted(NamedTuple):
    """Which entities, at which position; with `latest` a later one will do as well."""

    stream: int
    at: int
    latest: bool = False
    type: str | None = None
    key: str | None = None
    prefix: str = ""
    after: tuple[str, str] | None = None
    limit: int = 1000
    bytes_max: int = 1024 * 1024


class StateIndex:
    """One database. Calls come from one thread at a time."""

    def __init__(self, path: Path | None) -> None:
        """Without a path it lives in memory."""
        self._path = path
        self._files = Files()
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
            raise  # the disk, not what is on it
        except sqlite3.DatabaseError:
            self.recreate()

    def _connect(self, where: str) -> None:
        self._db = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
        # Not synced at every commit: after a power cut it is consistent, and at worst behind.
        self._db.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
            f"PRAGMA cache_size=-{CACHE_KIB}; PRAGMA wal_autocheckpoint=4000;"
        )
        if self._one("PRAGMA user_version") == (0,):
            self._db.executescript(_SCHEMA)

    def recreate(self) -> None:
        """Begin again with nothing: the database is of no use."""
        assert self._path is not None
        self._db.close()
        for suffix in ("", "-wal", "-shm"):
            self._files.remove(self._path.with_name(self._path.name + suffix))
        self._connect(str(self._path))

    def close(self) -> None:
        self._db.close()

    # -- keeping

    def streams(self, after: int = 0, limit: int = -1) -> list[tuple[int, str]]:
        """Every stream that has been indexed: id and path."""
        sql = "SELECT id, path FROM streams WHERE id > ? ORDER BY id LIMIT ?"
        return self._db.execute(sql, (after, limit)).fetchall()

    def standing(self, stream: int) -> Standing | None:
        sql = "SELECT position, mark_bytes, mark_crc, first FROM streams WHERE id = ?"
        row = self._one(sql, stream)
        return None if row is None else Standing(*row)

    def begin(self, stream: int, path: str, first: int = 0, ordinal: int = 0) -> None:
        """Take a stream up, or begin again with it, from the position of message `ordinal` on."""
        self.drop(stream)
        sql = "INSERT INTO streams VALUES (?, ?, ?, ?, 0, 0, 0, 0, ?)"
        self._db.execute(sql, (stream, path, first, ordinal, first))

    def prune(self, stream: int, first: int) -> None:
        """Forget events before a position, and what rests on them: the stream was trimmed."""
        with self._db:
            self._db.execute("BEGIN")
            for table in ("changes", "resets", "entities"):
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

    def apply(self, stream: int, start: int, wire: bytes) -> int:
        """Take in the messages of wire bytes that start at `start`; how many were no events."""
        row = self._one("SELECT position, ordinal, skip_until FROM streams WHERE id = ?", stream)
        if row is None or row[0] != start:
            raise sqlite3.OperationalError(f"stream {stream} is not indexed up to {start}")
        batch = _Batch(stream, start, row[1], row[2])
        batch.add_all(wire)
        mark = wire[wire.rfind(b"\n", 0, len(wire) - 1) + 1 :]
        with self._db:
            self._db.execute("BEGIN")
            # In the order of the table: neighbours are on the same page.
            batch.changes.sort()
            self._db.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", batch.changes)
            self._db.executemany("INSERT INTO resets VALUES (?, ?, ?, ?)", batch.resets)
            if batch.resets:
                self._db.execute("DELETE FROM entities WHERE stream = ?", (stream,))
            self._db.executemany(
                "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?)", batch.set_entities()
            )
            self._db.executemany(
                "DELETE FROM entities WHERE stream = ? AND type = ? AND key = ?",
                batch.gone_entities(),
            )
            self._db.execute(
                "UPDATE streams SET position = ?, ordinal = ?, skip_until = ?, "
                "skipped = skipped + ?, mark_bytes = ?, mark_crc = ? WHERE id = ?",
                (batch.position, batch.ordinal, batch.skip_until, batch.skipped,
                 len(mark), zlib.crc32(mark), stream),
            )  # fmt: skip
        return batch.skipped

    def skipped(self, stream: int) -> int:
        """How many messages of a stream were no events."""
        row = self._one("SELECT skipped FROM streams WHERE id = ?", stream)
        return 0 if row is None else int(row[0])

    # -- asking; None if the index is behind what is asked for

    def page(self, wanted: Wanted) -> Page | None:
        """Entities in the order of type and key."""
        standing = self.standing(wanted.stream)
        if standing is None or standing.position < wanted.at:
            return None
        if wanted.latest:
            wanted = wanted._replace(at=standing.position)
        reset = self._reset(wanted)
        if wanted.type is not None and wanted.key is not None:
            where = (wanted.stream, wanted.type, wanted.key, reset, wanted.at)
            row = self._one(_ONE, *where)
            found = [] if row is None or row[4] == DELETE else [Entry(*row[:4])]
            return Page(wanted.at, found, more=False)
        low = (wanted.type or "", wanted.prefix)
        if wanted.after is not None:
            low = max(low, (wanted.after[0], wanted.after[1] + "\0"))  # the next possible key
        if wanted.at == standing.position:
            cursor = self._db.execute(_LAST_PAGE, (wanted.stream, *low))
        else:
            cursor = self._db.execute(_PAGE, (wanted.stream, *low, reset, wanted.at))
        entities: list[Entry] = []
        size = 0
        try:
            for type, key, position, length, value, operation in cursor:
                if wanted.type is not None and type != wanted.type:
                    break
                if not key.startswith(wanted.prefix):
                    break
                if operation == DELETE:
                    continue
                size += length
                if entities and (len(entities) >= wanted.limit or size > wanted.bytes_max):
                    return Page(wanted.at, entities, more=True)
                entities.append(Entry(type, key, position, length, value))
        finally:
            cursor.close()
        return Page(wanted.at, entities, more=False)

    def history(self, wanted: Wanted, after: int) -> list[Past] | None:
        """What happened to an entity after a position, oldest first."""
        if not self._reaches(wanted):
            return None
        entity = (wanted.stream, wanted.type, wanted.key)
        rows = self._db.execute(_HISTORY, (*entity, after, wanted.at, wanted.limit + 1, RESET))
        return [Past(*row) for row in rows]

    def _reaches(self, wanted: Wanted) -> bool:
        standing = self.standing(wanted.stream)
        return standing is not None and standing.position >= wanted.at

    def _reset(self, wanted: Wanted) -> int:
        """Where the last reset before the wanted position is."""
        sql = "SELECT max(position) FROM resets WHERE stream = ? AND position < ?"
        row = self._one(sql, wanted.stream, wanted.at)
        return -1 if row is None or row[0] is None else int(row[0])

    def _one(self, sql: str, *values: object) -> Any:
        return self._db.execute(sql, values).fetchone()


class _Batch:
    """Rows for consecutive messages of a stream."""

    __slots__ = (
        "_entities",
        "_stream",
        "changes",
        "ordinal",
        "position",
        "resets",
        "skip_until",
        "skipped",
    )

    def __init__(self, stream: int, position: int, ordinal: int, skip_until: int) -> None:
        self._stream = stream
        self.position = position
        self.ordinal = ordinal
        self.skip_until = skip_until
        self.skipped = 0
        self.changes: list[tuple[object, ...]] = []
        self.resets: list[tuple[int, int, int, int]] = []
        # What is left of them at the end: position, length and value, or None if deleted.
        self._entities: dict[tuple[str, str], tuple[int, int, bytes | None] | None] = {}

    def set_entities(self) -> list[tuple[object, ...]]:
        return sorted(
            ((self._stream, *key, *last) for key, last in self._entities.items() if last),
            key=lambda row: row[1:3],
        )

    def gone_entities(self) -> list[tuple[object, ...]]:
        return [(self._stream, *key) for key, last in self._entities.items() if last is None]

    def add_all(self, wire: bytes) -> None:
        lines = wire.split(b",\n")[:-1]  # no line feed is part of a message
        array = unframe(wire)
        events: list[Any] | None = decode_exactly(array, strict_timestamp=False)
        if events is None:
            events = decode_loosely(array)
        if events is None:
            events = [_parsed(line) for line in lines]
        for line, event in zip(lines, events, strict=True):
            length = len(line) + 2
            if event is None:
                self.skipped += 1
            elif self.position >= self.skip_until:
                self._add(event, length)
            self.position += length
            self.ordinal += 1

    def _add(self, event: Any, length: int) -> None:
        place = (self.position, length, self.ordinal)
        if not isinstance(event, ControlEvent):
            operation = OPERATIONS.index(event.headers.operation)
            self.changes.append((self._stream, event.type, event.key, *place, operation))
            value = event._value
            kept = bytes(value) if len(value) <= VALUE_BYTES_MAX else None
            is_gone = operation == DELETE
            last = None if is_gone else (self.position, length, kept)
            self._entities[event.type, event.key] = last
        elif event.control == "reset":
            self.resets.append((self._stream, *place))
            self._entities.clear()
            self.skip_until = self._resumes_at(event.offset)

    def _resumes_at(self, offset: str | None) -> int:
        """A reset can name a place ahead of it: what lies between does not count."""
        try:
            parsed = parse_offset(offset or "")
        except BadRequest:
            return 0
        if isinstance(parsed, Offset) and parsed.generation == self._stream:
            return parsed.position
        return 0


def _parsed(line: bytes) -> Any:
    try:
        return parse(line, strict_timestamp=False)
    except InvalidEvent:
        return None
