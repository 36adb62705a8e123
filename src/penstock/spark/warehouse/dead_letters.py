"""The replay of dead letters after a fix, of the schemas or of their values: those that pass become
events, with the ordinals that they always had. Holds a part of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import QueryFailed
from penstock.spark.config import Pipeline
from penstock.spark.expectations import evaluate
from penstock.spark.warehouse import sql
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
from penstock.spark.warehouse.rebuild import check_tables, switch_rebuilt
from penstock.spark.warehouse.warehouse import Warehouse

_ROWS_AT_ONCE: Final = 2048
_compute: Any = pc


class Selection(NamedTuple):
    """Which dead letters are meant: those that have all of these values; None means any."""

    reason: str | None = None
    type: str | None = None
    stream: str | None = None
    key: str | None = None

    def condition(self, alias: str) -> str:
        """SQL for whether a dead letter is meant."""
        columns = zip(("error", "type", "stream", "key"), self, strict=True)
        conditions = [
            f"{alias}.{name} = {sql.literal(value)}" for name, value in columns if value is not None
        ]
        return " AND ".join(conditions) or "TRUE"


EVERYTHING: Final = Selection()


class Replayed(NamedTuple):
    """The number of dead letters that became events, of those that are left (of all, not only the
    selected ones), and of those that were discarded."""

    done: int
    left: int
    discarded: int = 0


def replay_dead_letters(
    pipeline: Pipeline,
    selection: Selection = EVERYTHING,
    *,
    fix: str | None = None,
    discard: bool = False,
    dry_run: bool = False,
) -> Replayed:
    """Validate dead letters again; the pipeline itself must not be running.

    `fix` is an SQL expression over a dead letter that gives its new value, as JSON. With `discard`
    they are no longer dead letters, and no events either. With `dry_run` nothing is changed.
    """
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    check_tables(warehouse, pipeline.types)
    if not dry_run:
        warehouse.open(pipeline.types)
        switch_rebuilt(warehouse, pipeline.types)
    duck = Duck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
    try:
        attempt = _Attempt(pipeline, warehouse.events.record.batch + 1, fix, discard=discard)
        letters = f"SELECT d.* FROM ({duck.dead_letters(EVENTS.names)}) d"
        rows = duck.reader(f"{letters} WHERE {selection.condition('d')}", rows=_ROWS_AT_ONCE)
        if dry_run:
            done = sum(part.num_rows for batch in rows for part in attempt.settled(batch))
            return _replayed(done, warehouse.events.record.invalid, discard=discard)
        return _replay(warehouse, duck, attempt, rows, is_whole=selection == EVERYTHING)
    finally:
        duck.close()
        warehouse.close()


def _replayed(done: int, before: int, *, discard: bool) -> Replayed:
    return Replayed(0 if discard else done, max(before - done, 0), done if discard else 0)


def _replay(
    warehouse: Warehouse,
    duck: Duck,
    attempt: _Attempt,
    rows: Iterable[pa.RecordBatch],
    *,
    is_whole: bool,
) -> Replayed:
    events = warehouse.events
    before = events.record.invalid
    summary = TaskSummary()
    settled = (summary.add(events) for batch in rows for events in attempt.settled(batch))
    written = write_file(
        events.uri,
        EVENTS,
        settled,
        prefix=f"{attempt.number:08d}",
        statistics=STATISTICS,
        options=warehouse.options,
    )
    done = 0 if written is None else written.rows
    left = attempt.remaining if is_whole else max(before - done, 0)
    if written is not None:
        warehouse.check()
        result = BatchResult.of([summary.row(written)])
        # Of a part it is not known whether its streams have others.
        dead = attempt.dead if is_whole else events.record.dead_streams
        events.add_replayed(result, remaining=left, dead=dead)
        duck.refresh()
        for entity in summary.types:
            fold_here(duck, entity, events.record)
    return _replayed(done, left + done, discard=attempt.discard)


class _Attempt:
    """Settles dead letters: validates or discards them, and counts those that are left."""

    def __init__(self, pipeline: Pipeline, number: int, fix: str | None, *, discard: bool) -> None:
        self.number = number
        self.discard = discard
        self.remaining = 0
        self.dead: set[str] | None = set()
        self._pipeline = pipeline
        self._fix = fix
        self._now = datetime.now(UTC)

    def settled(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that are no dead letters any more, as rows of events."""
        batch = batch.cast(EVENTS)
        if self.discard:
            kind = pa.repeat(pa.scalar("discarded"), batch.num_rows)
            yield self._as_events(batch, kind=kind)
            return
        # A message without a type is no event, whatever the schemas are.
        refused = batch.filter(batch["type"].is_valid())
        count = refused.num_rows
        tried = _with(
            refused,
            kind=pa.repeat(pa.scalar("change"), count),
            error=pa.nulls(count, pa.string()),
            value=refused["value"] if self._fix is None else _fixed(refused, self._fix),
        )
        checked = validate(tried, self._pipeline.types, self._pipeline.expect, is_replay=True)
        passes = _compute.equal(checked.kind, "change")
        # A fix without a value leaves the letter as it is; a delete has none anyway.
        passes = _compute.and_(
            passes,
            _compute.or_(tried["value"].is_valid(), _compute.equal(tried["operation"], "delete")),
        )
        valid = self._as_events(tried, kind=tried["kind"], version=checked.version).filter(passes)
        still = refused["stream"].filter(_compute.invert(passes)).unique().to_pylist()
        self.dead = merge_capped(self.dead, still)
        self.remaining += batch.num_rows - valid.num_rows
        if valid.num_rows:
            yield valid

    def _as_events(
        self, rows: pa.RecordBatch, *, kind: pa.Array, version: pa.Array | None = None
    ) -> pa.RecordBatch:
        count = rows.num_rows
        return _with(
            rows,
            kind=kind,
            error=pa.nulls(count, pa.string()),
            schema_version=rows["schema_version"] if version is None else version,
            replayed=pa.repeat(pa.scalar(True), count),
            batch=pa.repeat(pa.scalar(self.number, pa.int64()), count),
            ingested=pa.repeat(pa.scalar(self._now, EVENTS.field("ingested").type), count),
        )


def _fixed(rows: pa.RecordBatch, fix: str) -> pa.Array:
    """The values that an SQL expression makes of rows; each has to be JSON."""
    table = pa.Table.from_batches([rows])
    [values] = evaluate(table, {"The fix": f"CAST(({fix}) AS VARCHAR)"})
    for value in values.to_pylist():
        if value is not None:
            try:
                msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise QueryFailed(
                    f"The fix gives {value[:100]!r}, which is not JSON: {error}. Use "
                    'functions such as json_merge_patch(value, \'{"name": "unknown"}\').'
                ) from None
    return values.combine_chunks().cast(pa.string())


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
