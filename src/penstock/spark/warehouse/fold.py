"""Folding: a state table and what came since, written as the new state table. On the driver while
it is small, in Spark's tasks when it is not; the rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock import limits
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import Written, write_file
from penstock.spark.warehouse.state import STATISTICS, StateTable

if TYPE_CHECKING:
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.events import Record
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


def fold_here(duck: Duck, entity: str, record: Record) -> StateTable:
    """Fold in this process, one range of keys after the other."""
    state = duck.stored(entity)
    written: list[Written] = []
    for merged in duck.merged_in_order(entity):
        kept = sql.without_tombstones(merged, record.dead_streams)
        reader = duck.reader(f"SELECT k.* FROM ({kept}) k ORDER BY k._key, k._stream")
        written += _buckets(state, reader, record.batch)
    state.commit(written, record)
    return state


def fold_in_spark(spark: SparkViews, entity: str, record: Record) -> StateTable:
    """Fold in Spark's tasks: rows are shuffled once, by key, and each task writes its keys."""
    state, rows = spark.together(entity)
    state.table.create({})
    count = record.types.get(entity)
    most = state.folded.rows + (0 if count is None else count.changes - state.folded.changes)
    buckets = min(max(-(-most // limits.PIPELINE_BUCKET_ROWS), 1), limits.PIPELINE_BUCKETS_MAX)
    shuffled = spark.shuffled(rows, buckets)
    latest = sql.latest(shuffled, spark.cuts())
    kept = sql.without_tombstones(latest, record.dead_streams)
    columns = spark.session.sql(kept).select(*state.schema.names)
    write = bucket_writer(state.table.uri, state.schema, record.batch, state.options)
    written = columns.mapInArrow(write, WRITTEN_DDL).collect()
    state.commit([Written(*row) for row in written], record)
    return state


def bucket_writer(
    uri: str, schema: pa.Schema, batch: int, options: Mapping[str, str] | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
) -> Written | None:
    made = (each.cast(schema) for each in batches)
    return write_file(
        uri, schema, made, prefix=f"state-{batch:08d}", statistics=STATISTICS, options=options
    )


def _buckets(state: StateTable, reader: Iterable[pa.RecordBatch], batch: int) -> Iterator[Written]:
    """Rows in the order of their keys, so many to a file: each file has a range of keys."""
    state.table.create({})
    held: list[pa.RecordBatch] = []
    rows = 0
    for each in reader:
        held.append(each)
        rows += each.num_rows
        if rows >= limits.PIPELINE_BUCKET_ROWS:
            yield from filter(None, [_bucket(state, held, batch)])
            held, rows = [], 0
    yield from filter(None, [_bucket(state, held, batch)])


def _bucket(state: StateTable, held: list[pa.RecordBatch], batch: int) -> Written | None:
    return _write(state.table.uri, state.schema, held, batch, state.options)
