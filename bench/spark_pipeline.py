"""Catching up: a stream into `events` and `state`, beside Spark reading the same events from local
JSON files with the same work after that. And the same on one and on two executors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bench import spark_events, tools
from bench.processor_time import processor_s
from bench.rounds import Sample, interleave, median, ratios
from bench.spark_events import STREAM, TYPES
from bench.spark_source import to_nowhere
from bench.table import Row, compared, per_second
from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.sessions.session import session
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import WRITTEN_DDL, BatchResult, writer_of
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.warehouse import Warehouse
from tests.helpers.server import running_server
from tests.spark.cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON_DDL = "headers STRUCT<operation: STRING>, type STRING, key STRING, value STRING, seq BIGINT"
OF_FILES = 1.0


def measure_catch_up(spark: SparkSession, home: Path, rounds: int, events: int) -> list[Row]:
    keys = events // 10
    files = home / "json"
    files.mkdir()
    with running_server() as server:
        spark_events.fill(server.url, events, keys, files)

        def served(folder: Path) -> None:
            PipelineRun(spark_events.pipeline(server.url, folder), spark).run(once=True)

        def filed(folder: Path) -> None:
            _from_files(spark, files, Warehouse(str(folder)))

        def timed(work: Callable[[Path], None], number: int) -> Sample:
            with tools.work_folder() as folder:
                pids = os.getpid(), server.process.pid
                began, used = time.perf_counter(), processor_s(*pids)
                work(Path(folder) / "warehouse")
                passed_s, used_s = time.perf_counter() - began, processor_s(*pids) - used
                return {"events_s": events / passed_s, "events_cpu_s": events / used_s}

        found = interleave([("ours", served), ("files", filed)], timed, rounds=rounds)
    return [
        compared(
            f"catch-up of {events:,} events, {keys:,} keys, beside local JSON files{how}",
            median(found["ours"], key),
            median(found["files"], key),
            per_second,
            at_least=OF_FILES,
            samples={"ours": found["ours"], "reference": found["files"]},
            by_round=ratios(found["ours"], found["files"], key),
        )
        for key, how in (("events_s", ""), ("events_cpu_s", ", by processor time"))
    ]


def _from_files(spark: SparkSession, folder: Path, warehouse: Warehouse) -> None:
    """The same work after the source as in the pipeline."""
    warehouse.open()
    rows = spark.read.schema(JSON_DDL).json(str(folder))
    place = {"stream": f"'{STREAM}'", "generation": "1L", "position": "seq * 100"}
    known = {**place, "kind": "'change'", "seq": "seq", "type": "type", "key": "key"}
    known |= {"value": "value", "operation": "headers.operation", "offset": "CAST(seq AS STRING)"}
    empty = "CAST(NULL AS STRING)"
    rows = rows.select(*(f.expr(known.get(name, empty)).alias(name) for name in STATE_ARROW.names))
    events = warehouse.events
    write = writer_of(events.uri, TYPES, events.record.batch + 1, datetime.now(UTC))
    written = rows.mapInArrow(write, WRITTEN_DDL).collect()
    appended = BatchResult.of(row.asDict() for row in written)
    events.append(appended, query="bench", batch=0, positions=None)
    duck = Duck(warehouse, TYPES)
    fold_here(duck, "user", warehouse.events.record)
    duck.close()
    warehouse.close()


def measure_scaling(rounds: int, events: int) -> list[Row]:
    """No other Spark session may run. An executor is held to one processor; server and driver have
    their share of both.
    """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with running_server() as server, standalone_cluster(held=True) as master:
        size = spark_events.fill(server.url, events, events // 10)
        options = {"url": server.url, "streams": STREAM, "partitionBytes": str(size // 8 + 1)}

        def timed(executors: int, number: int) -> Sample:
            spark = _on_cluster(master, executors)
            try:
                rows = spark.read.format("durable_streams").options(**options).load()
                to_nowhere(rows)  # starts workers and compiles code
                source_s = to_nowhere(rows)
                pipeline_s = _in_tasks(spark, server.url)
            finally:
                spark.stop()
            return {"source": events / source_s, "pipeline": events / pipeline_s}

        found = interleave([("one", 1), ("two", 2)], timed, rounds=rounds, warm_up=False)
    return [
        compared(
            f"{name}, {events:,} events, on two executors of one core beside one",
            median(found["two"], name),
            median(found["one"], name),
            per_second,
            samples=found,
            by_round=ratios(found["two"], found["one"], name),
        )
        for name in ("source", "pipeline")
    ]


def _in_tasks(spark: SparkSession, url: str) -> float:
    """How long a pipeline takes that leaves all it can to tasks, in seconds."""
    with tools.work_folder() as folder:
        chosen = spark_events.pipeline(
            url, Path(folder) / "warehouse", source={"min_partitions": 8}, driver_rows=0
        )
        began = time.perf_counter()
        PipelineRun(chosen, spark).run(once=True)
        return time.perf_counter() - began


def _on_cluster(master: str, executors: int) -> SparkSession:
    spark = session(
        "bench",
        master=master,
        memory="1g",
        config={
            "spark.cores.max": str(executors),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        },
    )
    counted = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + 60
    while counted.getExecutorMemoryStatus().size() < executors + 1:  # the driver is one of them
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {executors} executors on {master}")
        time.sleep(0.05)
    return spark
