"""Vacuum: removes what a pipeline leaves behind (files of old versions, files of tasks that were
killed, old entries of the tables' logs) once no reader can need it.

Only folders of tables are read. No row changes: state as of a batch and history come from the rows
of **events**, not from old versions.
"""

from __future__ import annotations

import msgspec

from penstock import limits
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.spark.config import Pipeline
from penstock.spark.warehouse.events import EventsCommit
from penstock.spark.warehouse.warehouse import Warehouse


def is_due(record: EventsCommit, *, keep_hours: int, now_s: int) -> bool:
    """Whether the next vacuum is due; 0 hours switch it off."""
    return keep_hours > 0 and now_s - record.tidied_s >= limits.PIPELINE_TIDY_INTERVAL_S


def vacuum_if_due(warehouse: Warehouse, *, keep_hours: int, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Vacuum all tables if it is due; return whether it was. For the writer of the warehouse."""
    now_s = clock.now_us() // 1_000_000
    if not is_due(warehouse.events.record, keep_hours=keep_hours, now_s=now_s):
        return False
    warehouse.check()
    for table in warehouse.tables():
        table.vacuum(keep_hours, keep=keep_hours)
    warehouse.check()
    warehouse.events.note(msgspec.structs.replace(warehouse.events.record, tidied_s=now_s))
    return True


def vacuum(
    pipeline: Pipeline, *, hours: int | None = None, dry_run: bool = False
) -> dict[str, int]:
    """Vacuum now, and return the number of removed files by table.

    The pipeline must not be running: it vacuums its tables itself. `hours` defaults to the
    pipeline's `keep_hours`.
    """
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    keep = pipeline.run.keep_hours or limits.PIPELINE_KEEP_HOURS
    age_hours = keep if hours is None else hours
    if not dry_run:
        warehouse.open(pipeline.types)
    try:
        return {
            table.uri.removeprefix(f"{warehouse.path}/"): len(
                table.vacuum(age_hours, keep=keep, dry_run=dry_run)
            )
            for table in warehouse.tables()
        }
    finally:
        warehouse.close()
