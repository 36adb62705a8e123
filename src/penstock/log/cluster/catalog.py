"""The catalog of a cluster: the rows of streams and producers in PostgreSQL, as of the last
checkpoint, and the transaction that writes one.

Rows and their checksums are those of the catalog on disk; only the SQL is other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.errors import ClusterRefused, ClusterUnavailable, Damaged
from penstock.log.cluster.database import Fenced, OutcomeUnknown, Rows, Session, Sessions
from penstock.log.cluster.slots import Claim
from penstock.log.disk.catalog import info_from, is_row_sound, producer_checksum
from penstock.log.disk.catalog_rows import COLUMNS, WIDTH, Row, decode, encode
from penstock.log.disk.segment import SegmentInfo
from penstock.log.stream import Deadline, StreamInfo
from penstock.protocol.producer import ProducerState

_TEXT: Final = frozenset(("path", "content_type", "closed_by", "stream_seq", "meta", "fork_path"))
_NAMES: Final = [name.strip() for name in COLUMNS.split(",")]
_SMALL: Final = frozenset(("closed", "soft_deleted"))


def _cast(index: int, name: str) -> str:
    kind = "text" if name in _TEXT else "smallint" if name in _SMALL else "bigint"
    return f"(value->>{index})::{kind}"


_SEGMENTS: Final = """(SELECT json_agg(json_build_array(base, length, first_ordinal, open_ordinal,
open_time_us, open_crc) ORDER BY base) FROM penstock.extent WHERE stream_id = s.id)"""


def _at(parameter: str) -> str:
    """Return the columns that say how new the rows of a shard are."""
    return ", ".join(
        f"(SELECT {name} FROM penstock.shard WHERE shard = {parameter})"
        for name in ("epoch", "checkpoints")
    )


_COLUMNS: Final = f"{COLUMNS}, crc, inline, {_SEGMENTS}"

BY_PATH: Final = f"""WITH RECURSIVE s AS (
  SELECT * FROM penstock.stream WHERE shard = $2 AND path = $1
  UNION ALL SELECT source.* FROM penstock.stream source JOIN s ON source.id = s.forked_from)
SELECT {_at("$2")}, {_COLUMNS} FROM s
UNION ALL SELECT {_at("$2")}{", NULL" * (WIDTH + 3)} WHERE NOT EXISTS (SELECT FROM s)"""
BY_IDS: Final = f"""WITH RECURSIVE s AS (
  SELECT * FROM penstock.stream WHERE id = ANY($1::bigint[])
  UNION SELECT source.* FROM penstock.stream source JOIN s ON source.id = s.forked_from)
SELECT 0, 0, {_COLUMNS} FROM s"""
PAGE: Final = f"""SELECT 0, 0, {_COLUMNS} FROM penstock.stream s
WHERE s.shard = $1 AND s.id > $2 ORDER BY s.id LIMIT $3"""
"""Rows by id, for tools that read all of them."""
PRODUCER: Final = f"""SELECT {_at("$3")}, epoch, seq, crc FROM (SELECT) AS always
LEFT JOIN penstock.producer ON stream_id = $1 AND producer_id = $2"""
PRODUCERS: Final = """SELECT stream_id, producer_id, epoch, seq, crc FROM penstock.producer
JOIN unnest($1::bigint[], $2::text[]) AS named (a, b) ON stream_id = a AND producer_id = b"""

ALL_PRODUCERS: Final = """SELECT stream_id, producer_id, epoch, seq, crc FROM penstock.producer
WHERE stream_id = ANY($1::bigint[]) ORDER BY stream_id, producer_id"""

_HELD: Final = """tail - greatest(least(earliest, coalesce(pinned, earliest)),
coalesce(fork_position, 0))"""
_INFO: Final = """path, id, content_type, tail, count, closed, created_us, touched_us, ttl_s,
expires_at_us, earliest, earliest_ordinal, fork_path,
CASE WHEN meta IS NULL THEN NULL ELSE meta::json->>'renewals' END"""
_LIST: Final = f"""SELECT {_INFO} FROM penstock.stream WHERE shard = $5 AND path > $1
AND soft_deleted = 0 AND path >= $2 AND path < $3 %s ORDER BY path LIMIT $4"""
LIST: Final = _LIST % ""
LIST_FILED: Final = _LIST % "AND tail > earliest AND (inline IS NULL OR forked_from IS NOT NULL)"
FORKS: Final = f"""SELECT {_INFO} FROM penstock.stream
WHERE forked_from = $1 AND path > $2 AND soft_deleted = 0 ORDER BY path LIMIT $3"""
LIST_PRODUCERS: Final = """SELECT producer_id, epoch, seq FROM penstock.producer
WHERE stream_id = $1 AND producer_id > $2 ORDER BY producer_id LIMIT $3"""
SIZES: Final = f"""SELECT id, path, {_HELD} FROM penstock.stream WHERE shard = $3 AND id > $1
ORDER BY id LIMIT $2"""
META: Final = """SELECT id, path FROM penstock.stream WHERE shard = $4 AND meta IS NOT NULL
AND path > $1 AND position($2 IN meta) > 0 AND soft_deleted = 0 ORDER BY path LIMIT $3"""
UNTOUCHED: Final = """SELECT touched_us, id, path FROM penstock.stream
WHERE shard = $5 AND tail > earliest AND soft_deleted = 0 AND touched_us < $1
AND (touched_us, id) > ($2, $3) ORDER BY touched_us, id LIMIT $4"""
EXPIRED: Final = """SELECT deadline_us, id, path FROM penstock.stream
WHERE shard = $5 AND deadline_us <= $1 AND (deadline_us, id) > ($2, $3)
ORDER BY deadline_us, id LIMIT $4"""
TOTALS: Final = f"""SELECT count(*) FILTER (WHERE soft_deleted = 0),
coalesce(sum({_HELD}), 0)::bigint
FROM penstock.stream WHERE shard = $2 AND id <> ALL($1::bigint[])"""

MARK: Final = """UPDATE penstock.shard SET checkpoint_lsn = $3, next_id = $4,
checkpoints = checkpoints + 1, trimmed = greatest(trimmed, (SELECT coalesce(max(seq), 0)
  FROM penstock.journal WHERE shard = $1 AND body IS NOT NULL AND first_lsn + records - 1 <= $3))
