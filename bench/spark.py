"""The Spark benchmark: `python -m bench.spark`, one run and one table.

The source beside prebuilt Arrow batches and rows; the pipeline beside files and a query that does
nothing; how long a start takes; how a batch grows with the state; memory over many batches; one and
two executors.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    arguments,
    spark_growth,
    spark_latency,
    spark_pipeline,
    spark_source,
    spark_start,
    table,
    tools,
)
from bench.rounds import note
from bench.spark_rivals import Nothing, Prebuilt, RowByRow
from bench.table import Row
from penstock.spark.sessions.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADS = ("metric", "ours", "reference", "ratio", "target", "met")
METHOD = (
    "One machine for server, driver, workers and executors. Rounds alternate, the first does not "
    "count, medians are compared. Micro-batches: what Spark says a trigger took, with the same "
    "trigger for all and each batch fed when the one before is over."
)
GROUPS = ("start", "source", "latency", "catch-up", "memory", "growth", "scaling")


def measure_all(
    folder: Path, rounds: int, groups: list[str], scale: int, busy: list[float]
) -> list[Row]:
    """All rows; before each group the share of the processors that others use is taken."""
    rows: list[Row] = []

    def measured(group: str, work: Callable[[], list[Row]]) -> None:
        if group not in groups:
            return
        busy.append(tools.busy_share())
        note(f"  {group}, {busy[-1]:.0%} of the processors in use by others")
        try:
            rows.extend(work())
        except Exception as error:  # noqa: BLE001 - the other groups are worth something still
            note(f"    {error!r}")
            rows.append(table.failed(group, " ".join(str(error).split())))

    sizes = (100_000 // scale, 1_000_000 // scale, 10_000_000 // scale)
    # Before there is a Java process, which would take its share.
    measured("growth", lambda: spark_growth.measure(sizes))
    measured("start", lambda: spark_start.measure(rounds))
    if {"source", "latency", "catch-up", "memory"} & set(groups):
        spark = _session()
        batches = 20 // min(scale, 2)
        measured("latency", lambda: spark_latency.measure(spark, rounds, batches))
        many = spark_latency.MEMORY_BATCHES // min(scale, 4)
        measured("memory", lambda: spark_latency.measure_memory(spark, many))
        events = 1_000_000 // scale
        measured("catch-up", lambda: spark_pipeline.measure_catch_up(spark, folder, rounds, events))
        measured("source", lambda: spark_source.measure(spark, rounds, events))
        spark.stop()
    measured("scaling", lambda: spark_pipeline.measure_scaling(rounds, 500_000 // scale))
    return rows


def _session() -> SparkSession:
    spark = session("bench", master="local[2]", memory="2g")
    spark.sparkContext.setLogLevel("FATAL")  # a query that is stopped complains in pages
    for source in (Prebuilt, RowByRow, Nothing):
        spark.dataSource.register(source)
    return spark


def main() -> int:
    options = arguments.parse("bench.spark", __doc__, GROUPS, rounds=3)
    # Turned into an exception, so that servers are stopped and data folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    # Spark's workers import the rivals, and the package that is measured, from here.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(tools.PROJECT), str(tools.PROJECT / "src")))
    groups = [name for name in options.only.split(",") if name] or list(GROUPS)
    started = time.monotonic()
    busy: list[float] = []
    with tools.work_folder() as folder:
        rounds, scale = (1, 10) if options.quick else (options.rounds, 1)
        rows = measure_all(Path(folder), rounds, groups, scale, busy)
    busy.append(tools.busy_share())
    share = statistics.median(busy)
    good = table.publish(
        "spark",
        rows,
        HEADS,
        {"processor time taken by other programs": f"{share:.0%} (at most {max(busy):.0%})"},
        took_s=time.monotonic() - started,
        method=METHOD,
        disturbed=share > tools.DISTURBED_SHARE,
    )
    return 0 if good or not options.strict else 1


if __name__ == "__main__":
    sys.exit(main())
