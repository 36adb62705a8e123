"""Dead letters tried again after a fix: those that the schemas of today take become events, at the
place in their stream where they always were.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.spark.duck import Duck
from penstock.spark.events_table import EVENTS, STATISTICS, WRITTEN, Appended, Told
from penstock.spark.fold import fold_here
from penstock.spark.pipeline_config import Pipeline
from penstock.spark.tables import write_file
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import Warehouse


class Replayed(NamedTuple):
    """How many dead letters are events now, and how many are what they were."""

    done: int
    left: int


def replay_dead_letters(pipeline: Pipeline) -> Replayed:
    """Try every dead letter again; the pipeline itself must not be running."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    warehouse.open()
    duck = Duck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
    try:
        rows = duck.sql(
            "SELECT e.* FROM events e JOIN dead_letters d ON e.stream = d.stream "
            "AND e.generation = d.generation AND e.ordinal = d.ordinal WHERE e.kind = 'invalid'"
        ).to_pylist()
        number = warehouse.events.record.batch + 1
        fixed = _fixed(rows, pipeline.types, number)
        if fixed:
            _append(warehouse, fixed, number)
            duck.refresh()
            for entity in {row["type"] for row in fixed}:
                fold_here(duck, entity, warehouse.events.record)
        return Replayed(len(fixed), len(rows) - len(fixed))
    finally:
        duck.close()
        warehouse.close()


def _fixed(
    rows: list[dict[str, Any]], types: Mapping[str, TypeSchema], number: int
) -> list[dict[str, Any]]:
    """The rows that pass now, as the events that they are."""
    found = []
    now = datetime.now(UTC)
    for row in rows:
        if row["type"] is None or row["operation"] is None:
            continue  # no event at all, whatever the schemas say
        schema = types.get(row["type"])
        if schema is not None and schema.problems([row["value"]])[0] is not None:
            continue
        version = None if schema is None else schema.version
        told = {"kind": "change", "error": None, "schema_version": version, "replayed": True}
        found.append({**row, **told, "batch": number, "ingested": now})
    return found


def _append(warehouse: Warehouse, rows: list[dict[str, Any]], number: int) -> None:
    told = Told()
    batch = told.see(pa.RecordBatch.from_pylist(rows, schema=EVENTS))
    events = warehouse.events
    written = write_file(
        events.uri,
        EVENTS,
        [batch],
        prefix=f"{number:08d}",
        statistics=STATISTICS,
        options=warehouse.options,
    )
    assert written is not None
    row = pa.RecordBatch.from_pylist([told.row(written)], schema=WRITTEN).to_pylist()
    warehouse.check()
    events.add(Appended.of(row))
