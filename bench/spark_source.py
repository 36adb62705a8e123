"""The Spark source beside one that has its Arrow batches ready, and one that makes rows.

A source that yields prebuilt Arrow batches is what Spark can take at most; a source that yields a
tuple for each message is what one would write first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.rounds import Sample, interleave, median, ratios
from bench.spark_rivals import PARTITIONS, STREAM, event_of
from bench.table import Row, compared, per_second
from penstock import Client
from tests.helpers.server import running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, PREBUILT, ROWS = "durable_streams", "prebuilt", "row_by_row"
_OF_PREBUILT = {"raw": 0.5, "state": 0.25}
_OF_ROWS = 2.0


def measure(spark: SparkSession, rounds: int, events: int) -> list[Row]:
    with running_server() as server:
        size = _fill(server.url, events)
        rows: list[Row] = []
        for mode in ("raw", "state"):
            rows += _mode_rows(spark, server.url, rounds, events, mode, size)
        return rows


def _fill(url: str, events: int) -> int:
    with Client(url) as client:
        stream = client.stream(STREAM)
        stream.create()
        for first in range(0, events, 20_000):
            numbers = range(first, min(first + 20_000, events))
            stream.append_many([event_of(number).to_json() for number in numbers])
        return int(stream.head().offset.rpartition("_")[2])


def _mode_rows(
    spark: SparkSession, url: str, rounds: int, events: int, mode: str, size: int
) -> list[Row]:
    part = str(size // PARTITIONS + 1)
    ours = {"url": url, "streams": STREAM, "partitionBytes": part}

    def timed(source: str, number: int) -> Sample:
        options = {"events": str(events)} if source == PREBUILT else ours
        seconds = to_nowhere(spark.read.format(source).options(mode=mode, **options).load())
        return {"events_s": events / seconds}

    names = (OURS, PREBUILT, ROWS)
    # The first round, which does not count, compiles code and starts workers.
    found = interleave([(name, name) for name in names], timed, rounds=rounds)
    bounds = {PREBUILT: _OF_PREBUILT[mode], ROWS: _OF_ROWS}
    words = {PREBUILT: "prebuilt Arrow batches", ROWS: "a tuple for each message"}
    return [
        compared(
            f"source, mode {mode}, beside {words[name]}",
            median(found[OURS], "events_s"),
            median(found[name], "events_s"),
            per_second,
            at_least=bounds[name],
            samples={"ours": found[OURS], "reference": found[name]},
            by_round=ratios(found[OURS], found[name], "events_s"),
        )
        for name in (PREBUILT, ROWS)
    ]


def to_nowhere(frame: DataFrame) -> float:
    """How long Spark takes to read all of it, in seconds."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
