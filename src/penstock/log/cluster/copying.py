"""The database's side of imports and exports: tables that no node uses before everything in them
was checked, and the shards of a cluster that no node owns.

An import that was ended goes on where it was: its progress is written with what it has copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.errors import ClusterRefused
from penstock.log.cluster import schema
from penstock.log.cluster.catalog import Checkpoint, ExtentWrite, write_extents, write_rows
from penstock.log.cluster.database import Session
from penstock.log.disk.catalog_rows import Row
from penstock.protocol.producer import ProducerState

Producers = list[tuple[int, str, ProducerState]]

_MAKE: Final = """CREATE TABLE penstock.import (one boolean PRIMARY KEY DEFAULT true CHECK (one),
source text NOT NULL, shard int NOT NULL, last_id bigint NOT NULL)"""
_PROGRESS: Final = "SELECT source, shard, last_id FROM penstock.import"
# Of a stream that was being copied: its row comes last.
_CLEAR: Final = """DELETE FROM penstock.extent e
WHERE NOT EXISTS (SELECT FROM penstock.stream s WHERE s.id = e.stream_id)"""
_FINISH: Final = """UPDATE penstock.shard SET next_id = $2, checkpoint_lsn = $3, checkpoints = 1
WHERE shard = $1"""
_SHARDS: Final = """SELECT shard, epoch, checkpoint_lsn, next_id FROM penstock.shard
ORDER BY shard"""
_WAITING: Final = "SELECT count(*) FROM penstock.journal WHERE body IS NOT NULL"


class ShardEnd(NamedTuple):
    """Where the ids and the LSNs of a shard have come to."""

    next_id: int
    last_lsn: int


class StoredShard(NamedTuple):
    shard: int
    epoch: int
    checkpoint_lsn: int
    next_id: int


async def begin(session: Session, source: str, shards: int) -> tuple[int, int]:
    """Make tables for an import, or go on with those of an earlier one of the same `source`.

    Return the shard and the id of the last stream that was copied; ClusterRefused if there is a
    cluster, or anything else.
    """
    async with session.transaction():
        tables = await schema.lock(session)
        if tables and schema.IMPORT not in tables:
            raise ClusterRefused(
                "The database holds a cluster already. Import into a database without one."
            )
        if tables:
            before, shard, last_id = (await session.fetch(_PROGRESS))[0]
            if before == source:
                await session.fetch(_CLEAR)
                return int(shard), int(last_id)
            # Another folder, or the folder was served meanwhile.
            await session.fetch("DROP SCHEMA penstock CASCADE")
        await schema.make_tables(session, shards)
        await session.fetch(_MAKE)
        await session.fetch("INSERT INTO penstock.import VALUES (true, $1, 0, 0)", source)
        return 0, 0


async def put_extents(session: Session, extents: Sequence[ExtentWrite]) -> None:
    """Write extents of a stream whose row follows."""
    async with session.transaction():
        await write_extents(session, extents)


async def put_streams(session: Session, shard: int, rows: list[Row], producers: Producers) -> None:
    """Write the rows of streams, in the order of their ids, and that they are there."""
    async with session.transaction():
        copied = Checkpoint(0, 0, 0, 0, rows, [], producers, [], [], shard=shard)
        await write_rows(session, copied)
        text = "UPDATE penstock.import SET shard = $1, last_id = $2"
        await session.fetch(text, shard, rows[-1].id)


async def finish(session: Session, name: str, ends: Sequence[ShardEnd], restored: int) -> None:
    """Open the cluster; `restored` is the generation of the last restore of what was copied."""
    async with session.transaction():
        for shard, end in enumerate(ends):
            await session.fetch(_FINISH, shard, *end)
        await session.fetch("DROP TABLE penstock.import")
        await schema.make_cluster(session, name, len(ends), restored)


async def stopped_shards(session: Session) -> list[StoredShard]:
    """Return the shards of a cluster whose nodes were stopped in order; ClusterRefused if the
    journal has what no checkpoint has."""
    shards = [StoredShard(*row) for row in await session.fetch(_SHARDS)]
    if (await session.fetch(_WAITING))[0][0]:
        raise ClusterRefused(
            "The cluster was not stopped in order. Start a node, and stop it with SIGTERM."
        )
    return shards


async def lock_shards(session: Session) -> None:
    """Keep nodes from claiming shards until the end of the transaction."""
    await session.fetch("SELECT shard FROM penstock.shard ORDER BY shard FOR UPDATE")


async def restored(session: Session) -> int:
    """Return the generation of the last restore; 0 if there was none."""
    return int((await session.fetch("SELECT restored FROM penstock.cluster"))[0][0])


async def set_restored(session: Session, generation: int) -> None:
    await session.fetch("UPDATE penstock.cluster SET restored = $1", generation)


async def set_next_id(session: Session, shard: int, next_id: int) -> None:
    await session.fetch("UPDATE penstock.shard SET next_id = $2 WHERE shard = $1", shard, next_id)
