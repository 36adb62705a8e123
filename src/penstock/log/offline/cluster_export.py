"""`penstock cluster export`: copies the streams of a stopped cluster into a new data folder, with
ids and positions kept: the way back from `penstock cluster import`.

The folder appears under its name when every byte of it was checked. The cluster stays as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, StoreDamaged, StoreError
from penstock.log.cluster import copying
from penstock.log.cluster.catalog import fetch_page, fetch_producers
from penstock.log.cluster.copying import StoredShard
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session, Sessions
from penstock.log.cluster.extent_objects import ObjectReader, check_store
from penstock.log.cluster.extents import ExtentCache
from penstock.log.cluster.status import read_status
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
from penstock.log.disk.worker_folders import lay_out, worker_folders, write_root
from penstock.log.offline.blocks import Entry, Read, chunks_of
from penstock.log.offline.cluster_import import CACHE_BYTES, ROWS_AT_ONCE, Copied
from penstock.log.offline.verify import verify
from penstock.log.stats import TierStats
from penstock.object_store import open_store
from penstock.protocol.producer import ProducerState

BUILDING: Final = ".exporting"
"""The ending of the folder's name until it is whole."""

Tell = Callable[[str], None]


async def export_folder(
    root: Path, settings: Settings, *, tell: Tell = lambda step: None
) -> Copied:
    """Copy the cluster that the settings name into a folder that is not there yet; one of several
    shards becomes a folder of as many workers.

    ClusterRefused while a node lives, and if one has owned a shard meanwhile.
    """
    files = Files()
    files.check_system()
    if files.exists(root) and files.list_folder(root):
        raise StoreError(f"{root} is not empty. Export into a folder that does not exist yet.")
    living = [node["name"] for node in (await read_status(settings))["nodes"] if node["lives"]]
    if living:
        raise ClusterRefused(
            f"Nodes of the cluster are running ({', '.join(living)}). Stop all of them first."
        )
    building = root.with_name(root.name + BUILDING)
    files.remove_all(building)
    files.make_folder(building)
    try:
        async with _opened(settings) as (session, extents):
            shards = await copying.stopped_shards(session)
            folders = _lay_out(files, building, len(shards))
            copied = Copied(0, 0, 0)
            for shard, folder in zip(shards, folders, strict=True):
                tell(f"copying streams: {copied.streams:,}")
                export = _Export(files, folder, session, extents, settings)
                copied = copied.plus(await export.run(shard))
            if await copying.stopped_shards(session) != shards:
                raise ClusterRefused("A node was started meanwhile. Stop it and try again.")
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(f"The export was not finished: {error}") from None
    tell("checking the folder")
    report = verify(building)
    if report.problem_count:
        raise StoreDamaged(f"The new folder has problems ({report.problems[0]}).")
    files.sync_everything(building)
    files.remove_all(root)
    files.rename(building, root)
    files.sync_above(root)
    return copied


def _lay_out(files: Files, root: Path, shards: int) -> list[Path]:
    """Make a folder, or one for each worker; return them."""
    if shards == 1:
        check_format(files, root)
        return [root]
    lay_out(files, root, shards)
    write_root(files, root, shards)
    return worker_folders(files, root)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[Session, ExtentCache]]:
    """Provide a session of the database, and its extents."""
    database = Database(settings)
    session = await database.open()
    try:
        await check_store(session, settings)
        sessions = Sessions(database.open, size=1)
        objects = None
        if settings.cluster_extents:
            store = open_store(settings.cluster_extents)
            objects = ObjectReader(store, settings, TierStats())
        extents = ExtentCache(sessions, objects, cache_bytes=CACHE_BYTES)
        try:
            yield session, extents
        finally:
            extents.close()
            sessions.close()
    finally:
        session.abort()


class _Export:
    """One shard on its way into one folder."""

    def __init__(
        self, files: Files, root: Path, session: Session, extents: ExtentCache, settings: Settings
    ) -> None:
        self._files = files
        self._root = root
        self._session = session
        self._extents = extents
        self._segments = SegmentFolder(root / "segments")
        self._segment_bytes_max = settings.segment_bytes_max

    async def run(self, shard: StoredShard) -> Copied:
        self._files.make_folder(self._root / "journal")
        self._files.make_folder(self._segments.folder)
        copied, after = Copied(0, 0, 0), 0
        with closing(Catalog(self._root / CATALOG_FILE)) as catalog:
            while rows := await fetch_page(self._session, shard.shard, after, ROWS_AT_ONCE):
                await self._copy(catalog, rows)
                after = rows[-1].id
                for row in rows:
                    counts = (int(not row.soft_deleted), row.own_messages, row.own_bytes)
                    copied = copied.plus(Copied(*counts))
            meta: dict[str, int | str] = {
                "checkpoint_lsn": shard.checkpoint_lsn,
                "next_id": shard.next_id,
                "clean": 1,
                HAS_MARK: 0,
                RESTORED: await copying.restored(self._session),
            }
            catalog.commit(Changes([], [], [], [], meta))
        return copied

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
