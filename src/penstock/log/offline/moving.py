"""Moves the streams of stopped folders into new ones: rows of catalogs are copied, segments are
linked, ids and positions stay. Objects of cold segments stay where they are, under their names.

Knows folders and catalogs; which stream goes where is decided by a function that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged, StoreError
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.catalog_cold import ColdChanges
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT_COLD, HAS_MARK, RESTORED, set_format
from penstock.log.disk.segment import BLOCK_BYTES, ColdSegment, SegmentFolder
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.log.offline.folder import CatalogView
from penstock.protocol.producer import ProducerState

ROWS_AT_ONCE: Final = 2000
PRODUCERS_MAX: Final = 2**53
DOOMED_MAX: Final = 2**53


class Moved(NamedTuple):
    """What was moved: rows of catalogs, streams with their own bytes, and the paths of forks with
    their places."""

    rows: int
    streams: int
    bytes: int
    forks: dict[str, int]
    next_id: int


class _Source(NamedTuple):
    catalog: CatalogView
    segments: SegmentFolder
    cold: dict[tuple[int, int], ColdSegment]
    """Segments that are objects, by (stream id, base)."""


Place = Callable[[str], int]


def is_clean(folder: Path) -> bool:
    """Whether a folder was stopped in order: its catalog has all that its journal has."""
    with closing(CatalogView(folder / CATALOG_FILE, read_only=True)) as catalog:
        return bool(catalog.meta().get("clean"))


def count_streams(folder: Path, *, leaves: Callable[[str], bool]) -> int:
    """Return the number of streams in the catalog of a folder, but for those that are left."""
    with closing(CatalogView(folder / CATALOG_FILE, read_only=True)) as catalog:
        return sum(not leaves(row.path) for row in _rows(catalog))


def move(
    files: Files,
    sources: Sequence[Path],
    targets: Sequence[Path],
    place: Place,
    *,
    leaves: Callable[[str], bool],
) -> Moved:
    """Copy all streams of `sources` into new catalogs of `targets`, but for those that are left.

    A fork goes where the first of its sources goes, by that one's path.
    """
    with ExitStack() as cleanup:
        opened = [
            _source(
                cleanup.enter_context(closing(CatalogView(each / CATALOG_FILE, read_only=True))),
                each,
            )
            for each in sources
        ]
        metas = [each.catalog.meta() for each in opened]
        tier_url = _tier_url(opened)
        writers = [_Target(cleanup, files, each, tier_url) for each in targets]
        moving = _Moving(writers, place, leaves)
        for source in opened:
            moving.run(source)
            # Somebody has to remove them: it does not matter who.
            writers[0].doomed += source.catalog.doomed(DOOMED_MAX)
        next_id = max(int(meta.get("next_id", 1)) for meta in metas)
        restored = max(int(meta.get(RESTORED, 0)) for meta in metas)
        for writer in writers:
            writer.finish(next_id, restored)
        return Moved(moving.rows, moving.streams, moving.bytes, moving.forks, next_id)


class _Moving:
    def __init__(self, writers: list[_Target], place: Place, leaves: Callable[[str], bool]) -> None:
        self._writers = writers
        self._place = place
        self._leaves = leaves
        self.rows = 0
        self.streams = 0
        self.bytes = 0
        self.forks: dict[str, int] = {}
        self._roots: dict[int, str] = {}

    def run(self, source: _Source) -> None:
        for row in _rows(source.catalog):
            if self._leaves(row.path):
                continue
            at = self._place(self._root(source.catalog, row))
            if row.fork is not None:
                self.forks[row.path] = at
            self.rows += 1
            self.streams += not row.soft_deleted
            self.bytes += row.own_bytes
            producers = source.catalog.producers(row.id, PRODUCERS_MAX)
            self._writers[at].add(row, producers, source)

    def _root(self, catalog: Catalog, row: Row) -> str:
        """Return the path of the first stream that a stream reads from."""
        chain = []
        each: Row | None = row
        path = row.path
        while each is not None:
            if each.id in self._roots:
                path = self._roots[each.id]
                break
            chain.append(each.id)
            path = each.path
            each = None if each.fork is None else catalog.by_id(each.fork.source_id)
        if row.fork is not None or len(chain) > 1:
            self._roots.update(dict.fromkeys(chain, path))
        return path


class _Target:
    """One new folder: its catalog is written in pieces."""

    def __init__(self, cleanup: ExitStack, files: Files, root: Path, tier_url: str) -> None:
        self._files = files
        self._root = root
        self._tier_url = tier_url
        self._cold: list[ColdSegment] = []
        self.doomed: list[str] = []
        """Objects that no segment needs, and that are still to be removed."""
        self._segments = SegmentFolder(root / "segments")
        files.make_folder(root / "journal")
        files.make_folder(self._segments.folder)
        self._catalog = cleanup.enter_context(closing(Catalog(root / CATALOG_FILE)))
        self._rows: list[Row] = []
        self._producers: list[tuple[int, str, ProducerState]] = []
        self._last_lsn = 0

    def add(self, row: Row, producers: dict[str, ProducerState], source: _Source) -> None:
        for info in row.segments:
            has_index = info.length >= BLOCK_BYTES
            cold = source.cold.get((row.id, info.base))
            if cold is not None:
                self._cold.append(cold)
            self._link(
                source.segments, row.id, info.base, has_data=cold is None, has_index=has_index
            )
        self._rows.append(row)
        self._producers += [(row.id, name, state) for name, state in producers.items()]
        self._last_lsn = max(self._last_lsn, row.applied_lsn)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._write({})

    def _link(
        self, segments: SegmentFolder, id: int, base: int, *, has_data: bool, has_index: bool
    ) -> None:
        self._files.make_folder(self._segments.shard(id))
        if has_data:
            self._files.link(segments.data_path(id, base), self._segments.data_path(id, base))
        index = segments.index_path(id, base)
        if has_index or self._files.exists(index):
            self._files.link(index, self._segments.index_path(id, base))

    def _write(self, meta: dict[str, int | str]) -> None:
        segments = [(row.id, info) for row in self._rows for info in row.segments]
        tiered = None
        if self._cold or self.doomed:
            # From now on it is no folder for a Penstock that knows no cold segments.
            set_format(self._files, self._root, FORMAT_COLD)
            meta = {**meta, TIER_URL: self._tier_url}
            tiered = ColdChanges(cold=self._cold, doomed=self.doomed)
        self._catalog.commit(
            Changes(self._rows, segments, self._producers, [], meta, tiered=tiered)
        )
        self._rows, self._producers, self._cold, self.doomed = [], [], [], []

    def finish(self, next_id: int, restored: int) -> None:
        self._write(
            {
                "checkpoint_lsn": self._last_lsn,
                "next_id": next_id,
                "clean": 1,
                HAS_MARK: 0,
                RESTORED: restored,
            }
        )


def _source(catalog: CatalogView, folder: Path) -> _Source:
    damaged = next(catalog.damaged_cold(), None)
    if damaged is not None:
        raise StoreDamaged(
            f"The catalog row of the cold segment of stream {damaged[0]} at {damaged[1]} does not "
            "match its checksum. Run `penstock verify` and restore from a backup."
        )
    cold = {(each.stream_id, each.base): each for each in catalog.cold_segments()}
    return _Source(catalog, SegmentFolder(folder / "segments"), cold)


def _tier_url(sources: Sequence[_Source]) -> str:
    """Return where the cold segments of all folders are."""
    urls = {
        str(each.catalog.meta().get(TIER_URL))
        for each in sources
        if each.cold or each.catalog.doomed(1)
    }
    if len(urls) > 1:
        raise StoreError(
            f"The cold segments are in several places ({', '.join(sorted(urls))}). Start the "
            "server once with the tier_url that has all of them. Nothing was changed."
        )
    return urls.pop() if urls else ""


def _rows(catalog: Catalog) -> Iterator[Row]:
    for stream_id in list(catalog.ids()):
        row = catalog.by_id(stream_id)
        assert row is not None
        yield row
