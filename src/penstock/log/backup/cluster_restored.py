"""`penstock cluster restored`: lets the streams of a cluster whose database was restored to an
earlier time go on under a new generation, so that clients who have seen what is lost are told."""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused
from penstock.log.backup.restore import GENERATIONS_SKIPPED, ROWS_AT_ONCE
from penstock.log.cluster import copying
from penstock.log.cluster.catalog import Checkpoint, fetch_page, write_rows
from penstock.log.cluster.copying import StoredShard
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session
from penstock.log.cluster.status import read_status
from penstock.log.stream import renewed


class Renewed(NamedTuple):
    streams: int
    generation: int


async def renew_cluster(settings: Settings) -> Renewed:
    """Renew the generation of every stream that can grow, in one transaction. ClusterRefused while
    a node lives, and if the journal has what no checkpoint has."""
    living = [node["name"] for node in (await read_status(settings))["nodes"] if node["lives"]]
    if living:
        raise ClusterRefused(
            f"Nodes of the cluster are running ({', '.join(living)}). Stop all of them first."
        )
    try:
        session = await Database(settings).open()
        try:
            async with session.transaction():
                return await _renew(session)
        finally:
            session.abort()
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(f"The generations were not renewed: {error}") from None


async def _renew(session: Session) -> Renewed:
    await copying.lock_shards(session)
    shards = await copying.stopped_shards(session)
    generation = max(shard.next_id for shard in shards) + GENERATIONS_SKIPPED
    streams = 0
    for shard in shards:
        streams += await _renew_shard(session, shard, generation)
        await copying.set_next_id(session, shard.shard, generation + 1)
    await copying.set_restored(session, generation)
    return Renewed(streams, generation)


async def _renew_shard(session: Session, shard: StoredShard, generation: int) -> int:
    streams = after = 0
    while rows := await fetch_page(session, shard.shard, after, ROWS_AT_ONCE):
        after = rows[-1].id
        growing = [row for row in rows if not (row.closed or row.soft_deleted)]
        changed = [row._replace(meta=renewed(row.meta, row.tail, generation)) for row in growing]
        copied = Checkpoint(0, 0, 0, 0, changed, [], [], [], [], shard=shard.shard)
        await write_rows(session, copied)
        streams += len(changed)
    return streams