WHERE shard = $1 AND epoch = $2 AND checkpoints = $5 RETURNING checkpoints"""
TRIM: Final = """DELETE FROM penstock.journal
WHERE shard = $1 AND body IS NOT NULL AND first_lsn + records - 1 <= $2"""
PROGRESS: Final = """SELECT epoch, checkpoints, checkpoint_lsn, next_id FROM penstock.shard
WHERE shard = $1"""
_PUT_STREAMS: Final = f"""INSERT INTO penstock.stream ({COLUMNS}, crc, inline, shard)
SELECT {", ".join(_cast(i, name) for i, name in enumerate(_NAMES))}, (value->>{WIDTH})::bigint,
  substring($2::bytea FROM (value->>{WIDTH + 1})::int FOR (value->>{WIDTH + 2})::int), $3::int
FROM json_array_elements($1::json)
ON CONFLICT (id) DO UPDATE SET
{", ".join(f"{name} = excluded.{name}" for name in (*_NAMES[1:], "crc", "inline"))}"""
_PUT_PRODUCERS: Final = """INSERT INTO penstock.producer
SELECT (value->>0)::bigint, value->>1, (value->>2)::bigint, (value->>3)::bigint,
  (value->>4)::bigint FROM json_array_elements($1::json)
ON CONFLICT (stream_id, producer_id) DO UPDATE
SET epoch = excluded.epoch, seq = excluded.seq, crc = excluded.crc"""
_PUT_EXTENT: Final = """INSERT INTO penstock.extent (stream_id, base, length, first_ordinal,
  open_ordinal, open_time_us, open_crc, body, index, is_full)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $12)
ON CONFLICT (stream_id, base) DO UPDATE SET length = excluded.length,
  open_ordinal = excluded.open_ordinal, open_time_us = excluded.open_time_us,
  open_crc = excluded.open_crc, is_full = excluded.is_full,
  body = substring(extent.body FROM 1 FOR greatest($10 - extent.object_length, 0)::int)
    || excluded.body,
  index = substring(extent.index FROM 1 FOR $11) || excluded.index"""
_GARBAGE: Final = """WITH gone AS (%s RETURNING object)
INSERT INTO penstock.garbage (object, not_before)
SELECT object, now() + make_interval(secs => %s) FROM gone WHERE object IS NOT NULL"""
_DROP_EXTENTS: Final = _GARBAGE % (
    """DELETE FROM penstock.extent USING unnest($1::bigint[], $2::bigint[]) AS dropped (a, b)
