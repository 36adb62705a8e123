"""The fold: a state table and the changes after it, written as the new state table. On the driver
while the table is small, else in tasks of Spark; the rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock import limits
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import ParquetFile, write_file
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import STATE_STATISTICS

if TYPE_CHECKING:
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.events import EventsCommit
    from penstock.spark.warehouse.spark_sql import SparkViews

WRITTEN: Final = pa.schema(
    [
        ("name", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("statistics", pa.string()),
    ]
)
WRITTEN_DDL: Final = "name STRING, size BIGINT, rows BIGINT, statistics STRING"


def fold_here(duck: Duck, entity: str, record: EventsCommit) -> StateTable:
    """Fold in this process, one key range after another."""
    state = duck.stored(entity)
    written: list[ParquetFile] = []
    for merged in duck.merged_in_order(entity):
        rows = sql.without_tombstones(merged, record.dead_streams)
        reader = duck.reader(f"SELECT k.* FROM ({rows}) k ORDER BY k._key, k._stream")
        written += _buckets(state, reader, record.batch)
    state.commit(written, record)
    return state


def fold_in_spark(spark: SparkViews, entity: str, record: EventsCommit) -> StateTable:
    """Fold in tasks of Spark: rows are shuffled once, by key, and each task writes a file."""
    state, rows = spark.together(entity)
    state.table.create({})
    count = record.types.get(entity)
    most = state.folded.rows + (0 if count is None else count.changes - state.folded.changes)
    buckets = min(max(-(-most // limits.PIPELINE_BUCKET_ROWS), 1), limits.PIPELINE_BUCKETS_MAX)
    shuffled = spark.shuffled(rows, buckets)
    latest = sql.latest(shuffled, spark.cuts())
    folded = sql.without_tombstones(latest, record.dead_streams)
    columns = spark.session.sql(folded).select(*state.schema.names)
    write = bucket_writer(state.table.uri, state.schema, record.batch, state.options)
    written = columns.mapInArrow(write, WRITTEN_DDL).collect()
    state.commit([ParquetFile(*row) for row in written], record)
    return state


def bucket_writer(
    uri: str, schema: pa.Schema, batch: int, options: Mapping[str, str] | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that writes the rows of a task to a file of a state table."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = _write(uri, schema, batches, batch, options)
        if written is not None:
            yield pa.RecordBatch.from_pylist([written._asdict()], schema=WRITTEN)

    return write


def _write(
    uri: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    batch: int,
    options: Mapping[str, str] | None,
) -> ParquetFile | None:
    rows = (batch_rows.cast(schema) for batch_rows in batches)
    return write_file(
        uri, schema, rows, prefix=f"state-{batch:08d}", statistics=STATE_STATISTICS, options=options
    )


def _buckets(
    state: StateTable, reader: Iterable[pa.RecordBatch], batch: int
) -> Iterator[ParquetFile]:
    """Write rows that are ordered by key to files of so many rows: each file has a key range."""
    state.table.create({})
    pending: list[pa.RecordBatch] = []
    rows = 0
    for part in reader:
        pending.append(part)
        rows += part.num_rows
        if rows >= limits.PIPELINE_BUCKET_ROWS:
            yield from filter(None, [_bucket(state, pending, batch)])
            pending, rows = [], 0
    yield from filter(None, [_bucket(state, pending, batch)])


def _bucket(state: StateTable, pending: list[pa.RecordBatch], batch: int) -> ParquetFile | None:
    return _write(state.table.uri, state.schema, pending, batch, state.options)
