"""Takeover: the journal of a shard after its last checkpoint, replayed onto the rows it names.

Costs what the journal since the checkpoint costs, whatever the number of streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.log.cluster.catalog import Progress, Stored, fetch_stored, progress
from penstock.log.cluster.database import Fenced, Session
from penstock.log.cluster.slots import Claim
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.journal import Batch
from penstock.log.disk.recovery import Replay
from penstock.log.records import AppendRecord, CreateRecord, DeleteRecord, Record, decode_records
from penstock.log.stream import Stream

READ: Final = """SELECT seq, first_lsn, records, body FROM penstock.journal
WHERE shard = $1 AND seq > $2 AND seq < $3 AND body IS NOT NULL ORDER BY seq LIMIT $4"""
TRIMMED: Final = "SELECT trimmed FROM penstock.shard WHERE shard = $1"
PAGE: Final = 64
"""Batches read at a time."""


class Recovered(NamedTuple):
    streams: dict[int, Stream]
    deleted: dict[int, Stream]
    next_lsn: int
    next_id: int
    records: int
    checkpoints: int
    rows: dict[int, Row]
    """All rows that were read, those of sources included."""


async def recover(session: Session, claim: Claim) -> Recovered:
    """Replay what the owners before have left; Fenced if there is a later one already."""
    current = await progress(session, claim.shard)
    if current.epoch != claim.epoch:
        raise Fenced(f"epoch {claim.epoch} has ended")
    batches = await _read(session, claim, current)
    records = [list(_decode(batch)) for batch in batches]
    stored = await _fetch(session, records)
    replay = Replay(stored, current.checkpoint_lsn, current.next_id)
    next_lsn = current.checkpoint_lsn + 1
    for batch in batches:
        if batch.first_lsn + batch.records <= next_lsn:
            continue  # the checkpoint has it
        if batch.first_lsn > next_lsn:
            raise StoreDamaged(
                f"The journal of the cluster has no LSN {next_lsn}. Restore the database from a "
                "backup."
            )
        replay.batch(batch, "of the cluster")
        next_lsn = batch.first_lsn + batch.records
    for stream in replay.streams.values():
        stream.reset_pending()
    return Recovered(
        replay.streams,
        replay.deleted,
        next_lsn,
        replay.next_id,
        replay.records,
        current.checkpoints,
        stored.rows,
    )


async def _read(session: Session, claim: Claim, current: Progress) -> list[Batch]:
    after = (await session.fetch(TRIMMED, claim.shard))[0][0]
    batches: list[Batch] = []
    while page := await session.fetch(READ, claim.shard, after, claim.seq, PAGE):
        batches += [Batch(first_lsn, records, body) for _, first_lsn, records, body in page]
        after = page[-1][0]
    return batches


def _decode(batch: Batch) -> Iterator[Record]:
    try:
        yield from decode_records(batch.body)
    except (ValueError, IndexError) as error:
        raise StoreDamaged(
            f"The journal of the cluster, batch {batch.first_lsn}: {error}. Restore the database "
            "from a backup."
        ) from None


async def _fetch(session: Session, batches: list[list[Record]]) -> Stored:
    """Return the rows that a replay may ask for."""
    ids: set[int] = set()
    producers: set[tuple[int, str]] = set()
    for records in batches:
        for record in records:
            ids |= {record.stream_id, *record.required_ids, *record.ended_ids}
            if isinstance(record, AppendRecord) and record.producer is not None:
                producers.add((record.stream_id, record.producer.id))
            if isinstance(record, CreateRecord) and record.meta.source_id is not None:
                ids.add(record.meta.source_id)
            if isinstance(record, DeleteRecord) and record.released:
                ids.add(record.released)
    return await fetch_stored(session, ids, producers)
