"""The replay of dead letters after a fix: those that pass the current schemas become events, with
the ordinals that they always had. Holds a part of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.config import Pipeline
from penstock.spark.warehouse.delta import write_file
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import (
    EVENTS,
    STATISTICS,
    BatchResult,
    TaskSummary,
    merge_capped,
    validate,
)
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.state import check_tables
from penstock.spark.warehouse.warehouse import Warehouse

_ROWS_AT_ONCE: Final = 2048
_compute: Any = pc


class Replayed(NamedTuple):
    """The number of dead letters that became events, and of those that did not."""

    done: int
    left: int


def replay_dead_letters(pipeline: Pipeline) -> Replayed:
    """Validate every dead letter again; the pipeline itself must not be running."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    check_tables(warehouse, pipeline.types)
    warehouse.open(pipeline.types)
    duck = Duck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
    try:
        return _replay(pipeline, warehouse, duck)
    finally:
        duck.close()
        warehouse.close()


def _replay(pipeline: Pipeline, warehouse: Warehouse, duck: Duck) -> Replayed:
    events = warehouse.events
    number = events.record.batch + 1
    attempt = _Attempt(pipeline, number)
    rows = duck.reader(duck.dead_letters(EVENTS.names), rows=_ROWS_AT_ONCE)
    summary = TaskSummary()
    fixed = (summary.add(events) for batch in rows for events in attempt.fixed(batch))
    prefix = f"{number:08d}"
    written = write_file(
        events.uri,
        EVENTS,
        fixed,
        prefix=prefix,
        statistics=STATISTICS,
        options=warehouse.options,
    )
    if written is not None:
        warehouse.check()
        result = BatchResult.of([summary.row(written)])
        events.add_replayed(result, remaining=attempt.remaining, dead=attempt.dead)
        duck.refresh()
        for entity in summary.types:
            fold_here(duck, entity, events.record)
    return Replayed(0 if written is None else written.rows, attempt.remaining)


class _Attempt:
    """Validates dead letters, and counts those that are still invalid."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        self.remaining = 0
        self.dead: set[str] | None = set()
        self._types = pipeline.types
        self._number = number
        self._now = datetime.now(UTC)

    def fixed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that are valid now, as rows of events."""
        batch = batch.cast(EVENTS)
        # A message without a type is no event, whatever the schemas are.
        refused = batch.filter(batch["type"].is_valid())
        count = refused.num_rows
        tried = _with(
            refused,
            kind=pa.repeat(pa.scalar("change"), count),
            error=pa.nulls(count, pa.string()),
        )
        kind, _, version = validate(tried, self._types)
        passes = _compute.equal(kind, "change")
        valid = _with(
            tried,
            schema_version=version,
            replayed=pa.repeat(pa.scalar(True), count),
            batch=pa.repeat(pa.scalar(self._number, pa.int64()), count),
            ingested=pa.repeat(pa.scalar(self._now, EVENTS.field("ingested").type), count),
        ).filter(passes)
        still = refused["stream"].filter(_compute.invert(passes)).unique().to_pylist()
        self.dead = merge_capped(self.dead, still)
        self.remaining += batch.num_rows - valid.num_rows
        if valid.num_rows:
            yield valid


def _with(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """A batch with some columns replaced."""
    arrays = [columns[name] if name in columns else rows[name] for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def recount(warehouse: Warehouse, duck: Duck) -> None:
    """Count the dead letters again if the streams that have some are not known: once a run, if an
    earlier version wrote the tables or there were too many streams to be listed."""
    events = warehouse.events
    if events.record.dead_streams is not None:
        return
    query = (
        "SELECT d.stream, count(*) AS letters, count(d.type) AS refused "
        f"FROM ({duck.dead_letters()}) d GROUP BY d.stream"
    )
    rows = duck.table(query).to_pylist()
    dead = merge_capped((), (row["stream"] for row in rows if row["refused"]))
    record = msgspec.structs.replace(
        events.record,
        invalid=sum(row["letters"] for row in rows),
        dead=None if dead is None else sorted(dead),
    )
    if record != events.record:
        events.note(record)
