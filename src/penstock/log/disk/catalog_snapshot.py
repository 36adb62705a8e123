"""The catalog at one moment, for backups and scrubs that read it beside the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.log.disk import catalog_cold
from penstock.log.disk.catalog import (
    ROWS,
    connect,
    integrity_faults,
    is_row_sound,
    producer_checksum,
    segments_of,
)
from penstock.log.disk.catalog_cold import Cold
from penstock.log.disk.catalog_rows import PRODUCER_TOTAL, WIDTH
from penstock.log.disk.segment import SegmentInfo

COPY_PAGES = 256
CHECK_OPERATIONS = 100_000
"""Operations of SQLite between two looks at whether a check goes on."""


class CheckedStream(NamedTuple):
    """A stream whose rows were compared with their checksums."""

    id: int
    path: str
    content_type: str
    segments: tuple[SegmentInfo, ...]
    faults: list[str]


class CatalogSnapshot:
    """The catalog at one moment: a read transaction, which blocks no writer and is blocked by none.
    Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(f"{path.absolute().as_uri()}?mode=rw")
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM meta").fetchone()  # it begins with the first read

    def copy_to(self, path: Path, on_step: Callable[[], None]) -> None:
        """Write the database to a new file; `on_step` is called now and then, and may raise."""
        with closing(connect(path.absolute().as_uri() + "?mode=rwc")) as target:
            target.execute("PRAGMA synchronous=OFF")  # read once, and removed
            self._connection.backup(
                target, pages=COPY_PAGES, progress=lambda *_: on_step(), sleep=0
            )

    def segment_bytes(self) -> int:
        (size,) = self._connection.execute("SELECT total(length) FROM segments").fetchone()
        return int(size)

    def has_segment(self, stream_id: int, base: int) -> bool:
        query = "SELECT 1 FROM segments WHERE stream_id = ? AND base = ?"
        return self._connection.execute(query, (stream_id, base)).fetchone() is not None

    def cold(self, stream_id: int, base: int) -> Cold | None:
        """Return where the object store has a segment, if its file is gone."""
        row = self._connection.execute(catalog_cold.ONE, (stream_id, base)).fetchone()
        return None if row is None else catalog_cold.decode_one(row)

    def integrity(self, on_step: Callable[[], bool]) -> list[str]:
        """Return what is wrong with the database; `on_step` is called now and then, and ends the
        check with a CatalogError if it returns True."""
        self._connection.set_progress_handler(on_step, CHECK_OPERATIONS)
        try:
            return integrity_faults(self._connection)
        finally:
            self._connection.set_progress_handler(None, 0)

    def check_streams(self, after_id: int, limit: int) -> list[CheckedStream]:
        """Return the streams after an id, in that order, with what is wrong with their rows."""
        rows = self._connection.execute(
            f"{ROWS} WHERE id > ? ORDER BY id LIMIT ?", (after_id, limit)
        ).fetchall()
        return [self._checked(row) for row in rows]

    def _checked(self, row: Sequence[Any]) -> CheckedStream:
        stream_id, path, content_type = row[:3]
        segments = segments_of(self._connection, stream_id) if row[WIDTH + 1] is None else ()
        faults = []
        if not is_row_sound(row, segments):
            faults.append("the row does not match its checksum")
        producers = self._connection.execute(
            "SELECT stream_id, producer_id, epoch, seq, crc FROM producers WHERE stream_id = ?",
            (stream_id,),
        ).fetchall()
        if len(producers) != row[PRODUCER_TOTAL] or any(
            producer_checksum(*each[:4]) != each[4] for each in producers
        ):
            faults.append("its producers are not as they were written")
        return CheckedStream(stream_id, str(path), str(content_type), segments, faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