WHERE stream_id = a AND base = b""",
    "$3",
)
_DROP_ALL_EXTENTS: Final = _GARBAGE % (
    "DELETE FROM penstock.extent WHERE stream_id = ANY($1::bigint[])",
    "$2",
)
_DROP: Final = tuple(
    f"DELETE FROM penstock.{table} WHERE {column} = ANY($1::bigint[])"
    for table, column in (("stream", "id"), ("producer", "stream_id"))
)
ROWS_A_STATEMENT: Final = 2000


class Progress(NamedTuple):
    """How far the checkpoints of a shard have come."""

    epoch: int
    checkpoints: int
    checkpoint_lsn: int
    next_id: int


class ExtentWrite(NamedTuple):
    """New bytes of an extent, behind `kept` ones and `kept_index` bytes of its index."""

    stream_id: int
    info: SegmentInfo
    data: bytes
    entries: bytes
    kept: int
    kept_index: int
    is_full: bool
    """Whether it gets no more bytes."""


class Checkpoint(NamedTuple):
    """Everything that one checkpoint writes, in one transaction."""

    number: int
    """The checkpoints before it."""
    epoch: int
    lsn: int
    next_id: int
    rows: list[Row]
    extents: list[ExtentWrite]
    producers: list[tuple[int, str, ProducerState]]
    deleted: list[int]
    dropped: list[tuple[int, int]]
    garbage_s: float = 0.0
    """How long the objects of dropped extents stay."""
    shard: int = 0


async def write_checkpoint(session: Session, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, fenced as an append is, and trim the journal; claims stay in it."""
    async with session.transaction():
        marked = await session.fetch(
            MARK,
            checkpoint.shard,
            checkpoint.epoch,
            checkpoint.lsn,
            checkpoint.next_id,
            checkpoint.number,
        )
        if not marked:
            raise Fenced(f"epoch {checkpoint.epoch} has ended")
        await session.fetch(TRIM, checkpoint.shard, checkpoint.lsn)
        await write_rows(session, checkpoint)


async def write_rows(session: Session, checkpoint: Checkpoint) -> None:
    """Write the rows of a checkpoint, in a transaction of the caller's."""
    if checkpoint.deleted:
        for statement in _DROP:
            await session.fetch(statement, checkpoint.deleted)
        await session.fetch(_DROP_ALL_EXTENTS, checkpoint.deleted, checkpoint.garbage_s)
    if checkpoint.dropped:
        ids, bases = zip(*checkpoint.dropped, strict=True)
        await session.fetch(_DROP_EXTENTS, ids, bases, checkpoint.garbage_s)
    for start in range(0, len(checkpoint.rows), ROWS_A_STATEMENT):
        text, blob = encode(checkpoint.rows[start : start + ROWS_A_STATEMENT])
        await session.fetch(_PUT_STREAMS, text, blob, checkpoint.shard)
    await write_extents(session, checkpoint.extents)
    if checkpoint.producers:
        producers = [
            [id, name, *state, producer_checksum(id, name, *state)]
            for id, name, state in checkpoint.producers
        ]
        await session.fetch(_PUT_PRODUCERS, json.dumps(producers))


async def write_extents(session: Session, extents: Sequence[ExtentWrite]) -> None:
    if extents:
        values = [
            (
                each.stream_id,
                *each.info,
                each.data,
                each.entries,
                each.kept,
                each.kept_index,
                each.is_full,
            )
            for each in extents
        ]
        await session.execute_many(_PUT_EXTENT, values)


async def progress(session: Session, shard: int = 0) -> Progress:
    return Progress(*(await session.fetch(PROGRESS, shard))[0])


class Stored(NamedTuple):
    """Rows of the catalog that were fetched together."""

    rows: dict[int, Row]
    producers: dict[tuple[int, str], ProducerState]

    def by_id(self, stream_id: int) -> Row | None:
        return self.rows.get(stream_id)

    def producer(self, stream_id: int, producer_id: str) -> ProducerState | None:
        return self.producers.get((stream_id, producer_id))


async def fetch_stored(
    session: Session, ids: Iterable[int], producers: Iterable[tuple[int, str]]
) -> Stored:
    """Return the rows of streams with all of their sources, and of producers."""
    rows = await session.fetch(BY_IDS, sorted(set(ids)))
    streams = {row.id: row for row in map(_decoded, rows)}
    pairs = sorted(set(producers))
    states: dict[tuple[int, str], ProducerState] = {}
    if pairs:
        columns = [id for id, _ in pairs], [name for _, name in pairs]
        for id, name, epoch, seq, crc in await session.fetch(PRODUCERS, *columns):
            states[id, name] = _state(id, name, epoch, seq, crc)
    return Stored(streams, states)


async def fetch_page(session: Session, shard: int, after_id: int, limit: int) -> list[Row]:
    """Return rows of a shard in the order of their ids, checked."""
    return [_decoded(row) for row in await session.fetch(PAGE, shard, after_id, limit)]


