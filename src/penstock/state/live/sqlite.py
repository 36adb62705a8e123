"""A live state in a SQLite file: entities and position are committed in one transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import StoreLocked, StoreTooNew
from penstock.state.live.backends import Entities, Indexes
from penstock.state.live.plan import Entity, Position
from penstock.state.lookup import tokens

FORMAT: Final = 2
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), stream TEXT NOT NULL, offset TEXT NOT NULL,
    in_snapshot INTEGER NOT NULL, location TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS entity (
    type TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (type, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (
    type TEXT NOT NULL, field TEXT NOT NULL, PRIMARY KEY (type, field)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lookup (
    type TEXT NOT NULL, field TEXT NOT NULL, token BLOB NOT NULL, key TEXT NOT NULL,
    PRIMARY KEY (type, field, token, key)
) WITHOUT ROWID;
"""
_LOCATION: Final = "ALTER TABLE position ADD COLUMN location TEXT NOT NULL DEFAULT '';"
_SET: Final = (
    "INSERT INTO entity VALUES (?, ?, ?) "
    "ON CONFLICT (type, key) DO UPDATE SET value = excluded.value"
)


class SqliteBackend:
    """Entities in a file, which belongs to one stream and one live state at a time.

    The file remembers its stream by `name`, by default the stream's URL: pass a name if the URL of
    the server may change.
    """

    blocking = True

    def __init__(self, path: str | Path, *, name: str | None = None) -> None:
        self._path = str(path)
        self._name = name
        self._indexes: Indexes = {}
        self._reading = threading.Lock()
        self._writer = self._connect()
        try:
            self._prepare()
            # Readers have their own connection, so that they never wait for a commit.
            self._reader = self._connect()
        except BaseException:
            self._writer.close()
            raise

    def open(self, stream: str, indexes: Indexes) -> Position:
        url, mark, selection = stream.partition("#")
        name = (self._name or url) + mark + selection
        with self._writer as connection:
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute(
                "SELECT stream, offset, in_snapshot, location FROM position"
            ).fetchone()
            if row is None:
                row = (name, Position().offset, 0, "")
                connection.execute("INSERT INTO position VALUES (1, ?, ?, ?, ?)", row)
            elif row[0] != name and row[3] and url.endswith(row[3]):
                # A reset had redirected the state to this very stream, which is now named directly.
                row = (name, row[1], row[2], "")
                connection.execute("UPDATE position SET stream = ?, location = ''", (name,))
            elif row[0] != name:
                raise ValueError(
                    f"{self._path} holds the state of {row[0]}, not of {name}: use another file."
                )
            self._reindex(connection, indexes)
        return Position(row[1], bool(row[2]), row[3])

    def commit(
        self,
        before: Position,
        after: Position,
        writes: Mapping[Entity, bytes | None],
        *,
        clear: bool,
    ) -> None:
        with self._writer as connection:
            connection.execute("BEGIN IMMEDIATE")
            moved = connection.execute(
                "UPDATE position SET offset = ?, in_snapshot = ?, location = ? "
                "WHERE offset = ? AND location = ?",
                (*after, before.offset, before.location),
            )
            if moved.rowcount != 1:
                raise StoreLocked(
                    f"{self._path} is in use by another live state: use a file for each."
                )
            if clear:
                connection.execute("DELETE FROM entity")
                connection.execute("DELETE FROM lookup")
            if self._indexes:
                self._index(connection, writes)
            removed = [entity for entity, value in writes.items() if value is None]
            rows = [(*entity, value) for entity, value in writes.items() if value is not None]
            # In the order of the table, where neighbours are on the same page.
            rows.sort()
            connection.executemany("DELETE FROM entity WHERE type = ? AND key = ?", removed)
            connection.executemany(_SET, rows)

    def get(self, type: str, key: str) -> bytes | None:
        rows = self._read("SELECT value FROM entity WHERE type = ? AND key = ?", type, key)
        return rows[0][0] if rows else None

    def items(self, type: str) -> Entities:
        return self._read("SELECT key, value FROM entity WHERE type = ?", type)

    def find(self, type: str, field: str, token: bytes) -> Entities:
        return self._read(
            "SELECT key, value FROM lookup JOIN entity USING (type, key) "
            "WHERE lookup.type = ? AND field = ? AND token = ?",
            type, field, token,
        )  # fmt: skip

    def count(self, type: str) -> int:
        count: int = self._read("SELECT count(*) FROM entity WHERE type = ?", type)[0][0]
        return count

    def types(self) -> list[str]:
        return [row[0] for row in self._read("SELECT DISTINCT type FROM entity")]

    def close(self) -> None:
        with self._reading:
            self._reader.close()
            self._writer.close()

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=30, isolation_level=None, check_same_thread=False
        )

    def _prepare(self) -> None:
        connection = self._writer
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise StoreTooNew(f"{self._path} has format {version}; this version reads {FORMAT}.")
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last commits with their positions: they are read again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")  # for macOS
        older = _LOCATION if version == 1 else ""
        connection.executescript(
            f"BEGIN; {_TABLES} {older} PRAGMA user_version = {FORMAT}; COMMIT;"
        )

    def _reindex(self, connection: sqlite3.Connection, indexes: Indexes) -> None:
        """Drop the indexes that are not requested any more, and fill the new ones."""
        self._indexes = {type: tuple(fields) for type, fields in indexes.items() if fields}
        requested = {(type, field) for type, fields in self._indexes.items() for field in fields}
        present = set(connection.execute("SELECT type, field FROM indexed"))
        for table in ("indexed", "lookup"):
            connection.executemany(
                f"DELETE FROM {table} WHERE type = ? AND field = ?",  # noqa: S608 - ours
                present - requested,
            )
        for type, field in requested - present:
            connection.execute("INSERT INTO indexed VALUES (?, ?)", (type, field))
            entities = connection.execute("SELECT key, value FROM entity WHERE type = ?", (type,))
            connection.executemany(
                "INSERT INTO lookup VALUES (?, ?, ?, ?)",
                [
                    (type, field, token, key)
                    for key, value in entities.fetchall()
                    for _, token in tokens(value, (field,))
                ],
            )

    def _index(self, connection: sqlite3.Connection, writes: Mapping[Entity, bytes | None]) -> None:
        old: list[tuple[str, str, bytes, str]] = []
        new: list[tuple[str, str, bytes, str]] = []
        for (type, key), value in writes.items():
            fields = self._indexes.get(type)
            if fields is None:
                continue
            row = connection.execute(
                "SELECT value FROM entity WHERE type = ? AND key = ?", (type, key)
            ).fetchone()
            if row is not None:
                old.extend((type, field, token, key) for field, token in tokens(row[0], fields))
            if value is not None:
                new.extend((type, field, token, key) for field, token in tokens(value, fields))
        connection.executemany(
            "DELETE FROM lookup WHERE type = ? AND field = ? AND token = ? AND key = ?", old
        )
        connection.executemany("INSERT INTO lookup VALUES (?, ?, ?, ?)", new)
