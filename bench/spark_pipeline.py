"""`python -m bench.spark_pipeline`: the pipeline beside Spark reading the same events from files.

catch-up   events into `events` and `state`, from a server and from local JSON files, the same work
           after the source
latency    a micro-batch of 100 events through the whole pipeline, and one of a query that does
           nothing
growth     a batch of 10,000 changes into states of different sizes, folds included
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock import Client, limits
from penstock.spark.columns import STATE_ARROW
from penstock.spark.duck import Duck
from penstock.spark.events_table import WRITTEN_DDL, Appended, writer_of
from penstock.spark.fold import fold_here, fold_in_spark
from penstock.spark.pipeline import PipelineRun
from penstock.spark.pipeline_config import make_pipeline
from penstock.spark.sessions import session
from penstock.spark.spark_views import SparkViews
from penstock.spark.state_table import StateTable
from penstock.spark.type_schema import type_schema
from penstock.spark.warehouse import Warehouse
from tests.helpers.server import running_server

SCHEMA = "id STRING, name STRING, city STRING"
TYPES = {"user": type_schema(SCHEMA)}
JSON_DDL = "headers STRUCT<operation: STRING>, type STRING, key STRING, value STRING, seq BIGINT"


def lines(count: int, keys: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(1)
    for number in range(count):
        key = str(chance.randrange(keys))
        value = {"id": key, "name": f"name {number % 1000}", "city": f"city {number % 50}"}
        headers = {"operation": "upsert"}
        yield {"type": "user", "key": key, "value": value, "headers": headers}


def chunks(count: int, keys: int, size: int = 2000) -> Iterator[list[dict[str, Any]]]:
    held = []
    for line in lines(count, keys):
        held.append(line)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def pipeline(url: str, folder: Path, **more: Any) -> Any:
    return make_pipeline(
        {
            "source": {"url": url, "streams": ["bench"], **more.pop("source", {})},
            "warehouse": {"path": str(folder)},
            "types": {"user": {"schema": SCHEMA}},
            "pipeline": more,
        }
    )


def catch_up(spark: SparkSession, count: int, keys: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, running_server() as server:
        home = Path(scratch)
        with Client(server.url) as client:
            stream = client.stream("bench")
            stream.create()
            (home / "json").mkdir()
            for number, chunk in enumerate(chunks(count, keys, 20_000)):
                for start in range(0, len(chunk), 2000):
                    stream.append_many(chunk[start : start + 2000])
                with (home / "json" / f"{number:05d}.json").open("w") as file:
                    for at, line in enumerate(chunk):
                        file.write(json.dumps({**line, "seq": number * 20_000 + at}) + "\n")
        for name in ("warm", "measured"):
            begun = time.perf_counter()
            run = PipelineRun(pipeline(server.url, home / f"served-{name}"), spark)
            run.run(once=True)
            served = time.perf_counter() - begun
            begun = time.perf_counter()
            from_files(spark, home / "json", Warehouse(str(home / f"files-{name}")))
            filed = time.perf_counter() - begun
        print(f"catch-up of {count:,} events, {keys:,} keys")
        print(f"  pipeline    {count / served:>12,.0f} events/s  {served:.1f} s")
        print(f"  JSON files  {count / filed:>12,.0f} events/s  {filed:.1f} s")
        print(f"  ratio       {filed / served:>12.2f}")


def from_files(spark: SparkSession, folder: Path, warehouse: Warehouse) -> None:
    """The same work after the source as in the pipeline."""
    warehouse.open()
    rows = spark.read.schema(JSON_DDL).json(str(folder))
    place = {"stream": "'bench'", "generation": "1L", "position": "seq * 100", "kind": "'change'"}
    known = {**place, "seq": "seq", "type": "type", "key": "key", "value": "value"}
    known |= {"operation": "headers.operation", "offset": "CAST(seq AS STRING)"}
    empty = "CAST(NULL AS STRING)"
    rows = rows.select(*(f.expr(known.get(n, empty)).alias(n) for n in STATE_ARROW.names))
    commit(warehouse, rows, 0)
    duck = Duck(warehouse, TYPES)
    fold_here(duck, "user", warehouse.events.record)
    duck.close()
    warehouse.close()


def commit(warehouse: Warehouse, rows: DataFrame, batch: int) -> None:
    warehouse.check()
    events = warehouse.events
    write = writer_of(events.uri, TYPES, events.record.batch + 1, datetime.now(UTC))
    written = rows.mapInArrow(write, WRITTEN_DDL).collect()
    appended = Appended.of(row.asDict() for row in written)
    events.append(appended, query="bench", batch=batch, positions=None)


def latency(spark: SparkSession, batches: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, running_server() as server:
        with Client(server.url) as client:
            stream = client.stream("bench")
            stream.create()
            for chunk in chunks(batches * 100, 1000, 100):
                stream.append_many(chunk)
        home = Path(scratch)
        took: list[float] = []
        chosen = pipeline(server.url, home / "warehouse", source={"max_messages": 100})
        run = PipelineRun(chosen, spark, on_progress=lambda _: took.append(time.perf_counter()))
        run.run(once=True)
        whole = statistics.median(b - a for a, b in pairwise(took[3:]))
        ticks: list[float] = []
        rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
        query = (
            rates.writeStream.foreachBatch(lambda rows, _: ticks.append(time.perf_counter()))
            .option("checkpointLocation", str(home / "noop"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        while len(ticks) < batches:
            time.sleep(0.05)
        query.stop()
        nothing = statistics.median(b - a for a, b in pairwise(ticks[3:]))
    print(
        f"micro-batch: whole pipeline {whole * 1000:.0f} ms, no-op {nothing * 1000:.0f} ms, ",
        end="",
    )
    print(f"ratio {whole / nothing:.2f}")


def growth(spark: SparkSession, sizes: list[int], batches: int) -> None:
    for size in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            warehouse = Warehouse(scratch)
            warehouse.open()
            grown = Grown(spark, warehouse)
            grown.seed(size)
            begun = time.perf_counter()
            folds = sum(grown.batch(size, 10_000) for _ in range(batches))
            passed = time.perf_counter() - begun
        print(
            f"growth: {size:>12,} keys  {passed / batches:.3f} s a batch of 10,000, {folds} folds"
        )


class Grown:
    def __init__(self, spark: SparkSession, warehouse: Warehouse) -> None:
        self._warehouse, self._ordinal = warehouse, 0
        self._duck = Duck(warehouse, TYPES)
        self._views = SparkViews(spark, warehouse, TYPES)
        self._state = StateTable(warehouse, "user", TYPES["user"])

    def seed(self, size: int) -> None:
        for start in range(0, size, 1_000_000):
            self._append(list(range(start, min(start + 1_000_000, size))))
        self._fold()

    def batch(self, size: int, changes: int) -> int:
        self._append(random.sample(range(size), changes))
        if self._state.is_due(self._warehouse.events.record, rows=100_000, percent=4):
            self._fold()
            return 1
        return 0

    def _fold(self) -> None:
        record = self._warehouse.events.record
        self._duck.refresh()
        self._views.refresh()
        new = record.types["user"].changes - self._state.folded.changes
        if self._state.folded.rows + new <= limits.PIPELINE_DRIVER_ROWS:
            self._state = fold_here(self._duck, "user", record)
        else:
            self._state = fold_in_spark(self._views, "user", record)

    def _append(self, keys: list[int]) -> None:
        events, count = self._warehouse.events, len(keys)
        ordinals = pa.array(range(self._ordinal, self._ordinal + count), pa.int64())
        self._ordinal += count
        value = '{{"id":"{0}","name":"name {0}","city":"c"}}'
        known = {
            "stream": pa.repeat("bench", count),
            "generation": pa.repeat(pa.scalar(1, pa.int64()), count),
            "position": ordinals,
            "seq": ordinals,
            "offset": ordinals.cast(pa.string()),
            "kind": pa.repeat("change", count),
            "type": pa.repeat("user", count),
            "key": pa.array([str(key) for key in keys]),
            "operation": pa.repeat("upsert", count),
            "value": pa.array([value.format(key) for key in keys]),
        }
        columns = [known.get(name, pa.nulls(count, pa.string())) for name in STATE_ARROW.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=STATE_ARROW)
        write = writer_of(events.uri, TYPES, events.record.batch + 1, datetime.now(UTC))
        appended = Appended.of(row for each in write([batch]) for row in each.to_pylist())
        self._warehouse.check()
        events.append(appended, query="bench", batch=events.record.batch, positions=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--only", choices=["catch-up", "latency", "growth"])
    chosen = parser.parse_args()
    spark = session("bench", memory="2g")
    if chosen.only in (None, "catch-up"):
        catch_up(spark, chosen.events, chosen.keys)
    if chosen.only in (None, "latency"):
        latency(spark, chosen.batches)
    if chosen.only in (None, "growth"):
        growth(spark, chosen.sizes, chosen.batches)
    spark.stop()


if __name__ == "__main__":
    main()
