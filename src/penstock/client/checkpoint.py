"""Checkpoints: the offset that a consumer has reached, so that `follow` resumes after a restart."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.file_sync import sync_data, sync_folder


@runtime_checkable
class Checkpoint(Protocol):
    """Stores an offset under a key. `follow` uses the stream's URL as the key."""

    def load(self, key: str) -> str | None:
        """Return the offset that was saved last, or None."""

    def save(self, key: str, offset: str) -> None:
        """Save the offset; it must be durable when this returns."""


class MemoryCheckpoint:
    """Offsets in memory, which last as long as the process."""

    def __init__(self) -> None:
        self._offsets: dict[str, str] = {}

    def load(self, key: str) -> str | None:
        return self._offsets.get(key)

    def save(self, key: str, offset: str) -> None:
        self._offsets[key] = offset


class FileCheckpoint:
    """Offsets in a small JSON file of one process, replaced as a whole and synced.

    A crash leaves the old file or the new one. Threads may share it. Each process needs its own
    file, or use a SqliteCheckpoint.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()

    def load(self, key: str) -> str | None:
        with self._lock:
            return self._read().get(key)

    def save(self, key: str, offset: str) -> None:
        with self._lock:
            offsets = self._read()
            offsets[key] = offset
            self._replace(json.dumps(offsets, indent=1, sort_keys=True).encode())

    def _read(self) -> dict[str, str]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            offsets = json.loads(content)
        except ValueError:
            offsets = None
        if not isinstance(offsets, dict):
            raise ValueError(f"{self._path} is no checkpoint. Remove it, or use another file.")
        return offsets

    def _replace(self, content: bytes) -> None:
        folder = self._path.parent
        try:
            handle, name = tempfile.mkstemp(prefix=self._path.name + ".", dir=folder)
        except OSError as error:  # it names the temporary file
            raise type(error)(error.errno, error.strerror, str(self._path)) from None
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                sync_data(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise
        sync_folder(folder)  # the rename is durable only when the folder is synced


class SqliteCheckpoint:
    """Offsets in a SQLite file, which any number of processes may share.

    Each call opens a connection, so that any thread may make it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with self._connection() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS penstock_checkpoint "
                "(key TEXT PRIMARY KEY, value TEXT NOT NULL)"
            )

    def load(self, key: str) -> str | None:
        with self._connection() as connection:
            row = connection.execute(
                "SELECT value FROM penstock_checkpoint WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else str(row[0])

    def save(self, key: str, offset: str) -> None:
        with self._connection() as connection:
            connection.execute(
                "INSERT INTO penstock_checkpoint VALUES (?, ?) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, offset),
            )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one transaction, which is committed at the end."""
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")  # for macOS
            yield connection
