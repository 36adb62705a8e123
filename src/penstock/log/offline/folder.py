"""A data folder opened for reading: nothing in it changes, and no server can start meanwhile.

A catalog with a WAL beside it is read from a copy: SQLite would otherwise merge the WAL in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import Damaged, StoreError
from penstock.log.disk import catalog_cold
from penstock.log.disk.catalog import CATALOG_ERRORS, Catalog, producer_checksum, settle
from penstock.log.disk.catalog_cold import Cold
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT_FILE, check_restored
from penstock.log.disk.segment import SegmentFolder, SegmentInfo
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.object_store import ObjectStore, open_store
from penstock.protocol.producer import ProducerState

_WRONG_PRODUCERS = """SELECT s.id, s.producers, count(p.stream_id) FROM streams s
LEFT JOIN producers p ON p.stream_id = s.id GROUP BY s.id
HAVING s.producers != count(p.stream_id)"""
_ALL_SEGMENTS = """SELECT s.id, s.path, base, length, first_ordinal, open_ordinal, open_time_us,
open_crc FROM segments JOIN streams s ON s.id = stream_id ORDER BY stream_id, base"""
_STRAYS = """SELECT 'segments', stream_id FROM segments WHERE stream_id NOT IN
(SELECT id FROM streams) UNION SELECT 'producers', stream_id FROM producers
WHERE stream_id NOT IN (SELECT id FROM streams) UNION SELECT 'cold', stream_id FROM cold
WHERE (stream_id, base) NOT IN (SELECT stream_id, base FROM segments)"""


class CatalogView(Catalog):
    """A catalog with queries that a server does not need."""

    def largest(self, limit: int) -> list[int]:
        """Return the ids of the streams with the most bytes."""
        rows = self._reader.execute(
            "SELECT id FROM streams ORDER BY tail DESC, id LIMIT ?", (limit,)
        )
        return [stream_id for (stream_id,) in rows]

    def messages(self) -> int:
        (total,) = self._reader.execute(
            "SELECT total(count - max(earliest_ordinal, ifnull(fork_count, 0))) FROM streams"
        ).fetchone()
        return int(total)

    def producers(self, stream_id: int, limit: int) -> dict[str, ProducerState]:
        rows = self._reader.execute(
            "SELECT producer_id, epoch, seq FROM producers WHERE stream_id = ? LIMIT ?",
            (stream_id, limit),
        )
        return {name: ProducerState(epoch, seq) for name, epoch, seq in rows}

    def has_segment(self, stream_id: int, base: int) -> bool:
        rows = self._reader.execute(
            "SELECT 1 FROM segments WHERE stream_id = ? AND base = ?", (stream_id, base)
        )
        return rows.fetchone() is not None

    def all_segments(self) -> Iterator[tuple[int, str, SegmentInfo]]:
        """Yield (stream id, path, segment), in the order of streams and positions."""
        rows = self._reader.execute(_ALL_SEGMENTS)
        for stream_id, path, *values in rows:
            yield stream_id, path, SegmentInfo(*values)

    def segment_totals(self) -> tuple[int, int]:
        """Return the number of segments, and of their bytes."""
        count, size = self._reader.execute(
            "SELECT count(*), total(length) FROM segments"
        ).fetchone()
        return count, int(size)

    def damaged_cold(self) -> Iterator[tuple[int, int]]:
        """Yield (stream id, base) of cold segments whose row does not match its checksum."""
        for row in self._reader.execute(catalog_cold.ALL):
            if not catalog_cold.is_sound(row):
                yield row[0], row[1]

    def objects(self) -> set[str]:
        """Return the names of all objects that the catalog knows."""
        rows = self._reader.execute("SELECT object FROM cold UNION SELECT object FROM doomed")
        return {name for (name,) in rows}

    def wrong_producers(self) -> Iterator[tuple[int, int, int]]:
        """Yield (stream id, producers by the row, producers in the table) where they differ."""
        yield from self._reader.execute(_WRONG_PRODUCERS)

    def damaged_producers(self) -> Iterator[tuple[int, str]]:
        """Yield (stream id, producer id) of rows that do not match their checksum."""
        rows = self._reader.execute("SELECT stream_id, producer_id, epoch, seq, crc FROM producers")
        for row in rows:
            if producer_checksum(*row[:4]) != row[4]:
                yield row[0], row[1]

    def strays(self) -> Iterator[tuple[str, int]]:
        """Yield (table, stream id) of rows that belong to no stream."""
        yield from self._reader.execute(_STRAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The segments of a data folder, whether a server uses it or not."""

    files: Files
    root: Path
    segments: SegmentFolder
    cold: Callable[[int, int], Cold | None]
    """Where the object store has a segment, by (stream id, base)."""
    objects: ObjectStore | None = None
    """The store of cold segments, if they are to be read."""

    def name(self, path: Path) -> str:
        """Return the name of a file in a report."""
        return path.relative_to(self.root).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder(SegmentFiles):
    catalog: CatalogView


@contextmanager
def open_folder(root: Path, files: Files | None = None, *, cold: bool = False) -> Iterator[Folder]:
    """Open a folder, with `cold` also the store of its cold segments; StoreLocked if a server uses
    it, StoreError if it is no data folder."""
    files = files or Files()
    files.check_system()
    check_restored(files, root)
    marks = (FORMAT_FILE, CATALOG_FILE, "journal")
    if not any(files.exists(root / mark) for mark in marks):
        raise StoreError(f"{root} is not a Penstock data folder: it has no {FORMAT_FILE} file.")
    with ExitStack() as cleanup:
        cleanup.callback(files.lock_shared(root / "LOCK").close)
        catalog = cleanup.enter_context(_catalog(files, root / CATALOG_FILE))
        objects = _objects(catalog) if cold else None
        yield Folder(
            files=files,
            root=root,
            segments=SegmentFolder(root / "segments"),
            cold=catalog.cold,
            objects=objects,
            catalog=catalog,
        )


def _objects(catalog: CatalogView) -> ObjectStore | None:
    try:
        url = catalog.meta().get(TIER_URL)
    except (Damaged, *CATALOG_ERRORS):
        return None  # the first query fails with it
    return open_store(str(url)) if url else None


@contextmanager
def _catalog(files: Files, path: Path) -> Iterator[CatalogView]:
    beside = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    parts = [part for part in (path, *beside) if files.exists(part)]
    if parts == [path] and file_bytes(files, path) > 0:
        with closing(CatalogView(path, read_only=True)) as catalog:
            if _is_usable(catalog):
                yield catalog
                return
    with files.copied(parts) as scratch:
        copy = scratch / path.name
        try:
            settle(copy)
        except CATALOG_ERRORS:
            pass  # the first query fails with it
        with closing(CatalogView(copy, read_only=True)) as catalog:
            yield catalog


def _is_usable(catalog: CatalogView) -> bool:
    """Whether a catalog can be read in place. One of an earlier version is read from a copy, to
    which the new columns are added."""
    try:
        return catalog.is_current()
    except CATALOG_ERRORS:
        return True  # the first query fails with the error


def file_bytes(files: Files, path: Path) -> int:
    with closing(files.open_read(path)) as file:
        return file.size()
