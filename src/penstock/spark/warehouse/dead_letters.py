"""Dead letters tried again after a fix: those that the schemas of today take become events, at the
place in their stream where they always were. Works on a piece of them at a time.
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
from penstock.spark.warehouse.events import EVENTS, STATISTICS, Appended, Told, checked, few
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.state import check_tables
from penstock.spark.warehouse.warehouse import Warehouse

_ROWS_AT_ONCE: Final = 2048
_compute: Any = pc


class Replayed(NamedTuple):
    """How many dead letters are events now, and how many are what they were."""

    done: int
    left: int


def replay_dead_letters(pipeline: Pipeline) -> Replayed:
    """Try every dead letter again; the pipeline itself must not be running."""
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
    told = Told()
    fixed = (told.see(made) for batch in rows for made in attempt.fixed(batch))
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
        appended = Appended.of([told.row(written)])
        events.mend(appended, left=attempt.left, dead=attempt.dead)
        duck.refresh()
        for entity in told.types:
            fold_here(duck, entity, events.record)
    return Replayed(0 if written is None else written.rows, attempt.left)


class _Attempt:
    """Tries dead letters, and counts those that it cannot help."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        self.left = 0
        self.dead: set[str] | None = set()
        self._types = pipeline.types
        self._number = number
        self._now = datetime.now(UTC)

    def fixed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that pass now, as the events that they are."""
        batch = batch.cast(EVENTS)
        # Without a type it is no event at all, whatever the schemas say.
        refused = batch.filter(batch["type"].is_valid())
        count = refused.num_rows
        tried = _with(
            refused,
            kind=pa.repeat(pa.scalar("change"), count),
            error=pa.nulls(count, pa.string()),
        )
        kind, _, version = checked(tried, self._types)
        passes = _compute.equal(kind, "change")
        made = _with(
            tried,
            schema_version=version,
            replayed=pa.repeat(pa.scalar(True), count),
            batch=pa.repeat(pa.scalar(self._number, pa.int64()), count),
            ingested=pa.repeat(pa.scalar(self._now, EVENTS.field("ingested").type), count),
        ).filter(passes)
        still = refused["stream"].filter(_compute.invert(passes)).unique().to_pylist()
        self.dead = few(self.dead, still)
        self.left += batch.num_rows - made.num_rows
        if made.num_rows:
            yield made


def _with(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """A batch with other values in some columns."""
    arrays = [columns[name] if name in columns else rows[name] for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def recount(warehouse: Warehouse, duck: Duck) -> None:
    """Count the dead letters anew if it is not known which streams have some: once a run, where an
    earlier version has written the tables, or they are too many to be named."""
    events = warehouse.events
    if events.record.dead_streams is not None:
        return
    query = (
        "SELECT d.stream, count(*) AS letters, count(d.type) AS refused "
        f"FROM ({duck.dead_letters()}) d GROUP BY d.stream"
    )
    rows = duck.table(query).to_pylist()
    dead = few((), (row["stream"] for row in rows if row["refused"]))
    record = msgspec.structs.replace(
        events.record,
        invalid=sum(row["letters"] for row in rows),
        dead=None if dead is None else sorted(dead),
    )
    if record != events.record:
        events.note(record)
