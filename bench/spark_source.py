"""The Spark source beside one that has its Arrow batches ready, and one that makes rows; and many
streams beside one.

A source that yields prebuilt Arrow batches is what Spark can take at most; a source that yields a
tuple for each message is what one would write first.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from bench.processor_time import processor_s
from bench.rounds import Sample, interleave, median, ratios
from bench.spark_rivals import PARTITIONS, STREAM, event_of
from bench.table import Row, compared, per_second
from penstock import Client
from tests.helpers.server import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, PREBUILT, ROWS = "durable_streams", "prebuilt", "row_by_row"
_OF_PREBUILT = {"raw": 0.8, "state": 0.6}
_OF_ROWS = 2.0
_MANY = 1000
_OF_ONE = 1.3
_COMPILED_AFTER = 10  # reads of each: so long Java compiles what they share while they run


def measure(spark: SparkSession, rounds: int, events: int) -> list[Row]:
    with running_server() as server:
        size = _fill(server.url, events)
        rows: list[Row] = []
        for mode in ("raw", "state"):
            rows += _mode_rows(spark, server, rounds, events, mode, size)
        return [*rows, *_many_rows(spark, server, rounds, events)]


def _fill(url: str, events: int) -> int:
    with Client(url) as client:
        stream = client.stream(STREAM)
        stream.create()
        for first in range(0, events, 20_000):
            numbers = range(first, min(first + 20_000, events))
            stream.append_many([event_of(number).to_json() for number in numbers])
        return int(stream.head().offset.rpartition("_")[2])


def _mode_rows(
    spark: SparkSession, server: Server, rounds: int, events: int, mode: str, size: int
) -> list[Row]:
    part = str(size // PARTITIONS + 1)
    ours = {"url": server.url, "streams": STREAM, "partitionBytes": part}

    def timed(source: str, number: int) -> Sample:
        options = {"events": str(events)} if source == PREBUILT else ours
        return _measured(spark, server, events, source, {"mode": mode, **options})

    names = (OURS, PREBUILT, ROWS)
    for number in range(_COMPILED_AFTER):
        for name in (OURS, PREBUILT):
            timed(name, number)
    # The first round, which does not count, starts workers of the third, too.
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
    ] + [
        compared(
            f"source, mode {mode}, beside prebuilt Arrow batches, by processor time",
            median(found[OURS], "events_cpu_s"),
            median(found[PREBUILT], "events_cpu_s"),
            per_second,
            at_least=bounds[PREBUILT],
            by_round=ratios(found[OURS], found[PREBUILT], "events_cpu_s"),
        )
    ]


def _measured(
    spark: SparkSession, server: Server, events: int, source: str, options: dict[str, str]
) -> Sample:
    """Events a second, and a second of processor time of all that take part."""
    pids = os.getpid(), server.process.pid
    before = processor_s(*pids)
    seconds = to_nowhere(spark.read.format(source).options(**options).load())
    used = max(processor_s(*pids) - before, 0.01)
    return {"events_s": events / seconds, "events_cpu_s": events / used}


def _many_rows(spark: SparkSession, server: Server, rounds: int, events: int) -> list[Row]:
    each = max(events // _MANY, 1)
    with Client(server.url) as client:
        for stream in range(_MANY):
            first = stream * each
            target = client.stream(f"many/{stream:04d}")
            target.create()
            target.append_many([event_of(n).to_json() for n in range(first, first + each)])

    def timed(streams: str, number: int) -> Sample:
        options = {"url": server.url, "streams": streams, "minPartitions": str(PARTITIONS)}
        sample = _measured(spark, server, events, OURS, options)
        return {"s": events / sample["events_s"], "cpu_s": events / sample["events_cpu_s"]}

    found = interleave([("many", "many/*"), ("one", STREAM)], timed, rounds=rounds)
    words = f"{events:,} events in {_MANY:,} streams, beside one"
    return [
        compared(
            f"{words}{how}",
            median(found["many"], key),
            median(found["one"], key),
            lambda value: f"{value:.2f} s",
            at_most=_OF_ONE,
            by_round=ratios(found["many"], found["one"], key),
        )
        for key, how in (("s", ""), ("cpu_s", ", by processor time"))
    ]


def to_nowhere(frame: DataFrame) -> float:
    """How long Spark takes to read all of it, in seconds."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
