"""The database's side of an import: tables that no node uses before everything in them was checked.

An import that was ended goes on where it was: its progress is written with what it has copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ClusterRefused
from penstock.log.cluster import schema
from penstock.log.cluster.catalog import Checkpoint, ExtentWrite, write_extents, write_rows
from penstock.log.cluster.database import Session
from penstock.log.disk.catalog_rows import Row
from penstock.protocol.producer import ProducerState

Producers = list[tuple[int, str, ProducerState]]

_MAKE: Final = """CREATE TABLE penstock.import (one boolean PRIMARY KEY DEFAULT true CHECK (one),
source text NOT NULL, last_id bigint NOT NULL)"""
_CLEAR: Final = tuple(
    f"DELETE FROM penstock.{table} WHERE {column} > $1"
    for table, column in (("stream", "id"), ("producer", "stream_id"), ("extent", "stream_id"))
)
_FINISH: Final = """UPDATE penstock.shard SET next_id = $2, checkpoint_lsn = $3, checkpoints = 1
WHERE shard = $1"""


async def begin(session: Session, source: str) -> int:
    """Make tables for an import, or go on with those of an earlier one of the same `source`.

    Return the last stream that was copied; ClusterRefused if there is a cluster, or anything else.
    """
    async with session.transaction():
        tables = await schema.lock(session)
        if not tables:
            await schema.make_tables(session, 1)
            await session.fetch(_MAKE)
            await session.fetch("INSERT INTO penstock.import VALUES (true, $1, 0)", source)
            return 0
        if schema.IMPORT not in tables:
            raise ClusterRefused(
                "The database holds a cluster already. Import into a database without one."
            )
        before, last_id = (await session.fetch("SELECT source, last_id FROM penstock.import"))[0]
        if before != source:  # another folder, or the folder was served meanwhile
            last_id = 0
            await session.fetch("UPDATE penstock.import SET source = $1, last_id = 0", source)
        for statement in _CLEAR:
            await session.fetch(statement, last_id)
        return int(last_id)


async def put_extents(session: Session, extents: Sequence[ExtentWrite]) -> None:
    """Write extents of a stream whose row follows."""
    async with session.transaction():
        await write_extents(session, extents)


async def put_streams(session: Session, rows: list[Row], producers: Producers) -> None:
    """Write the rows of streams, in the order of their ids, and that they are there."""
    async with session.transaction():
        await write_rows(session, Checkpoint(0, 0, 0, 0, rows, [], producers, [], []))
        await session.fetch("UPDATE penstock.import SET last_id = $1", rows[-1].id)


async def finish(session: Session, name: str, *, next_id: int, last_lsn: int) -> None:
    """Open the cluster, which has one shard."""
    async with session.transaction():
        await session.fetch(_FINISH, 0, next_id, last_lsn)
        await session.fetch("DROP TABLE penstock.import")
        await schema.make_cluster(session, name, 1)
