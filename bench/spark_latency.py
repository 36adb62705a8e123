"""How long a micro-batch takes, and what many of them leave in memory.

Everybody has the same trigger, as soon as possible, and each batch is fed when the one before it is
over. The time is what Spark itself says a trigger took, its own bookkeeping included.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.rounds import Sample, interleave, median, ratios
from bench.spark_events import STREAM, chunks, pipeline
from bench.table import Row, compared, megabytes
from penstock import Client, limits
from penstock.spark.pipeline.run import PipelineRun
from tests.helpers.server import running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS = 100  # in a batch
KEYS = 1000
WARM = 5  # batches of a query that do not count
WAIT_S = 60.0
MEMORY_ENDS = 20  # batches that are compared, the first of them and the last
# The first time that small files are made one loads code that stays.
MEMORY_WARM = limits.PIPELINE_COMPACT_FILES + MEMORY_ENDS
# The last are as long after such a time as the first: it takes memory that is given back later.
MEMORY_BATCHES = limits.PIPELINE_COMPACT_FILES + MEMORY_ENDS
PUBLISH = {
    "cities": {
        "sql": "SELECT city AS key, count(*) AS users FROM state_user GROUP BY city",
        "to": "derived/cities",
    }
}
FLAT = 1.1


def measure(spark: SparkSession, rounds: int, batches: int) -> list[Row]:
    with running_server() as server, Client(server.url) as client:
        client.stream(STREAM).create()
        feed = _Feed(client)
        contenders: list[tuple[str, Callable[[], list[float]]]] = [
            ("nothing", lambda: _query_ms(spark, "nothing", {}, batches, None)),
            ("rate", lambda: _query_ms(spark, "rate-micro-batch", _RATE, batches, None)),
            (
                "source",
                lambda: _query_ms(spark, "durable_streams", _ours(server.url), batches, feed),
            ),
            ("pipeline", lambda: _pipeline_ms(spark, server.url, batches, feed)),
            ("published", lambda: _pipeline_ms(spark, server.url, batches, feed, PUBLISH)),
        ]

        def timed(run: Callable[[], list[float]], number: int) -> Sample:
            return {"ms": statistics.median(run()[WARM:])}

        found = interleave(contenders, timed, rounds=rounds)
    words = {
        "nothing": "a query that does nothing",
        "rate": "one that does nothing without Python",
    }
    compare = [
        ("source to no-op sink", "source", "nothing", 1.5),
        ("whole pipeline", "pipeline", "nothing", 1.0),
        ("whole pipeline", "pipeline", "rate", None),
        ("whole pipeline that publishes a result", "published", "nothing", None),
    ]
    return [
        compared(
            f"micro-batch of {EVENTS} events, {what}, beside {words[beside]}",
            median(found[name], "ms"),
            median(found[beside], "ms"),
            lambda value: f"{value:,.0f} ms",
            at_most=most,
            samples={"ours": found[name], "reference": found[beside]},
            by_round=ratios(found[name], found[beside], "ms"),
        )
        for what, name, beside, most in compare
    ]


_RATE = {"rowsPerBatch": str(EVENTS)}


def _ours(url: str) -> dict[str, str]:
    return {"url": url, "streams": STREAM, "startingOffsets": "latest"}


class _Feed:
    """Appends one batch of events after the other."""

    def __init__(self, client: Client) -> None:
        self._stream = client.stream(STREAM)
        self._chunks = chunks(10_000_000, KEYS, EVENTS)

    def __call__(self) -> None:
        self._stream.append_many(next(self._chunks))


def _query_ms(
    spark: SparkSession,
    source: str,
    options: dict[str, str],
    batches: int,
    feed: Callable[[], None] | None,
) -> list[float]:
    """A query from a source to a sink that takes everything and does nothing."""
    frame = spark.readStream.format(source).options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            return _batches_ms(query, WARM + batches, feed)
        finally:
            query.stop()


def _batches_ms(query: StreamingQuery, count: int, feed: Callable[[], None] | None) -> list[float]:
    """What each trigger took in which there was something to do; one is fed after the other."""
    found: dict[int, float] = {}
    while len(found) < count:
        if feed is not None:
            feed()
        before, deadline = len(found), time.monotonic() + WAIT_S
        while len(found) == before:
            last = query.lastProgress  # all recent ones would cost more than a batch does
            if last is not None and "addBatch" in last.durationMs:  # else there was no news
                found[last.batchId] = last.durationMs["triggerExecution"]
            if time.monotonic() > deadline:
                raise TimeoutError(f"no batch in {WAIT_S:.0f} s: {query.exception()}")
            time.sleep(0.01)
    return list(found.values())[:count]


@contextmanager
def _running(spark: SparkSession, run: PipelineRun) -> Iterator[StreamingQuery]:
    """A pipeline at work in a thread of its own, and its query."""
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while not spark.streams.active:
            if time.monotonic() > deadline or not thread.is_alive():
                raise TimeoutError("the pipeline has not begun")
            time.sleep(0.01)
        yield spark.streams.active[0]
    finally:
        run.stop()
        thread.join()


def _pipeline_ms(
    spark: SparkSession,
    url: str,
    batches: int,
    feed: Callable[[], None],
    publish: dict[str, Any] | None = None,
) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        run = _latest(spark, url, Path(folder), publish=publish)
        with _running(spark, run) as query:
            return _batches_ms(query, WARM + batches, feed)


def _latest(
    spark: SparkSession,
    url: str,
    folder: Path,
    *,
    publish: dict[str, Any] | None = None,
    on_progress: Callable[[Any], None] | None = None,
) -> PipelineRun:
    chosen = pipeline(url, folder, source={"starting": "latest"}, publish=publish, interval_s=0)
    return PipelineRun(chosen, spark, on_progress=on_progress)


def measure_memory(spark: SparkSession, batches: int) -> list[Row]:
    """Memory of the driver's Python and Java, batch by batch."""
    machine: Any = spark._jvm
    java = int(machine.java.lang.ProcessHandle.current().pid())
    heap = machine.java.lang.management.ManagementFactory.getMemoryMXBean()
    taken: list[tuple[int, int, int]] = []

    def look(_: Any) -> None:
        machine.java.lang.System.gc()  # what is garbage is no leak
        used = int(heap.getHeapMemoryUsage().getUsed())
        taken.append((_resident(os.getpid()), _resident(java), used))

    with running_server() as server, Client(server.url) as client:
        client.stream(STREAM).create()
        with tempfile.TemporaryDirectory() as folder:
            run = _latest(spark, server.url, Path(folder), publish=PUBLISH, on_progress=look)
            with _running(spark, run) as query:
                _batches_ms(query, MEMORY_WARM + batches, _Feed(client))
    kinds = ("Python, resident", "Java, resident", "Java, live objects")
    return [
        _flat(f"driver's {kind}", [each[number] for each in taken[MEMORY_WARM:]])
        for number, kind in enumerate(kinds)
    ]


def _flat(what: str, sizes: list[int]) -> Row:
    first, last = sizes[:MEMORY_ENDS], sizes[-MEMORY_ENDS:]
    return compared(
        f"memory, {what}: last {MEMORY_ENDS} of {len(sizes)} batches beside the first",
        statistics.median(last),
        statistics.median(first),
        megabytes,
        at_most=FLAT,
        samples={"every tenth batch": [{"bytes": float(size)} for size in sizes[::10]]},
    )


def _resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
