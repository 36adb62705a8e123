"""The sink: the messages of rows, and that a repeated write duplicates nothing."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, LongType, NullType, StringType, StructField, StructType

import penstock.spark
from penstock import Client
from penstock.errors import InvalidOption, NotWritable
from penstock.spark.sink.datasource import (
    ChunkSender,
    ProducerIdentity,
    batch_writer,
    sink_options,
    stream_writer,
)
from penstock.spark.sink.rows import Encoder
from penstock.state import insert
from tests.helpers.server import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
DUPLICATES = "penstock_duplicates_total"


def columns(text: str) -> StructType:
    """A schema without Spark's parser, which needs a session: `name TYPE, …`."""
    kinds = {"STRING": StringType(), "BIGINT": LongType(), "BINARY": BinaryType()}
    pairs = (each.split(maxsplit=1) for each in text.split(", "))
    return StructType([StructField(name, kinds.get(kind, NullType())) for name, kind in pairs])


def encoded(mode: Any, ddl: str, *rows: dict[str, Any], **options: Any) -> list[Any]:
    """What rows of a schema become, as text."""
    schema = columns(ddl)
    encoder = Encoder(mode, schema, target="t", entity=options.get("entity"))
    batch = pa.RecordBatch.from_pylist(list(rows))
    return [message.decode() for _, message in encoder.encode(batch)]


def send(server: Server, rows: list[dict[str, Any]], epoch: int = 0, **options: str) -> Any:
    """Send rows as one task would."""
    values = {"url": server.url, "stream": "sink/direct", "maxAttempts": "1", **options}
    parsed, encoder = sink_options(values, columns("stream STRING, n BIGINT"))
    sending = ChunkSender(parsed, encoder, ProducerIdentity("query/sink/0", epoch))
    return sending.send_all(iter([pa.RecordBatch.from_pylist(rows)]))


def test_rows_become_json_objects() -> None:
    moment = datetime(2025, 1, 1, tzinfo=UTC)
    row: dict[str, Any] = {"a": 1, "b": "ü", "c": None, "d": [1], "e": {"f": 2.5}}
    row |= {"g": Decimal("1.50"), "h": moment}
    [text] = encoded("json", "a BIGINT, b STRING", row)
    assert text == (
        '{"a":1,"b":"ü","c":null,"d":[1],"e":{"f":2.5},"g":1.50,"h":"2025-01-01T00:00:00Z"}'
    )


def test_columns_become_state_events() -> None:
    ddl = "type STRING, key STRING, value STRING, operation STRING, control STRING"
    texts = encoded(
        "state",
        ddl,
        {"type": "u", "key": "1", "value": '{"n":1}', "operation": "insert", "control": None},
        {"type": "u", "key": "1", "value": None, "operation": "delete", "control": None},
        {"type": "u", "key": "1", "value": "2", "operation": None, "control": None},
        {"type": None, "key": None, "value": None, "operation": None, "control": "reset"},
    )
    assert [json.loads(text) for text in texts] == [
        {"type": "u", "key": "1", "value": {"n": 1}, "headers": {"operation": "insert"}},
        {"type": "u", "key": "1", "headers": {"operation": "delete"}},
        {"type": "u", "key": "1", "value": 2, "headers": {"operation": "upsert"}},
        {"headers": {"control": "reset"}},
    ]
    [text] = encoded("state", "key STRING, value STRUCT",
                     {"key": "1", "value": {"n": 1}}, entity="user")  # fmt: skip
    assert json.loads(text)["value"] == {"n": 1}


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("STRING", '{"operation":"insert","txid":"8","source":"pg"}'),
        ("MAP<STRING, STRING>", {"source": "pg"}),
        ("STRUCT<source STRING>", {"source": "pg"}),
    ],
)
def test_a_column_has_headers_of_ones_own(kind: str, headers: Any) -> None:
    row = {"type": "u", "key": "1", "value": "2", "txid": "7", "headers": headers}
    ddl = "type STRING, key STRING, value STRING, txid STRING, headers STRING"
    [text] = encoded("state", ddl, row)
    assert json.loads(text)["headers"] == {"operation": "upsert", "txid": "7", "source": "pg"}


