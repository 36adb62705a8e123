"""Housekeeping: what a pipeline leaves behind (files of old versions, files of tasks that were
killed, old entries of the tables' logs) is removed once no reader can need it.

Only the tables' own folders are looked at. What the rows say does not change: state as of a batch
and history come from the rows of **events**, not from old versions.
"""

from __future__ import annotations

import msgspec

from penstock import limits
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.spark.config import Pipeline
from penstock.spark.warehouse.events import Record
from penstock.spark.warehouse.warehouse import Warehouse


def is_due(record: Record, *, keep_hours: int, now_s: int) -> bool:
    """Whether it is time to tidy up; never with 0 hours, which switches it off."""
    return keep_hours > 0 and now_s - record.tidied_s >= limits.PIPELINE_TIDY_INTERVAL_S


def tidy_now_and_then(
    warehouse: Warehouse, *, keep_hours: int, clock: Clock = SYSTEM_CLOCK
) -> bool:
    """Tidy up if it is time to; tells whether it was. For the writer of the warehouse."""
    now_s = clock.now_us() // 1_000_000
    if not is_due(warehouse.events.record, keep_hours=keep_hours, now_s=now_s):
        return False
    warehouse.check()
    for table in warehouse.tables():
        table.tidy(keep_hours, keep=keep_hours)
    warehouse.check()
    warehouse.events.note(msgspec.structs.replace(warehouse.events.record, tidied_s=now_s))
    return True


def vacuum(
    pipeline: Pipeline, *, hours: int | None = None, dry_run: bool = False
) -> dict[str, int]:
    """Tidy up at once; tells the number of files by table. The pipeline must not be running: it
    does this by itself. Without `hours`: as the pipeline keeps them."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    keep = pipeline.run.keep_hours or limits.PIPELINE_KEEP_HOURS
    chosen = keep if hours is None else hours
    if not dry_run:
        warehouse.open(pipeline.types)
    try:
        return {
            table.uri.removeprefix(f"{warehouse.path}/"): len(
                table.tidy(chosen, keep=keep, dry_run=dry_run)
            )
            for table in warehouse.tables()
        }
    finally:
        warehouse.close()
