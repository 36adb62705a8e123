"""`penstock cluster import`: copies the streams of a stopped folder into a new cluster.

Ids and positions stay, so that every offset, cursor and ETag that clients hold stays valid. A copy
that was ended goes on where it was; everything is read back and compared before the cluster opens.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, Damaged, StoreDamaged, StoreError
from penstock.log import open_engine
from penstock.log.cluster import copying
from penstock.log.cluster.catalog import fetch_page, fetch_producers
from penstock.log.cluster.copying import ShardEnd
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session, Sessions
from penstock.log.cluster.extents import ExtentCache, plan_extents
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT_FILE, RESTORED, read_format
from penstock.log.disk.segment import SegmentInfo
from penstock.log.disk.worker_folders import worker_folders
from penstock.log.offline.blocks import BLOCKS_AT_ONCE, FolderBlocks, groups
from penstock.log.offline.folder import Folder, open_folder
from penstock.protocol.producer import ProducerState

ROWS_AT_ONCE: Final = 500
PRODUCERS_MAX: Final = 2**53
CACHE_BYTES: Final = 4 * 1024 * 1024

Progress = Callable[[str], None]


class Copied(NamedTuple):
    """What an import or export has copied."""

    streams: int
    messages: int
    bytes: int

    def plus(self, other: Copied) -> Copied:
        return Copied(*(a + b for a, b in zip(self, other, strict=True)))


async def import_folder(
    root: Path, settings: Settings, *, progress: Progress = lambda step: None
) -> Copied:
    """Copy a folder into the database that the settings name, with a shard for each worker.
    StoreLocked while a server uses the folder, ClusterRefused if the database holds a cluster."""
    files, database = Files(), Database(settings)
    if not files.exists(root / FORMAT_FILE):
        raise StoreError(f"{root} is not a Penstock data folder: it has no {FORMAT_FILE} file.")
    sources = worker_folders(files, root)
    progress("closing the folder")
    for source in sources:
        await _close_in_order(source, settings)
    try:
        with ExitStack() as cleanup:
            folders = [cleanup.enter_context(open_folder(each, cold=True)) for each in sources]
            if not all(folder.catalog.meta().get("clean") for folder in folders):
                raise StoreError(f"{root} was used meanwhile. Stop the server and try again.")
            session = await database.open()
            cleanup.callback(session.abort)
            shards = [
                _Shard(shard, folder, cleanup.enter_context(closing(FolderBlocks(folder))), session)
                for shard, folder in enumerate(folders)
            ]
            return await _import(shards, session, settings, progress)
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(
            f"The import was not finished: {error} Run it again to go on."
        ) from None


async def _close_in_order(folder: Path, settings: Settings) -> None:
    """Open and close a folder as a server does, so that its catalog has everything."""
    engine = open_engine(replace(settings, data_dir=folder, cluster=None))
    await engine.start()
    await engine.stop()


async def _import(
    shards: list[_Shard], session: Session, settings: Settings, progress: Progress
) -> Copied:
    source = json.dumps([shard.state() for shard in shards])
    at, last_id = await copying.begin(session, source, len(shards))
    total = sum(len(shard.ids) for shard in shards)
    done = 0
    for shard in shards:
        after = last_id if shard.shard == at else 0
        ids = [id for id in shard.ids if id > after and shard.shard >= at]
        done += len(shard.ids) - len(ids)
        for group in groups(ids, ROWS_AT_ONCE):
            progress(f"copying streams: {done:,} of {total:,}")
            await shard.copy(group, settings.segment_bytes_max)
            done += len(group)
    sessions = Sessions(Database(settings).open, size=1)
    extents = ExtentCache(sessions, None, cache_bytes=CACHE_BYTES)
    copied = Copied(0, 0, 0)
    try:
        for shard in shards:
            progress(f"comparing streams: {copied.streams:,} of {total:,}")
            copied = copied.plus(await shard.compare(extents))
    finally:
        extents.close()
        sessions.close()
    ends = [shard.end() for shard in shards]
    restored = max(shard.restored for shard in shards)
    await copying.finish(session, settings.cluster_name, ends, restored)
    return copied


class _Shard:
    """The streams of one folder, or of one worker, on their way into one shard."""

    def __init__(self, shard: int, folder: Folder, blocks: FolderBlocks, session: Session) -> None:
        self.shard = shard
        self._folder = folder
        self._catalog = folder.catalog
        self._blocks = blocks
        self._session = session
        self.ids = sorted(self._catalog.ids())
        meta = self._catalog.meta()
        self._next_id = int(meta.get("next_id", 1))
        self._last_lsn = int(meta.get("checkpoint_lsn", 0))
        self.restored = int(meta.get(RESTORED, 0))

    def state(self) -> list[object]:
        """Return what names the folder in the state that it is in."""
        store_id = read_format(self._folder.files, self._folder.root).get("store_id")
        return [store_id, self._next_id, self._last_lsn, len(self.ids)]

    def end(self) -> ShardEnd:
        return ShardEnd(self._next_id, self._last_lsn)

    def _row(self, id: int) -> Row:
        row = self._catalog.by_id(id)
        assert row is not None
        self._last_lsn = max(self._last_lsn, row.applied_lsn)
        return row

    # -- copying

    async def copy(self, group: list[int], extent_bytes: int) -> None:
        """Copy some streams, in the order of their ids."""
        rows: list[Row] = []
        producers: list[tuple[int, str, ProducerState]] = []
        for id in group:
            row = self._row(id)
            states = self._catalog.producers(id, PRODUCERS_MAX)
            producers += [(id, name, state) for name, state in states.items()]
            rows.append(await self._copy_bytes(row, extent_bytes))
        await copying.put_streams(self._session, self.shard, rows, producers)

    async def _copy_bytes(self, row: Row, extent_bytes: int) -> Row:
        """Copy the payload of a stream; return its row as the cluster has it."""
        if not row.segments:
            return row
        extents: tuple[SegmentInfo, ...] = ()
        for group in groups(self._blocks.chunks(row), BLOCKS_AT_ONCE):
            extents, writes = plan_extents(
                row.id,
                extents,
                group,
                count_lines=stream_from_row(row).is_json,
                extent_bytes=extent_bytes,
            )
            await copying.put_extents(self._session, writes)
        return row._replace(segments=extents)

    # -- comparing

    async def compare(self, extents: ExtentCache) -> Copied:
        """Read everything back, and compare it with the folder; StoreDamaged if it differs."""
        copied, after = Copied(0, 0, 0), 0
        for group in groups(self.ids, ROWS_AT_ONCE):
            page = await fetch_page(self._session, self.shard, after, len(group))
            stored = {row.id: row for row in page}
            producers = await fetch_producers(self._session, group)
            for id in group:
                row = self._row(id)
                await self._compare_one(row, stored.get(id), producers.get(id, {}), extents)
                counts = (int(not row.soft_deleted), row.own_messages, row.own_bytes)
                copied = copied.plus(Copied(*counts))
            after = group[-1]
        if await fetch_page(self._session, self.shard, after, 1):
            raise StoreDamaged("The database has streams that the folder does not have.")
        return copied

    async def _compare_one(
        self,
        row: Row,
        stored: Row | None,
        producers: dict[str, ProducerState],
        extents: ExtentCache,
    ) -> None:
        if stored is None or stored._replace(segments=()) != row._replace(segments=()):
            raise StoreDamaged(f"The row of stream {row.path!r} differs in the copy.")
        if producers != self._catalog.producers(row.id, PRODUCERS_MAX):
            raise StoreDamaged(f"The producers of stream {row.path!r} differ in the copy.")
        here = there = 0
        for chunk in self._blocks.chunks(row):
            here = zlib.crc32(chunk.data, here)
        for info in stored.segments:
            try:
                body, _ = await extents.load(row.id, info)
            except Damaged as error:
                raise StoreDamaged(f"The copy of stream {row.path!r}: {error}") from None
            there = zlib.crc32(body, there)
        if here != there:
            raise StoreDamaged(f"The bytes of stream {row.path!r} differ in the copy.")
