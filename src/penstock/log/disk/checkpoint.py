"""Moves data from the journal to segments and catalog, so that the journal can be shortened.

The event loop describes the work as a plan of immutable values; `run` does it on the checkpoint
thread: segments and indexes written and synced, one catalog transaction, old journal files
released, files of deleted streams removed. Nothing is trusted before the transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from penstock.log.disk.catalog import Catalog, CatalogError, Changes, is_catalog_full
from penstock.log.disk.catalog_rows import Row, row_from_stream
from penstock.log.disk.catalog_snapshot import CatalogSnapshot
from penstock.log.disk.files import File, Files, is_disk_full
from penstock.log.disk.journal import JournalBroken, JournalWriter
from penstock.log.disk.segment import SegmentFolder, SegmentInfo, SegmentWriter
from penstock.log.memory_tail import Chunk
from penstock.log.stream import Stream
from penstock.protocol.producer import ProducerState

T = TypeVar("T")

SYNC_SINGLY_MAX = 64
"""With more files than this, one `syncfs` is cheaper than a sync of each."""


class Abandoned(Exception):
    """The checkpoint was given up, because the server has to stop. The old one is in force."""


class StreamPlan(NamedTuple):
    """One stream at the moment of the plan."""

    row: Row
    dropped: tuple[SegmentInfo, ...]
    """Segments of which nothing is retained any more; `row` does not have them."""
    chunks: list[Chunk]
    count_lines: bool
    producers: list[tuple[str, ProducerState]]


class Plan(NamedTuple):
    streams: list[StreamPlan]
    deleted: list[tuple[int, tuple[SegmentInfo, ...]]]
    meta: dict[str, int | str]
    release_lsn: int
    sweep: bool


class Result(NamedTuple):
    """`uncleared` is the error that kept old files from being removed; the checkpoint is in
    force."""

    segments: dict[int, tuple[SegmentInfo, ...]]
    uncleared: OSError | None


def plan_stream(stream: Stream, *, inline_bytes_max: int) -> StreamPlan:
    """Plan one stream by its durable half. Its last chunk is sealed: later bytes start a new
    one."""
    inline = None
    chunks: list[Chunk] = []
    first = stream.keep_from
    segments = tuple([info for info in stream.segments if info.end > first])
    if not stream.segments and stream.tail - first <= inline_bytes_max:
        inline = stream.memory.read(first, stream.tail) if stream.tail > first else b""
    else:
        chunks = [chunk for chunk in stream.memory.chunks if chunk.end > first]
        if chunks:
            chunks[-1].sealed = True
        elif not segments:  # trimmed up to the tail
            inline = b""
    producers = [(name, stream.producers[name]) for name in stream.dirty_producers]
    row = row_from_stream(stream, inline, segments)
    dropped = stream.segments[: len(stream.segments) - len(segments)]
    return StreamPlan(row, dropped, chunks, stream.is_json, producers)


class Checkpointer:
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError, CatalogError, JournalBroken)

    def __init__(
        self,
        files: Files,
        root: Path,
        folder: SegmentFolder,
        catalog: Catalog,
        journal: JournalWriter,
        *,
        segment_bytes_max: int,
    ) -> None:
        self._files = files
        self._root = root
        self._folder = folder
        self._catalog = catalog
        self._journal = journal
        self._segment_bytes_max = segment_bytes_max
        self._abandoned = threading.Event()
        self._is_held = False
        self._held: list[Path] = []

    def passes(self, error: Exception) -> bool:
        """Whether the disk was full: room may be made."""
        return is_disk_full(error) if isinstance(error, OSError) else is_catalog_full(error)

    def abandon(self) -> None:
        """Let `run` raise Abandoned as soon as it can. Called from the event loop."""
        self._abandoned.set()

    def _going_on(self, items: list[T]) -> Iterator[T]:
        """Yield the items, unless the checkpoint is abandoned."""
        for item in items:
            if self._abandoned.is_set():
                raise Abandoned
            yield item

    def run(self, plan: Plan) -> Result:
        """Run a checkpoint. After OSError or sqlite3.Error the old one is in force, and it can be
        run again."""
        segments = self._write_segments(plan.streams)
        changed = [
            (stream_id, info)
            for item in plan.streams
            for stream_id, info in _new_segments(item.row, segments.get(item.row.id, ()))
        ]
        producers = [
            (item.row.id, name, state) for item in plan.streams for name, state in item.producers
        ]
        # A row must not be ahead of the journal: its LSNs would be used again.
        self._journal.sync()
        self._catalog.commit(
            Changes(
                [
                    item.row._replace(segments=segments.get(item.row.id, item.row.segments))
                    for item in plan.streams
                ],
                changed,
                producers,
                [stream_id for stream_id, _ in plan.deleted],
                plan.meta,
                [(item.row.id, info.base) for item in plan.streams for info in item.dropped],
            )
        )
        # The catalog has the new segments from here on. An error would make the next run write them
        # again, over themselves.
        try:
            self._clear(plan)
        except OSError as error:
            return Result(segments, error)
        return Result(segments, None)

    def make_room(self) -> None:
        """Take the space of the next journal file; OSError if the disk is still full."""
        self._journal.make_spare()

    def snapshot(self) -> CatalogSnapshot:
        """Return the catalog as the last checkpoint has left it."""
        return CatalogSnapshot(self._catalog.path)

    @property
    def is_held(self) -> bool:
        """Whether somebody copies segments."""
        return self._is_held

    def hold(self) -> None:
        """Leave the files of segments where they are until `release`: somebody copies them. Called
        while no checkpoint runs, as `release` is."""
        self._is_held = True

    def release(self) -> None:
        """Remove what was held back, as far as possible: a sweep finds the rest."""
        self._is_held = False
        held, self._held = self._held, []
        for path in held:
            self._files.remove(path)

    def _clear(self, plan: Plan) -> None:
        """Remove files that are not needed any more."""
        self._journal.release(plan.release_lsn)
        trimmed = [(item.row.id, item.dropped) for item in plan.streams if item.dropped]
        for stream_id, infos in (*plan.deleted, *trimmed):
            for info in infos:
                self._remove(self._folder.data_path(stream_id, info.base))
                self._remove(self._folder.index_path(stream_id, info.base))
        if plan.sweep:
            self._sweep()

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files that no row names as files any more. Checkpoint thread only."""
        for path in paths:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        if self._is_held:
            self._held.append(path)
        else:
            self._files.remove(path)

    def _write_segments(self, plans: list[StreamPlan]) -> dict[int, tuple[SegmentInfo, ...]]:
        touched: list[File] = []
        folders: set[Path] = set()
        result: dict[int, tuple[SegmentInfo, ...]] = {}
        count = 0
        syncs_all = self._files.can_sync_all()
        try:
            for item in self._going_on(plans):
                if not item.chunks:
                    continue
                writer = SegmentWriter(
                    self._files,
                    self._folder,
                    item.row.id,
                    segment_bytes_max=self._segment_bytes_max,
                )
                try:
                    result[item.row.id] = writer.extend(
                        item.row.segments,
                        self._going_on(item.chunks),
                        count_lines=item.count_lines,
                    )
                finally:
                    touched += writer.touched
                    folders |= writer.new_folders
                count += len(writer.touched)
                if len(touched) > SYNC_SINGLY_MAX:
                    # Too many to hold open: one sync of everything will cover them.
                    while touched:
                        with closing(touched.pop()) as file:
                            if not syncs_all:
                                file.sync_data()
            if syncs_all and count > SYNC_SINGLY_MAX:
                self._files.sync_all(self._root)
            else:
                for file in self._going_on(touched):
                    file.sync_data()
                for folder in sorted(folders):
                    self._files.sync_folder(folder)
                if folders:
                    self._files.sync_folder(self._folder.folder)
        finally:
            while touched:
                touched.pop().close()
        return result

    def _sweep(self) -> None:
        """Remove segment files that no row names, and those of cold segments: a crash between write
        and commit, or commit and removal, leaves them."""
        existing = self._catalog.segment_names()
        cold = {(each.stream_id, each.base) for each in self._catalog.cold_segments()}
        for shard in self._files.list_folder(self._folder.folder):
            for name in self._files.list_folder(self._folder.folder / shard):
                parsed = self._folder.parse_name(name)
                if parsed is None:
                    continue
                if parsed not in existing or (parsed in cold and name.endswith(".segment")):
                    self._remove(self._folder.folder / shard / name)


def _new_segments(row: Row, segments: tuple[SegmentInfo, ...]) -> list[tuple[int, SegmentInfo]]:
    return [(row.id, info) for info in segments if info not in row.segments]
