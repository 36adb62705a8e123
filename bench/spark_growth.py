"""A batch of 10,000 random changes into states of different sizes: events committed, and the state
folded when a pipeline would. What a fold costs is spread over the batches that led to it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench import tools
from bench.rounds import note
from bench.spark_events import STREAM, TYPES
from bench.table import Row, compared
from penstock import limits
from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import BatchResult, writer_of
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHANGES = 10_000
BATCHES_MIN = 8
SEED_AT_ONCE = 1_000_000
MOST = 3.0
_compute: Any = pc


def measure(sizes: tuple[int, int, int]) -> list[Row]:
    """The last size beside the one before is what was promised; the first is shown."""
    found = [_amortised(size) for size in sizes]
    words = [f"batch of {CHANGES:,} changes, {size:,} keys of state" for size in sizes]
    return [
        compared(f"{words[0]}, beside {sizes[1]:,}", found[0], found[1], _milliseconds),
        compared(
            f"{words[2]}, beside {sizes[1]:,}", found[2], found[1], _milliseconds, at_most=MOST
        ),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _amortised(size: int) -> float:
    """Seconds a batch, over whole turns from one fold to the next."""
    with tools.work_folder() as folder:
        warehouse = Warehouse(str(Path(folder) / "warehouse"))
        warehouse.open()
        grown = _Grown(warehouse)
        began = time.perf_counter()
        grown.seed(size)
        note(f"    {size:,} keys, seeded in {time.perf_counter() - began:.0f} s")
        batches = folds = 0
        began = time.perf_counter()
        while batches < BATCHES_MIN or not grown.is_folded:
            batches += 1
            folds += grown.batch(size)
        passed = time.perf_counter() - began
        grown.close()
        note(f"    {passed / batches:.3f} s a batch, {folds} folds in {batches} batches")
        return passed / batches


class _Grown:
    """A warehouse that is written to as a pipeline does, without one."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse, self._ordinal = warehouse, 0
        self._chance = np.random.default_rng(1)
        self._duck = Duck(warehouse, TYPES)

    def close(self) -> None:
        self._duck.close()
        self._warehouse.close()

    def seed(self, size: int) -> None:
        for start in range(0, size, SEED_AT_ONCE):
            self._append(np.arange(start, min(start + SEED_AT_ONCE, size)))
        self._fold()

    @property
    def is_folded(self) -> bool:
        return not self._duck.stored("user").is_behind(self._warehouse.events.record)

    def batch(self, size: int) -> int:
        """One batch; whether it has led to a fold."""
        self._append(self._chance.integers(0, size, CHANGES))
        record = self._warehouse.events.record
        rows, percent = limits.PIPELINE_FOLD_ROWS, limits.PIPELINE_FOLD_PERCENT
        if not self._duck.stored("user").is_due(record, rows=rows, percent=percent):
            return 0
        self._fold()
        return 1

    def _fold(self) -> None:
        self._duck.refresh()
        fold_here(self._duck, "user", self._warehouse.events.record)

    def _append(self, keys: NDArray[Any]) -> None:
        self._warehouse.check()
        events = self._warehouse.events
        write = writer_of(events.uri, TYPES, events.record.batch + 1, datetime.now(UTC))
        made = write([self._rows(keys)])
        appended = BatchResult.of(row for each in made for row in each.to_pylist())
        events.append(appended, query="bench", batch=events.record.batch, positions=None)

    def _rows(self, keys: NDArray[Any]) -> pa.RecordBatch:
        count = len(keys)
        ordinals = pa.array(range(self._ordinal, self._ordinal + count), pa.int64())
        self._ordinal += count
        names = pa.array(keys).cast(pa.string())
        value = ('{"id":"', names, '","name":"name ', names, '","city":"c"}', "")
        known = {
            "stream": pa.repeat(STREAM, count),
            "generation": pa.repeat(pa.scalar(1, pa.int64()), count),
            "position": ordinals,
            "seq": ordinals,
            "offset": ordinals.cast(pa.string()),
            "kind": pa.repeat("change", count),
            "type": pa.repeat("user", count),
            "key": names,
            "operation": pa.repeat("upsert", count),
            "value": _compute.binary_join_element_wise(*value),
        }
        columns = [known.get(name, pa.nulls(count, pa.string())) for name in STATE_ARROW.names]
        return pa.RecordBatch.from_arrays(columns, schema=STATE_ARROW)
