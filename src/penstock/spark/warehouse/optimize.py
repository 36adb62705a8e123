"""Optimize: fewer and larger files for the events, on request ordered by columns that readers
filter by. No row changes.
"""

from __future__ import annotations

from penstock.spark.config import Pipeline
from penstock.spark.warehouse.warehouse import Warehouse


def optimize_if_due(warehouse: Warehouse, pipeline: Pipeline) -> bool:
    """Optimize the events every so many batches; return whether it was done. For the writer."""
    every = pipeline.run.optimize_batches
    if not every or warehouse.events.record.batch % every:
        return False
    warehouse.events.compact(pipeline.run.cluster)
    return True


def optimize(pipeline: Pipeline) -> tuple[int, int]:
    """Optimize the events now, and return the number of files before and after. The pipeline must
    not be running."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    warehouse.open(pipeline.types)
    try:
        before = len(warehouse.events.files())
        warehouse.events.compact(pipeline.run.cluster)
        warehouse.events.refresh()
        return before, len(warehouse.events.files())
    finally:
        warehouse.close()
