"""The Spark source beside one that has its Arrow batches ready, and one that makes rows.

python -m bench.spark_source [--events 1000000] [--rounds 3]

All of it in one run, in one session on this machine, each in turn within a round. A source that
yields prebuilt Arrow batches is what Spark can take at most; a source that yields a tuple for each
message is what one would write first. Latency: micro-batches from the source to a no-op sink,
beside those of a query that reads nothing from anywhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import penstock.spark
from bench import tools
from bench.spark_rivals import PARTITIONS, STREAM, Nothing, Prebuilt, RowByRow, event_of
from penstock import Client
from tests.helpers.server import running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATENCY_BATCHES = 15


def fill(client: Client, events: int) -> int:
    """The stream to read; its size in bytes."""
    stream = client.stream(STREAM)
    stream.create()
    for first in range(0, events, 20_000):
        numbers = range(first, min(first + 20_000, events))
        stream.append_many([event_of(number).to_json() for number in numbers])
    return int(stream.head().offset.rpartition("_")[2])


def timed(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def throughput(spark: SparkSession, url: str, events: int, rounds: int, size: int) -> None:
    part = str(size // PARTITIONS + 1)
    ours = {"url": url, "streams": STREAM, "partitionBytes": part}
    for mode, target in (("raw", 0.5), ("state", 0.25)):

        def load(source: str, mode: str = mode) -> DataFrame:
            options = {"events": str(events)} if source == "prebuilt" else ours
            return spark.read.format(source).options(mode=mode, **options).load()

        names = ("prebuilt", "durable_streams", "row_by_row")
        for name in names:
            timed(load(name))  # code is compiled and workers are started before it counts
        found: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                found[name].append(events / timed(load(name)))
        most_s, ours_s, rows_s = (statistics.median(found[name]) for name in names)
        print(
            f"{mode:6} source {ours_s:>9,.0f}/s, prebuilt {most_s:>9,.0f}/s: ratio "
            f"{ours_s / most_s:.2f} (target {target}: {_met(ours_s >= target * most_s)}); "
            f"row by row {rows_s:>9,.0f}/s: ratio {ours_s / rows_s:.1f} (target 2: "
            f"{_met(ours_s >= 2 * rows_s)})"
        )


def latency(spark: SparkSession, url: str) -> None:
    """Batches of a few events, each appended before the batch that reads it."""
    with Client(url) as client:
        stream = client.stream("latency")
        stream.create()
        floor = _batch_ms(spark.readStream.format("nothing").load(), None)
        frame = spark.readStream.format("durable_streams").options(url=url, streams="latency")
        ours = _batch_ms(frame.load(), lambda: stream.append_many([event_of(n) for n in range(10)]))
    ratio = ours / floor
    print(
        f"micro-batch: source to no-op sink {ours:,.0f} ms, no-op query {floor:,.0f} ms, ratio "
        f"{ratio:.2f} (target 1.5: {_met(ratio <= 1.5)})"
    )


def _batch_ms(frame: DataFrame, feed: Callable[[], Any] | None) -> float:
    """The median time of a micro-batch with data, the first few left out."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.start()
        found: dict[int, float] = {}
        try:
            while len(found) < LATENCY_BATCHES + 5:
                if feed is not None:
                    feed()
                before = len(found)
                while len(found) == before:
                    for progress in query.recentProgress:
                        if progress.numInputRows:
                            found[progress.batchId] = progress.durationMs["triggerExecution"]
                    time.sleep(0.01)
        finally:
            query.stop()
    return statistics.median(list(found.values())[5:])


def _met(yes: bool) -> str:
    return "met" if yes else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = str(tools.PROJECT)  # Spark's workers import the rivals from here
    spark = penstock.spark.session("bench", master="local[2]", memory="2g")
    for source in (Prebuilt, RowByRow, Nothing):
        spark.dataSource.register(source)
    try:
        with running_server() as server:
            with Client(server.url) as client:
                size = fill(client, chosen.events)
            print(f"{chosen.events:,} events, {size / 1e6:,.0f} MB, {PARTITIONS} partitions")
            throughput(spark, server.url, chosen.events, chosen.rounds, size)
            latency(spark, server.url)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
