"""The source inside Spark: planning, filters, streaming queries, functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.spark
from penstock import Client
from penstock.state import MaterializedState, delete, insert, reset, update
from tests.helpers.server import Server
from tests.spark.stp_server import stp_server
from tests.spark.test_batch_reads import fill, users

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def stream_of(spark: SparkSession, server: Server, streams: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("durable_streams").option("url", server.url)
    return reader.option("streams", streams).options(**options).load()


class Sink:
    """A query that ends when it has read everything, and the rows of its last run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def run(self, frame: DataFrame) -> Any:
        self._runs += 1
        query = (
            frame.writeStream.format("json")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._folder / f"rows-{self._runs}"))
        )
        query.awaitTermination()
        return query

    def rows(self) -> list[dict[str, Any]]:
        files = (self._folder / f"rows-{self._runs}").glob("*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_batch_read_with_filters(
    spark: SparkSession, client: Client, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(client, "in/batch", [*users(500), insert("order", "o1", {"n": 1}), {"bad": 1}])
    events = penstock.spark.events(spark, server.url, "in/*", partitionBytes="8k")
    selected = events.where("type = 'order' OR kind = 'invalid'").select("key", "seq", "error")
    assert [(row.key, row.seq) for row in selected.orderBy("seq").collect()] == [
        ("o1", 500), (None, 501),
    ]  # fmt: skip
    pushed = events.where("stream = 'in/batch' AND type = 'order' AND position > 10")
    assert pushed.count() == 1
    keyed = events.where("type = 'order' AND key IN ('o1', 'o2')")
    keyed.explain("formatted")
    assert "EqualTo(type,order), In(key, [o1,o2])]" in capsys.readouterr().out
    assert [row.seq for row in keyed.collect()] == [500]


def test_a_streaming_query_resumes_from_its_checkpoint(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path
) -> None:
    fill(client, "in/live/a", users(25))
    frame = stream_of(spark, server, "in/live/*", maxMessagesPerTrigger="10")
    sink = Sink(tmp_path)
    first = sink.run(frame)
    assert [progress.numInputRows for progress in first.recentProgress] == [10, 10, 5]
    behind = json.loads(first.recentProgress[0].sources[0].latestOffset)["lag"]
    assert behind == {"in/live/a": 15}
    assert penstock.spark.lag(first) == {}
    assert len(sink.rows()) == 25
    fill(client, "in/live/b", users(2))
    second = sink.run(frame)
    assert [progress.numInputRows for progress in second.recentProgress] == [2]
    assert [row["stream"] for row in sink.rows()] == ["in/live/b"] * 2


def test_lost_data_ends_a_query_with_one_message(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path
) -> None:
    fill(client, "in/lost", users(3))
    frame = stream_of(spark, server, "in/lost")
    sink = Sink(tmp_path)
    sink.run(frame)
    client.stream("in/lost").delete()
    fill(client, "in/lost", users(1))
    with pytest.raises(Exception, match="another one created at its path") as caught:
        sink.run(frame)
    assert penstock.spark.error_message(caught.value) == (
        "Stream in/lost: It was deleted, and another one created at its path. What was not read of "
        "it is lost. With the option failOnDataLoss=false the query continues, and a reset row "
        "invalidates what was read of the stream."
    )
    tolerant = stream_of(spark, server, "in/lost", failOnDataLoss="false")
    sink.run(tolerant)
    rows = sorted(sink.rows(), key=lambda row: int(row["position"]))
    assert [row.get("control") or row["key"] for row in rows] == ["reset", "u0"]


def test_wrong_options_are_one_message(spark: SparkSession, server: Server) -> None:
    with pytest.raises(Exception, match="Option mode is") as caught:
        penstock.spark.events(spark, server.url, "a", mode="odd").count()
    assert penstock.spark.error_message(caught.value) == "Option mode is 'odd': it is state or raw."


def test_state_is_the_fold_of_the_events(
    spark: SparkSession, client: Client, server: Server
) -> None:
    stream = client.stream("in/state")
    events = [
        *users(20),
        update("user", "u3", {"n": 33}),
        delete("user", "u4"),
        insert("user", "u4", {"n": 44}),
        delete("user", "u5"),
    ]
    fill(client, "in/state", events)
    middle = stream.head().offset
    fill(client, "in/state", [reset(), insert("user", "new", {"n": 1}), {"bad": 1}])
    expected = MaterializedState()
    for event in events:
        expected.apply(event)
    then = penstock.spark.state(spark, server.url, "in/state", at=middle)
    assert {row.key: json.loads(row.value) for row in then.collect()} == expected.get_type("user")
    now = penstock.spark.state(spark, server.url, "in/state").collect()
    assert [(row.stream, row.type, row.key) for row in now] == [("in/state", "user", "new")]
    with pytest.raises(ValueError, match="one offset is for one stream"):
        penstock.spark.state(spark, server.url, "in/*", at=middle)


def test_the_functions_return_data_frames(
    spark: SparkSession, client: Client, server: Server
) -> None:
    for name in ("one", "two"):
        fill(client, f"in/line/{name}", [insert("user", "a", {"n": 1})])
    middle = client.stream("in/line/one").head().offset
    fill(client, "in/line/one", [update("user", "a", {"n": 2}), update("user", "a", {"n": 2})])
    fill(client, "in/line/two", [delete("user", "a")])
    names = ["in/line/one", "in/line/two"]
    past = penstock.spark.history(spark, server.url, names).orderBy("stream", "valid_from_ordinal")
    assert [(row.stream[8:], row.value, row.is_current) for row in past.collect()] == [
        ("one", '{"n":1}', False), ("one", '{"n":2}', True), ("two", '{"n":1}', False),
    ]  # fmt: skip
    at = {"in/line/one": middle}
    then = penstock.spark.history(spark, server.url, names, at=at).where("is_current").collect()
    assert [(row.stream[8:], row.value) for row in then] == [("one", '{"n":1}')]
    assert penstock.spark.events(spark, server.url, "/in/line/one", at=middle).count() == 1
    assert penstock.spark.events(spark, server.url, "in/line/*", mode="raw").count() == 5
    state = penstock.spark.state(spark, server.url, names, at=at).collect()
    assert [(row.stream[8:], row.key, row.value) for row in state] == [("one", "a", '{"n":1}')]


def test_register_enables_filter_pushdown(
    spark: SparkSession, client: Client, server: Server
) -> None:
    fill(client, "in/filters", users(2))
    spark.conf.set(PUSHDOWN, "false")
    try:
        reader = spark.read.format("durable_streams").options(url=server.url, streams="in/filters")
        with pytest.raises(Exception, match="filterPushdown"):
            reader.load().where("type = 'user'").count()
        penstock.spark.register(spark)
        assert spark.conf.get(PUSHDOWN) == "true"
        assert reader.load().where("type = 'user'").count() == 2
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_stp_tables_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    with stp_server() as tables:
        tables.add("/t", "1\t2025-01-01T00:00:00Z\t+\ta\tx", "2\t2025-01-01T00:00:01Z\t-\ta\t")
        url = f"{tables.url}/t"
        rows = spark.read.format("stp").option("tables", url).load().orderBy("seq").collect()
        assert [(row.seq, row.action, row.key, row.record) for row in rows] == [
            (1, "+", "a", "x"), (2, "-", "a", None),
        ]  # fmt: skip
        live = spark.readStream.format("stp").option("tables", url).load()
        sink = Sink(tmp_path)
        sink.run(live)
        assert len(sink.rows()) == 2
