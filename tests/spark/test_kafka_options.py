"""The options that users of Spark's Kafka source know: offsets by time, limits of batches and
tasks, and what an unknown one is called here. Against a real server, driven without Spark."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock import Client
from penstock.errors import InvalidOption
from penstock.spark.kafka_names import instead_of
from penstock.spark.options import SOURCE_NAMES, source_options
from penstock.spark.source import readers
from penstock.state import delete, insert
from tests.helpers.server import ROOT, Server
from tests.spark.direct import Query, plan, read, run, source
from tests.spark.test_batch_reads import fill, users


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


def report(query: Query) -> dict[str, Any]:
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    return latest


@pytest.fixture(scope="module")
def middle(client: Client) -> tuple[str, int]:
    """A time between two appends of two streams: RFC 3339 and milliseconds."""
    for name in ("times/a", "times/b"):
        fill(client, name, users(3))
    before = datetime.now(UTC)
    # The clock of the server has milliseconds: the next append has to be in another one.
    while datetime.now(UTC).timestamp() * 1000 < before.timestamp() * 1000 + 3:
        time.sleep(0.001)
    now = datetime.now(UTC)
    fill(client, "times/a", users(2, first=3))
    return now.isoformat(), int(now.timestamp() * 1000)


def test_a_read_begins_and_ends_at_a_time(server: Server, middle: tuple[str, int]) -> None:
    text, milliseconds = middle
    for at in (text, milliseconds):
        rows = read(server.url, "times/*", startingTimestamp=at)
        assert [(row["key"], row["seq"]) for row in rows] == [("u3", 3), ("u4", 4)]
        rows = read(server.url, "times/*", endingTimestamp=at)
        assert keys(rows) == ["u0", "u1", "u2"] * 2
    assert read(server.url, "times/*", startingTimestamp=text, endingTimestamp=text) == []
    assert len(read(server.url, "times/*", startingTimestamp="2001-01-01T00:00:00Z")) == 8


def test_streams_have_times_of_their_own(server: Server, middle: tuple[str, int]) -> None:
    text, milliseconds = middle
    rows = read(
        server.url, "times/*", startingOffsetsByTimestamp=json.dumps({"/times/a": milliseconds})
    )
    assert keys(rows) == ["u3", "u4", "u0", "u1", "u2"], "others begin as startingOffsets says"
    rows = read(
        server.url,
        "times/*",
        startingOffsets="latest",
        startingOffsetsByTimestamp=json.dumps({"times/a": text}),
    )
    assert keys(rows) == ["u3", "u4"]
    rows = read(server.url, "times/*", endingOffsetsByTimestamp=json.dumps({"times/a": text}))
    assert keys(rows) == ["u0", "u1", "u2"] * 2
    with pytest.raises(InvalidOption, match="A time is given for times/none"):
        read(server.url, "times/*", startingOffsetsByTimestamp='{"times/none": 5}')


def test_a_time_without_messages_is_the_tail_or_an_error(
    client: Client, server: Server, middle: tuple[str, int]
) -> None:
    text, _ = middle
    fill(client, "times-quiet", users(2))
    late = "2999-01-01T00:00:00Z"
    query = Query(server.url, "times-quiet", startingTimestamp=late)
    assert query.step() == []
    fill(client, "times-quiet", users(1, first=2))
    assert keys(query.step()) == ["u2"]
    strict: Any = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(InvalidOption, match="times/b has no message at or after"):
        read(server.url, "times/*", startingTimestamp=text, **strict)
    assert keys(read(server.url, "times/a", startingTimestamp=text, **strict)) == ["u3", "u4"]


def test_a_batch_waits_for_enough_messages_but_not_for_ever(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("penstock.spark.source.readers.time.monotonic", lambda: now[0])
    fill(client, "least", users(4))
    query = Query(server.url, "least", minOffsetsPerTrigger=5, maxTriggerDelay="10s")
    assert query.step() == []
    assert report(query)["lag"] == {"least": 4}
    fill(client, "least", users(1, first=4))
    assert len(query.step()) == 5
    fill(client, "least", users(1, first=5))
    now[0] += 9.9
    assert query.step() == []
    now[0] += 0.2
    assert keys(query.step()) == ["u5"]
    fill(client, "least", users(1, first=6))
    query.reader.prepareForTriggerAvailableNow()
    assert keys(query.step()) == ["u6"], "a query that ends at the tail waits for nothing"


def test_kafkas_name_of_the_limit_of_a_batch(client: Client, server: Server) -> None:
    fill(client, "most", users(5))
    query = Query(server.url, "most", maxOffsetsPerTrigger=2)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(2)
    assert [len(rows) for rows in query.drain()] == [2, 2, 1]
    with pytest.raises(InvalidOption, match="maxMessagesPerTrigger and maxOffsetsPerTrigger are"):
        read(server.url, "most", maxOffsetsPerTrigger=2, maxMessagesPerTrigger=2)


def test_no_task_has_more_records_than_allowed(client: Client, server: Server) -> None:
    fill(client, "tasks/a", [*users(10), *({"pad": "x" * 3000} for _ in range(5)), *users(10)])
    for name in ("b", "c"):
        fill(client, f"tasks/{name}", users(3))
    everything = read(server.url, "tasks/*")
    reader, partitions, _ = plan(server.url, "tasks/*", maxRecordsPerPartition=4)
    sizes = [len(run(reader, [partition])) for partition in partitions]
    assert max(sizes) <= 4
    assert sum(sizes) == 31
    assert run(reader, partitions) == everything
    client.stream("tasks-bytes").create(
        content_type="text/plain", body=b"x" * 200_000, exist_ok=True
    )
    assert read(server.url, "tasks-bytes", mode="raw", maxRecordsPerPartition=4), "has no records"
    query = Query(server.url, "tasks/*", maxRecordsPerPartition=4)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    assert len(query.reader.partitions(query.offset, end)) == len(partitions)


def test_the_lag_is_reported_in_messages_and_bytes(client: Client, server: Server) -> None:
    fill(client, "behind", users(5))
    query = Query(server.url, "behind", maxMessagesPerTrigger=2)
    rows = query.step()
    assert report(query)["lag"] == {"behind": 3}
    tail = int(client.stream("behind").head().offset[17:])
    assert report(query)["lagBytes"] == {"behind": tail - int(rows[-1]["offset"][17:])}


def test_a_schema_of_the_users_own_selects_columns(client: Client, server: Server) -> None:
    fill(client, "columns", users(3))
    made = source(server.url, "columns")
    wanted = StructType([StructField("key", StringType()), StructField("seq", LongType())])
    reader = made.reader(wanted)
    assert run(reader, reader.partitions()) == [{"key": f"u{n}", "seq": n} for n in range(3)]
    for name, kind in (("colour", StringType()), ("seq", StringType())):
        with pytest.raises(InvalidOption, match=f"The schema has the column {name} string"):
            made.reader(StructType([StructField(name, kind)]))


def test_times_and_pauses_of_requests() -> None:
    options = {"url": "http://x", "streams": "s"}
    made = source_options({**options, "retryInterval": "250ms", "requestTimeout": "1m"})
    assert (made.retry_interval_s, made.timeout_s) == (0.25, 60.0)
    client = readers.server_of(made).client
    assert client.retry.first_s == 0.25
    assert client._timeouts.read_s == 60.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("subscribe", "a", "option subscribe is of spark's kafka source: name streams"),
        ("subscribePattern", "a.*", "patterns such as shop"),
        ("assign", "{}", "a stream has no partitions"),
        ("kafka.bootstrap.servers", "h:1", "set url"),
        ("kafka.group.id", "g", "in its checkpoint"),
        ("groupIdPrefix", "g", "in its checkpoint"),
        ("includeHeaders", "yes", "it is true or false"),
        ("kafka.sasl.mechanism", "PLAIN", "set token"),
        ("kafka.auto.offset.reset", "latest", "set startingoffsets"),
        ("fetchOffset.numRetries", "3", "set maxattempts and retryinterval"),
        ("kafka.fetch.max.bytes", "3", "have no meaning here"),
        ("kafka.consumerCacheTimeout", "3", "have no meaning here"),
        ("consumerCacheTimeout", "3", "share their connections"),
        ("startingTimestamp", "yesterday", "takes a time with its zone"),
        ("endingOffsetsByTimestamp", '{"a": "noon"}', "takes a time with its zone"),
        ("startingOffsetsByTimestampStrategy", "guess", "it is latest or error"),
        ("maxTriggerDelay", "soon", "it takes a duration"),
        ("requestTimeout", "0", "it takes a duration"),
    ],
)
def test_the_error_of_an_option_says_what_to_write(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        source_options({"url": "http://x", "streams": "s", name: value})
    assert words in str(raised.value).lower()


KAFKA_SOURCE = [
    "kafka.bootstrap.servers",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "kafka.auto.offset.reset",
    "kafka.key.deserializer",
    "kafka.value.deserializer",
    "kafka.enable.auto.commit",
    "kafka.isolation.level",
    "kafka.interceptor.classes",
]
KAFKA_SINK = [
    "kafka.bootstrap.servers",
    "topic",
    "includeHeaders",
    "kafka.key.serializer",
    "kafka.value.serializer",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.batch.size",
    "kafka.linger.ms",
    "kafka.compression.type",
]
KAFKA_SETTINGS = [
    "spark.kafka.consumer.cache.capacity",
    "spark.kafka.consumer.cache.timeout",
    "spark.kafka.consumer.cache.evictorThreadRunInterval",
    "spark.kafka.consumer.cache.jmx.enable",
    "spark.kafka.consumer.fetchedData.cache.timeout",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval",
    "spark.kafka.producer.cache.timeout",
    "spark.kafka.producer.cache.evictorThreadRunInterval",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
    "spark.kafka.clusters",
]


def test_every_option_of_kafka_is_in_the_table_and_known() -> None:
    """The options that Spark's guide has for its Kafka source and sink."""
    page = (ROOT / "docs" / "spark.md").read_text()
    table = page.partition("### For users of Spark's Kafka source")[2].partition("\n### ")[0]
    names = (*KAFKA_SOURCE, *KAFKA_SINK, *KAFKA_SETTINGS)
    assert [name for name in names if name not in table] == []
    for name in KAFKA_SOURCE:
        assert name in SOURCE_NAMES or instead_of(name) is not None, name
    for name in KAFKA_SINK:
        assert instead_of(name) is not None, name