@pytest.mark.parametrize(
    ("mode", "ddl", "row", "words"),
    [
        ("state", "type STRING, key STRING, value STRING",
         {"type": "u", "key": "1", "value": "{no"}, "not JSON"),
        ("state", "type STRING, key STRING, value STRING",
         {"type": "u", "key": "", "value": "1"}, "key must not be empty"),
        ("state", "type STRING, key STRING, value STRING",
         {"type": "u", "key": "1", "value": None}, "value is missing"),
        ("state", "type STRING, key STRING, control STRING",
         {"type": "u", "key": "1", "control": "stop"}, "Control 'stop' is unknown"),
        ("state", "type STRING, key STRING, value STRING, headers STRING",
         {"type": "u", "key": "1", "value": "1", "headers": "[]"}, "headers has no JSON object"),
        ("stp", "key STRING, record STRING", {"key": "a\tb", "record": "x"}, "holds a tab"),
        ("stp", "key STRING, record STRING", {"key": "a", "record": None}, "needs a key, and"),
        ("raw", "payload STRING", {"payload": None}, "no payload"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_written_are_named(
    mode: str, ddl: str, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotWritable, match=words):
        encoded(mode, ddl, row)


def test_rows_become_stp_lines() -> None:
    ddl = "key STRING, record STRING, action STRING"
    rows: list[dict[str, Any]] = [
        {"key": "a", "record": "x y", "action": "+"},
        {"key": "a", "record": None, "action": "-"},
    ]
    assert encoded("stp", ddl, *rows) == ["+\ta\tx y\n", "-\ta\t\n"]


def test_chunks_are_cut_by_rows_and_bytes_alone(server: Server, client: Client) -> None:
    rows = [{"n": n} for n in range(25)]
    written = send(server, rows, chunkMessages="10")
    assert (written.messages, written.chunks) == (25, 3)
    assert send(server, rows, epoch=1, chunkBytes="20").chunks == 13, "two rows of 8 or 9 bytes"
    assert client.stream("sink/direct").read_json() == rows * 2


def test_a_row_or_chunk_that_is_too_large_is_named() -> None:
    with running_server(memory=True, args=["--max-body", "64k"]) as small:
        rows = [{"n": n, "text": "x" * 900} for n in range(200)]

        def put(rows: list[dict[str, Any]], epoch: int, size: str) -> Any:
            values = {"stream": "sink/large", "chunkMessages": "500", "chunkBytes": size}
            return send(small, rows, epoch, **values)

        with pytest.raises(NotWritable, match=r"200 rows has .* bytes.*Lower .* chunkBytes"):
            put(rows, 0, "1m")
        assert put(rows, 0, "60k").chunks == 4
        with pytest.raises(NotWritable, match=r"a row has 70,0\d\d bytes.*at most 65536"):
            put([*rows[:3], {"n": 1, "text": "y" * 70_000}], 1, "60k")
        with Client(small.url) as client:
            assert client.stream("sink/large").read_json() == [*rows, *rows[:3]]


def test_a_repeated_task_duplicates_nothing_and_a_late_one_is_refused(
    server: Server, client: Client
) -> None:
    rows = [{"stream": f"sink/again/{n % 2}", "n": n} for n in range(10)]
    for _ in range(2):
        send(server, rows, epoch=3, stream="", chunkMessages="2")
    for number in range(2):
        stream = client.stream(f"sink/again/{number}")
        assert [row["n"] for row in stream.read_json()] == list(range(number, 10, 2))
    send(server, rows[:2], epoch=4, stream="")
    with pytest.raises(NotWritable, match="has written batch 4 there already"):
        send(server, rows, epoch=3, stream="")


def test_two_attempts_at_once_duplicate_nothing(server: Server, client: Client) -> None:
    """As Spark's speculative copies do: the same chunks under the same numbers, from two tasks."""
    rows = [{"n": n} for n in range(400)]
    together = threading.Barrier(4)

    def attempt() -> Any:
        together.wait(30)
        return send(server, rows, epoch=7, stream="sink/twice", chunkMessages="5")

    with ThreadPoolExecutor(4) as tasks:
        done = [task.result() for task in [tasks.submit(attempt) for _ in range(4)]]
    assert [(each.messages, each.chunks) for each in done] == [(400, 80)] * 4
    assert client.stream("sink/twice").read_json() == rows


def test_a_repeated_batch_with_other_chunks_is_refused(server: Server) -> None:
    send(server, [{"n": 1}], epoch=0, stream="sink/gap")
    values = {"url": server.url, "stream": "sink/gap", "maxAttempts": "1"}
    parsed, encoder = sink_options(values, columns("n BIGINT"))
    sending = ChunkSender(parsed, encoder, ProducerIdentity("query/sink/0", 0))
    sending._sent["sink/gap"] = 5
    with pytest.raises(NotWritable, match="expects chunk 1"):
        sending.send_all(iter([pa.RecordBatch.from_pylist([{"n": 2}])]))


@pytest.mark.parametrize(
    ("options", "ddl", "words"),
    [
        ({"mode": "state"}, "value STRING", "need a column key"),
        ({"mode": "state"}, "key STRING", "need a column type or the option type"),
        ({"stream": ""}, "n INT", "need a column stream or the option stream"),
        ({"mode": "raw"}, "payload INT", "STRING or BINARY"),
        ({"mode": "stp"}, "key STRING", "Option table is missing"),
        ({"sinkName": "a/b"}, "n INT", "sinkName is 'a/b'"),
        ({"txnAppId": "a"}, "n INT", "go together"),
        ({"txnAppId": "a", "txnVersion": "x"}, "n INT", "whole number"),
        ({"streams": "a"}, "n INT", "Option streams is unknown"),
    ],
)
def test_options_are_checked_before_anything_is_sent(
    options: dict[str, str], ddl: str, words: str
) -> None:
    values = {"url": "http://127.0.0.1:9", "stream": "a", **options}
    with pytest.raises(InvalidOption, match=words):
        batch_writer(values, columns(ddl), overwrite=False)


def test_streams_only_grow() -> None:
    values = {"url": "http://127.0.0.1:9", "stream": "a"}
    schema = columns("n INT")
    with pytest.raises(InvalidOption, match="only grow"):
        batch_writer(values, schema, overwrite=True)
    with pytest.raises(InvalidOption, match="only grow"):
        stream_writer(values, schema, overwrite=True)


def test_chunking_is_fixed_by_the_checkpoint(tmp_path: Path) -> None:
    schema = columns("n INT")
    values = {"url": "http://127.0.0.1:9", "stream": "a", "checkpointLocation": str(tmp_path)}
    for _ in range(2):
        stream_writer({**values, "chunkMessages": "10"}, schema, overwrite=False)
    with pytest.raises(InvalidOption, match="chunkMessages is 20, and was 10 when this query"):
        stream_writer({**values, "chunkMessages": "20"}, schema, overwrite=False)
    stream_writer({**values, "chunkMessages": "20", "sinkName": "b"}, schema, overwrite=False)


# -- in Spark


def save(frame: DataFrame, server: Server, stream: str, **options: str) -> None:
    writer = frame.write.format("durable_streams").mode("append")
    writer.options(url=server.url, stream=stream, **options).save()


def test_batch_writes(spark: SparkSession, client: Client, server: Server) -> None:
    frame = spark.range(0, 100, 1, 2)
    save(frame, server, "sink/json", chunkMessages="7")
    rows = client.stream("sink/json").read_json()
    assert sorted(row["id"] for row in rows) == list(range(100))
    for _ in range(2):
        save(frame.limit(3).coalesce(1), server, "sink/txn", txnAppId="job", txnVersion="5")
    assert client.stream("sink/txn").read_json() == [{"id": 0}, {"id": 1}, {"id": 2}]
    with pytest.raises(Exception, match="an older txnVersion") as caught:
        save(frame.limit(1).coalesce(1), server, "sink/txn", txnAppId="job", txnVersion="4")
    assert penstock.spark.error_message(caught.value).startswith("sink/txn: batch 4 was refused")


def test_each_plain_write_has_its_own_producer(
    spark: SparkSession, client: Client, server: Server
) -> None:
    frame = spark.range(0, 3, 1, 1)
    for _ in range(2):
        save(frame, server, "sink/nonce")
    rows = [{"id": 0}, {"id": 1}, {"id": 2}]
    assert client.stream("sink/nonce").read_json() == rows * 2


def failing_once(
    batches: Iterator[pa.RecordBatch], url: str, stream: str
) -> Iterator[pa.RecordBatch]:
    """Rows whose first attempt breaks off when some of them are in the stream."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        return
    with Client(url) as client:
        nothing, deadline = threading.Event(), time.monotonic() + 60
        while not client.stream(stream).read(count=1).messages and time.monotonic() < deadline:
            nothing.wait(0.05)
    raise OSError("the first attempt fails")


def test_a_task_that_fails_after_it_has_sent_is_stored_once(
    spark: SparkSession, client: Client, server: Server
) -> None:
    stream = client.stream("sink/retried")
    stream.create()
    rows = spark.range(0, 20_000, 1, 1).selectExpr("id", "repeat('x', 100) AS text")
    failing = partial(failing_once, url=server.url, stream="sink/retried")
    before = duplicates(server)
    # In small pieces, since Spark would hold all of them back until the first attempt has failed.
    spark.conf.set(RECORDS, "500")
    try:
        frame = rows.mapInArrow(failing, "id BIGINT, text STRING")
        save(frame, server, "sink/retried", chunkMessages="500")
    finally:
        spark.conf.unset(RECORDS)
    ids = [row["id"] for row in stream.read_json()]
    assert ids == list(range(20_000)), "each once, and in order"
    assert duplicates(server) > before, "and some came twice"


def duplicates(server: Server) -> int:
    """Appends that the server knew already."""
    text = httpx2.get(f"{server.url}/metrics").text
    [line] = [line for line in text.splitlines() if line.startswith(DUPLICATES)]
    return int(float(line.rpartition(" ")[2]))


def test_a_replayed_batch_of_a_query_is_stored_once(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path
) -> None:
    source = client.stream("sink/from")
    source.create()
    source.append_many([insert("user", f"u{n}", {"n": n}) for n in range(50)])

    def run() -> None:
        frame = (
            spark.readStream.format("durable_streams")
            .options(url=server.url, streams="sink/from", maxMessagesPerTrigger="20")
            .load()
            .select("type", "key", "value", "operation")
        )
        query = (
            frame.writeStream.format("durable_streams")
            .options(url=server.url, stream="sink/to", mode="state", chunkMessages="8")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    written = client.stream("sink/to").read_json()
    assert written == source.read_json()
    # As if the driver had died after the last batch was sent, before Spark took note of it.
    last = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    shutil.rmtree(tmp_path / "commits" / f".{last.name}.crc", ignore_errors=True)
    Path(tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    source.append(insert("user", "last", {}))
    run()
    assert client.stream("sink/to").read_json() == source.read_json()