async def fetch_producers(
    session: Session, ids: Sequence[int]
) -> dict[int, dict[str, ProducerState]]:
    """Return all producers of some streams, checked."""
    states: dict[int, dict[str, ProducerState]] = {}
    for id, name, epoch, seq, crc in await session.fetch(ALL_PRODUCERS, ids):
        states.setdefault(id, {})[name] = _state(id, name, epoch, seq, crc)
    return states


def _decoded(values: Sequence[Any]) -> Row:
    row, text = tuple(values[2 : WIDTH + 4]), values[WIDTH + 4]
    segments = () if text is None else tuple(SegmentInfo(*each) for each in json.loads(text))
    if not is_row_sound(row, segments):
        raise Damaged(
            f"The row of stream {row[1]!r} does not match its checksum. Restore the database from "
            "a backup."
        )
    return decode(row[:WIDTH], row[WIDTH + 1], segments)


def _state(stream_id: int, producer_id: str, epoch: int, seq: int, crc: int) -> ProducerState:
    if producer_checksum(stream_id, producer_id, epoch, seq) != crc:
        raise Damaged(
            f"The row of producer {producer_id!r} of stream {stream_id} does not match its "
            "checksum. Restore the database from a backup."
        )
    return ProducerState(epoch, seq)


class Catalog:
    """Reads of the catalog by the owner of a shard, from the server that has its checkpoints."""

    def __init__(self, sessions: Sessions, claim: Claim, checkpoints: Callable[[], int]) -> None:
        self._sessions = sessions
        self._epoch = claim.epoch
        self._shard = claim.shard
        self._checkpoints = checkpoints

    async def _query(self, statement: str, *values: Any) -> Rows:
        try:
            return await self._sessions.query(statement, *values)
        except (OutcomeUnknown, ClusterRefused) as error:
            raise ClusterUnavailable(
                f"PostgreSQL does not answer: {error}", Retry_After="1"
            ) from None

    async def _current(self, statement: str, *values: Any) -> Rows:
        """Return rows that begin with the epoch and the number of checkpoints, and are not of a
        primary that was replaced: it would not have the last ones."""
        checkpoints = self._checkpoints()
        rows = await self._query(statement, *values)
        if rows and (rows[0][0] != self._epoch or rows[0][1] < checkpoints):
            self._sessions.close()
            raise ClusterUnavailable(
                "PostgreSQL answers as of an earlier time; another node may own the streams.",
                Retry_After="1",
            )
        return rows

    async def by_path(self, path: str) -> list[Row]:
        """Return the row of a stream and those of all of its sources; none if there is none."""
        rows = await self._current(BY_PATH, path, self._shard)
        return [_decoded(row) for row in rows if row[2] is not None]

    async def producer(self, stream_id: int, producer_id: str) -> ProducerState | None:
        rows = await self._current(PRODUCER, stream_id, producer_id, self._shard)
        _, _, epoch, seq, crc = rows[0]
        return None if epoch is None else _state(stream_id, producer_id, epoch, seq, crc)

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, filed: bool
    ) -> list[StreamInfo]:
        statement = LIST_FILED if filed else LIST
        # Paths are ASCII: everything with the prefix sorts below the prefix followed by DEL.
        values = (after, prefix, prefix + "\x7f", limit, self._shard)
        rows = await self._query(statement, *values)
        return [info_from(row) for row in map(tuple, rows)]

    async def list_forks(self, source_id: int, after: str, limit: int) -> list[StreamInfo]:
        rows = await self._query(FORKS, source_id, after, limit)
        return [info_from(row) for row in map(tuple, rows)]

    async def list_producers(
        self, stream_id: int, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        rows = await self._query(LIST_PRODUCERS, stream_id, after, limit)
        return [(id, ProducerState(epoch, seq)) for id, epoch, seq in rows]

    async def sizes(self, after_id: int, limit: int) -> list[tuple[int, str, int]]:
        rows = await self._query(SIZES, after_id, limit, self._shard)
        return [(row[0], row[1], row[2]) for row in rows]

    async def list_meta(self, name: str, after: str, limit: int) -> list[tuple[int, str]]:
        rows = await self._query(META, after, json.dumps(name) + ":", limit, self._shard)
        return [(row[0], row[1]) for row in rows]

    async def untouched(self, since_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        rows = await self._query(UNTOUCHED, since_us, *after, limit, self._shard)
        return [Deadline(*row) for row in rows]

    async def expired(self, now_us: int, after: tuple[int, int], limit: int) -> list[Deadline]:
        rows = await self._query(EXPIRED, now_us, *after, limit, self._shard)
        return [Deadline(*row) for row in rows]

    async def totals(self, excluded: list[int]) -> tuple[int, int]:
        row = (await self._query(TOTALS, excluded, self._shard))[0]
        return row[0], row[1]