def test_headers_are_a_column_that_can_be_asked_for(client: Client, server: Server) -> None:
    sent = insert("user", "u0", {"n": 0}, txid="7", headers={"source": "pg", "lsn": 5})
    fill(client, "headed", [sent, delete("user", "u1")])
    client.stream("headed").append_many([{"no": "event"}, {"headers": 5}])
    found = [row["headers"] for row in read(server.url, "headed", includeHeaders="true")]
    assert json.loads(found[0]) == {"operation": "insert", "txid": "7", "source": "pg", "lsn": 5}
    assert [None if text is None else json.loads(text) for text in found[1:]] == [
        {"operation": "delete"},
        None,
        5,
    ]
    one = read(server.url, "headed", [EqualTo(("key",), "u0")], includeHeaders="true")
    assert [row["headers"] for row in one] == found[:1]
    assert "headers" not in read(server.url, "headed")[0]
    with pytest.raises(InvalidOption, match="is for mode state"):
        source(server.url, "headed", mode="raw", includeHeaders="true").schema()
    # A reset row that the source makes has none.
    query = Query(server.url, "headed", includeHeaders="true", failOnDataLoss="false")
    query.step()
    client.stream("headed").delete()
    assert [(row["control"], row["headers"]) for row in query.step()] == [("reset", None)]


def test_a_streaming_query_has_no_time_at_which_it_ends(server: Server) -> None:
    for options in ({"endingTimestamp": "5"}, {"endingOffsetsByTimestamp": '{"any": 5}'}):
        with pytest.raises(InvalidOption, match="a streaming query has no end"):
            Query(server.url, "any", **options)
