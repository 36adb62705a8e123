"""`penstock cluster export`: copies the streams of a stopped cluster into a new data folder, with
ids and positions kept: the way back from `penstock cluster import`.

The folder appears under its name when every byte of it was checked. The cluster stays as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.clock import SYSTEM_CLOCK
from penstock.config.settings import Settings
from penstock.errors import (
    ClusterRefused,
    ClusterUnavailable,
    PenstockError,
    StoreDamaged,
    StoreError,
)
from penstock.log.cluster.catalog import fetch_page, fetch_producers, progress
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session
from penstock.log.cluster.extents import ExtentCache
from penstock.log.cluster.status import read_status
from penstock.log.cluster.store import ClusterStore
from penstock.log.disk import segment
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import HAS_MARK, RESTORED, check_format
from penstock.log.disk.segment import (
    ENTRY,
    IndexEntry,
    SegmentFolder,
    SegmentInfo,
    SegmentWriter,
    decode_entry,
)
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.mutations import Mutation
from penstock.log.offline.blocks import Entry, Read, chunks_of
from penstock.log.offline.cluster_import import ROWS_AT_ONCE, Copied
from penstock.log.offline.verify import verify
from penstock.protocol.producer import ProducerState

BUILDING: Final = ".exporting"
"""The ending of the folder's name until it is whole."""
NODE: Final = ".node"

Tell = Callable[[str], None]


async def export_folder(
    root: Path, settings: Settings, *, tell: Tell = lambda step: None
) -> Copied:
    """Copy the cluster that the settings name into a folder that is not there yet.

    ClusterRefused while a node lives: the export owns the streams meanwhile.
    """
    files = Files()
    files.check_system()
    if files.exists(root) and files.list_folder(root):
        raise StoreError(f"{root} is not empty. Export into a folder that does not exist yet.")
    status = await read_status(settings)
    living = [node["name"] for node in status["nodes"] if node["lives"]]
    if living:
        raise ClusterRefused(
            f"Nodes of the cluster are running ({', '.join(living)}). Stop all of them first."
        )
    shards = len(status["shards"])
    if shards > 1:
        raise ClusterRefused(
            f"The cluster has {shards} shards; only one with one shard can be exported. Copy its "
            "streams with `penstock mirror`."
        )
    building = root.with_name(root.name + BUILDING)
    files.remove_all(building)
    files.make_folder(building)
    try:
        async with _owned(replace(settings, data_dir=building / NODE)) as store:
            session = await Database(settings).open()
            try:
                copied = await _Export(files, building, session, store, settings).run(tell)
            finally:
                session.abort()
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(f"The export was not finished: {error}") from None
    files.remove_all(building / NODE)
    tell("checking the folder")
    report = verify(building)
    if report.problem_count:
        raise StoreDamaged(f"The new folder has problems ({report.problems[0]}).")
    files.sync_everything(building)
    files.remove_all(root)
    files.rename(building, root)
    files.sync_above(root)
    return copied


@asynccontextmanager
async def _owned(settings: Settings) -> AsyncIterator[ClusterStore]:
    """Own the streams, with everything in the catalog, so that no node changes them."""
    store = ClusterStore(settings, clock=SYSTEM_CLOCK)
    await store.open(_Nobody())
    try:
        if not await store.checkpoint():
            raise ClusterUnavailable("The last checkpoint of the cluster failed. Try again.")
        yield store
    finally:
        await store.close()


class _Nobody:
    """An observer of a store that nobody writes to."""

    def committed(self, batch: Sequence[Mutation]) -> None:
        pass

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        pass


class _Export:
    def __init__(
        self, files: Files, root: Path, session: Session, store: ClusterStore, settings: Settings
    ) -> None:
        self._files = files
        self._root = root
        self._session = session
        self._extents: ExtentCache = store.extents
        self._segments = SegmentFolder(root / "segments")
        self._segment_bytes_max = settings.segment_bytes_max

    async def run(self, tell: Tell) -> Copied:
        check_format(self._files, self._root)
        self._files.make_folder(self._root / "journal")
        self._files.make_folder(self._segments.folder)
        after = streams = messages = size = 0
        with closing(Catalog(self._root / CATALOG_FILE)) as catalog:
            while rows := await fetch_page(self._session, after, ROWS_AT_ONCE):
                tell(f"copying streams: {streams:,}")
                await self._copy(catalog, rows)
                after = rows[-1].id
                streams += sum(not row.soft_deleted for row in rows)
                messages += sum(row.own_messages for row in rows)
                size += sum(row.own_bytes for row in rows)
            current = await progress(self._session)
            meta: dict[str, int | str] = {
                "checkpoint_lsn": current.checkpoint_lsn,
                "next_id": current.next_id,
                "clean": 1,
                HAS_MARK: 0,
                RESTORED: 0,
            }
            catalog.commit(Changes([], [], [], [], meta))
        return Copied(streams, messages, size)

    async def _copy(self, catalog: Catalog, rows: list[Row]) -> None:
        states = await fetch_producers(self._session, [row.id for row in rows])
        producers: list[tuple[int, str, ProducerState]] = [
            (id, name, state) for id, each in states.items() for name, state in each.items()
        ]
        written = [row._replace(segments=await self._write(row)) for row in rows]
        segments = [(row.id, info) for row in written for info in row.segments]
        catalog.commit(Changes(written, segments, producers, [], {}))

    async def _write(self, row: Row) -> tuple[SegmentInfo, ...]:
        """Write the payload of a stream to segments; return them."""
        segments: tuple[SegmentInfo, ...] = ()
        count_lines = stream_from_row(row).is_json
        for info in row.segments:
            body, index = await self._extents.load(row.id, info)
            chunks = chunks_of([info], _reader(body), _entries(index))
            writer = SegmentWriter(
                self._files, self._segments, row.id, segment_bytes_max=self._segment_bytes_max
            )
            try:
                segments = writer.extend(segments, chunks, count_lines=count_lines)
            finally:
                writer.close()
        return segments


def _reader(body: bytes) -> Read:
    return lambda _, start, end: bytes(body[start:end])


def _entries(index: bytes) -> Entry:
    def entry(info: SegmentInfo, block: int) -> IndexEntry:
        if block == info.length // segment.BLOCK_BYTES:
            return IndexEntry(info.open_ordinal, info.open_time_us, info.open_crc)
        return decode_entry(index[block * ENTRY.size : (block + 1) * ENTRY.size], "an extent")

    return entry
