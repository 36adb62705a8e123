"""`penstock cluster import`: copies the streams of a stopped folder into a new cluster.

Ids and positions stay, so that every offset, cursor and ETag that clients hold stays valid. A copy
that was ended goes on where it was; everything is read back and compared before the cluster opens.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, Damaged, StoreDamaged, StoreError
from penstock.log import open_engine
from penstock.log.cluster import copying
from penstock.log.cluster.catalog import fetch_page, fetch_producers
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session, Sessions
from penstock.log.cluster.extents import ExtentCache, plan_extents
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT_FILE, read_format
from penstock.log.disk.segment import SegmentInfo
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


async def import_folder(
    root: Path, settings: Settings, *, progress: Progress = lambda step: None
) -> Copied:
    """Copy a folder into the database that the settings name. StoreLocked while a server uses the
    folder, ClusterRefused if the database holds a cluster."""
    database = Database(settings)
    progress("closing the folder")
    await _close_in_order(root, settings)
    try:
        with open_folder(root, cold=True) as folder, closing(FolderBlocks(folder)) as blocks:
            if not folder.catalog.meta().get("clean"):
                raise StoreError(f"{root} was used meanwhile. Stop the server and try again.")
            session = await database.open()
            try:
                moving = _Import(folder, blocks, session, settings)
                return await moving.run(database, progress)
            finally:
                session.abort()
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(
            f"The import was not finished: {error} Run it again to go on."
        ) from None


async def _close_in_order(root: Path, settings: Settings) -> None:
    """Open and close the folder as a server does, so that its catalog has everything."""
    if not Files().exists(root / FORMAT_FILE):
        raise StoreError(f"{root} is not a Penstock data folder: it has no {FORMAT_FILE} file.")
    engine = open_engine(replace(settings, data_dir=root, cluster=None))
    await engine.start()
    await engine.stop()


class _Import:
    def __init__(
        self, folder: Folder, blocks: FolderBlocks, session: Session, settings: Settings
    ) -> None:
        self._folder = folder
        self._catalog = folder.catalog
        self._blocks = blocks
        self._session = session
        self._settings = settings
        self._ids = sorted(self._catalog.ids())
        meta = self._catalog.meta()
        self._next_id = int(meta.get("next_id", 1))
        self._last_lsn = int(meta.get("checkpoint_lsn", 0))

    async def run(self, database: Database, progress: Progress) -> Copied:
        last_id = await copying.begin(self._session, self._source())
        await self._copy([id for id in self._ids if id > last_id], progress)
        sessions = Sessions(database.open, size=1)
        extents = ExtentCache(sessions, None, cache_bytes=CACHE_BYTES)
        try:
            copied = await self._compare(extents, progress)
        finally:
            extents.close()
            sessions.close()
        await copying.finish(
            self._session,
            self._settings.cluster_name,
            next_id=self._next_id,
            last_lsn=self._last_lsn,
        )
        return copied

    def _source(self) -> str:
        """Return what names the folder in the state that it is in."""
        store_id = read_format(self._folder.files, self._folder.root).get("store_id")
        state = [store_id, self._next_id, self._last_lsn, len(self._ids)]
        return json.dumps(state)

    def _row(self, id: int) -> Row:
        row = self._catalog.by_id(id)
        assert row is not None
        self._last_lsn = max(self._last_lsn, row.applied_lsn)
        return row

    # -- copying

    async def _copy(self, ids: list[int], progress: Progress) -> None:
        done = len(self._ids) - len(ids)
        for group in groups(ids, ROWS_AT_ONCE):
            progress(f"copying streams: {done:,} of {len(self._ids):,}")
            rows: list[Row] = []
            producers: list[tuple[int, str, ProducerState]] = []
            for id in group:
                row = self._row(id)
                states = self._catalog.producers(id, PRODUCERS_MAX)
                producers += [(id, name, state) for name, state in states.items()]
                rows.append(await self._copy_bytes(row))
            await copying.put_streams(self._session, rows, producers)
            done += len(group)

    async def _copy_bytes(self, row: Row) -> Row:
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
                extent_bytes=self._settings.segment_bytes_max,
            )
            await copying.put_extents(self._session, writes)
        return row._replace(segments=extents)

    # -- comparing

    async def _compare(self, extents: ExtentCache, progress: Progress) -> Copied:
        """Read everything back, and compare it with the folder; StoreDamaged if it differs."""
        after = streams = messages = size = 0
        for group in groups(self._ids, ROWS_AT_ONCE):
            progress(f"comparing streams: {streams:,} of {len(self._ids):,}")
            stored = {row.id: row for row in await fetch_page(self._session, after, len(group))}
            producers = await fetch_producers(self._session, group)
            for id in group:
                row = self._row(id)
                await self._compare_one(row, stored.get(id), producers.get(id, {}), extents)
                streams += not row.soft_deleted
                messages += row.own_messages
                size += row.own_bytes
            after = group[-1]
        if await fetch_page(self._session, after, 1):
            raise StoreDamaged("The database has streams that the folder does not have.")
        return Copied(streams, messages, size)

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
