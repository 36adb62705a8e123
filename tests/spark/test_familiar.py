"""The source as people use Spark's own ones: SQL views, plans, watermarks, joins, metrics, a query
that goes on and on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import penstock.spark
from penstock import Client
from penstock.spark.metrics import SourceMetrics
from penstock.spark.stream_progress import OTHERS, StreamProgress, furthest_behind
from penstock.state import insert
from tests.helpers.server import Server
from tests.spark.test_batch_reads import fill, users

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def live(spark: SparkSession, server: Server, streams: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("durable_streams").option("url", server.url)
    return reader.option("streams", streams).options(**options).load()


def finished(frame: DataFrame, folder: Path, name: str, mode: str = "append") -> list[Any]:
    """The rows of a query that ends at the tails of its streams."""
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return frame.sparkSession.table(name).collect()


def test_a_view_in_sql(
    spark: SparkSession, client: Client, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(client, "sql/users", [*users(500), insert("order", "o1", {"n": 1})])
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW changes USING durable_streams OPTIONS "
        f"(url '{server.url}', streams 'sql/*')"
    )
    rows = spark.sql("SELECT key, seq FROM changes WHERE type = 'order' AND key IN ('o1', 'o2')")
    assert [tuple(row) for row in rows.collect()] == [("o1", 500)]
    capsys.readouterr()
    rows.explain("formatted")
    plan = capsys.readouterr().out
    assert "PushedFilters" in plan
    assert "EqualTo(type,order)" in plan
    assert "In(key, [o1,o2])" in plan
    # Spark has no way to tell a source in Python which columns it needs; a schema has.
    assert "offset" in plan
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW slim (type STRING, key STRING) USING durable_streams "
        f"OPTIONS (url '{server.url}', streams 'sql/*')"
    )
    slim = spark.sql("SELECT * FROM slim WHERE type = 'order'")
    assert [tuple(row) for row in slim.collect()] == [("order", "o1")]
    capsys.readouterr()
    slim.explain("formatted")
    assert "offset" not in capsys.readouterr().out


def test_a_watermark_and_a_join_of_two_streams(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path
) -> None:
    times = [f"2025-01-15T10:{minute:02d}:00Z" for minute in (0, 1, 2, 30)]
    fill(
        client,
        "join/orders",
        [insert("order", str(n), {}, timestamp=t) for n, t in enumerate(times)],
    )
    fill(client, "join/paid", [insert("paid", "1", {}, timestamp=times[2])])

    def events(name: str) -> DataFrame:
        columns = ("key", "CAST(timestamp AS TIMESTAMP) AS time")
        return live(spark, server, name).selectExpr(*columns).withWatermark("time", "5 minutes")

    orders, paid = events("join/orders").alias("o"), events("join/paid").alias("p")
    within = "o.key = p.key AND p.time BETWEEN o.time AND o.time + INTERVAL 10 MINUTES"
    joined = orders.join(paid, sql_expr(within)).selectExpr("o.key")
    counts = orders.groupBy(sql_expr("window(time, '10 minutes')")).count()
    # A join has four state stores in each partition, and each batch writes a version of each.
    with setting(spark, "spark.sql.shuffle.partitions", "1"):
        assert [row.key for row in finished(joined, tmp_path / "join", "joined")] == ["1"]
        rows = finished(counts.selectExpr("count"), tmp_path / "count", "counted")
    assert [row["count"] for row in rows] == [3], "the last window is still open"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def sql_expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def test_lag_rate_and_bytes_of_each_stream(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path
) -> None:
    for name, count in (("metered/a", 30), ("metered/b", 4)):
        fill(client, name, users(count))
    registry = CollectorRegistry()
    metrics = penstock.spark.source_metrics(spark, registry)
    seen: list[Any] = []
    try:
        query = (
            live(spark, server, "metered/*", maxOffsetsPerTrigger=10)
            .writeStream.foreachBatch(lambda rows, batch: None)
            .queryName("metered")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        query.processAllAvailable()
        seen = list(query.recentProgress)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        (progress,) = metrics.snapshot()
        text = generate_latest(registry).decode()
        query.stop()
    finally:
        spark.streams.removeListener(metrics)
    assert (progress.query, set(progress.streams)) == ("metered", {"metered/a", "metered/b"})
    sizes = {name: int(client.stream(name).head().offset[17:]) for name in progress.streams}
    for name, count in (("metered/a", 30), ("metered/b", 4)):
        of_stream = progress.streams[name]
        assert (of_stream.messages, of_stream.bytes) == (count, sizes[name])
        assert (of_stream.lag_messages, of_stream.lag_bytes) == (0, 0)
    assert 'penstock_spark_messages_total{query="metered",stream="metered/a"} 30.0' in text
    assert 'penstock_spark_lag_bytes{query="metered",stream="metered/b"} 0.0' in text
    first = SourceMetrics()
    first.add(seen[0])
    after_one = first.snapshot()[0].streams
    assert sum(each.messages for each in after_one.values()) == 10
    assert after_one["metered/a"].lag_messages == 24
    assert after_one["metered/a"].messages_per_s > 0
    assert 0 < after_one["metered/a"].lag_bytes < sizes["metered/a"]
    assert msgspec.json.decode(msgspec.json.encode(metrics.snapshot())) is not None


def test_streams_beyond_the_most_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.stream_progress.SPARK_METRIC_STREAMS_MAX", 3)
    streams = {str(n): StreamProgress(messages=n, lag_messages=n % 4) for n in range(8)}
    shown = furthest_behind(streams)
    assert list(shown) == ["7", "3", OTHERS]
    assert shown[OTHERS].messages == 28 - 10
    assert furthest_behind(shown) == shown


@pytest.mark.parametrize(
    "batches", [12, pytest.param(400, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_a_query_that_goes_on_stays_as_small_as_it_was(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path, batches: int
) -> None:
    fill(client, f"on-and-on-{batches}", users(1))
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "3")
    try:
        query = (
            live(spark, server, f"on-and-on-{batches}")
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        runners, files = [], []
        for number in range(batches):
            fill(client, f"on-and-on-{batches}", users(1, first=number))
            query.processAllAvailable()
            files.append(sum(len(names) for _, _, names in os.walk(tmp_path / "checkpoint")))
            if number >= batches // 2:
                runners.append(_runner_kb())
        query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    middle = len(files) // 2
    assert max(files[middle:]) <= max(files[:middle]), "old batches leave the checkpoint"
    assert runners[-1] <= runners[0] * 1.1, "the process that plans does not grow"


def _runner_kb() -> int:
    """The memory of the process in which Spark runs the driver's side of the source."""
    sizes = []
    for folder in Path("/proc").iterdir():
        try:
            if b"python_streaming_source_runner" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text()
                sizes.append(int(status.partition("VmRSS:")[2].split()[0]))
        except (OSError, IndexError, ValueError):
            continue
    return max(sizes)
