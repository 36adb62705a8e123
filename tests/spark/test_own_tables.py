"""`format("stp")` and the sink's mode `stp` against tables of our own server: both codecs, escaped
or not, trimmed, compacted and recreated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock.spark
from penstock import Client
from penstock.errors import DataLost
from penstock.spark.stp.datasource import StpSource
from penstock.stp import Table
from tests.helpers.server import Server, running_server
from tests.spark.direct import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "tab\there, line\nend,\rreturn and \\ or \\t"


def read(table: Table, **options: Any) -> list[dict[str, Any]]:
    values = {"tables": table.url, "maxAttempts": "2", **options}
    source = StpSource({name: str(value) for name, value in values.items()})
    reader = source.reader(source.schema())
    return run(reader, reader.partitions())


class Live:
    """A streaming query over one table, driven as Spark does."""

    def __init__(self, table: Table, **options: Any) -> None:
        values = {"tables": table.url, "maxAttempts": "2", **options}
        source = StpSource({name: str(value) for name, value in values.items()})
        self.reader: Any = source.streamReader(source.schema())
        self.offset = self.reader.initialOffset()

    def step(self) -> list[tuple[int, str, str | None]]:
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, ReadAllAvailable())))
        start, self.offset = self.offset, end
        rows = run(self.reader, self.reader.partitions(start, end))
        assert [row["error"] for row in rows] == [None] * len(rows)
        return [(row["seq"], row["action"], row["key"]) for row in rows]


@pytest.mark.parametrize("codec", ["text", "json"])
@pytest.mark.parametrize("escape", [False, True])
def test_rows_of_both_codecs_are_read_as_they_were_written(
    client: Client, codec: str, escape: bool
) -> None:
    table = Table(client, f"tables/{codec}-{escape}")
    table.create("t", record=codec, escape=escape)
    text = ODD if escape else "plain \\ or \\t"
    record = json.dumps({"note": text}) if codec == "json" else text
    key = ODD if escape else "back\\slash"
    table.write([("+", key, record), ("+", "b", record), ("-", "b")])
    rows = read(table)
    assert [(row["seq"], row["action"], row["key"]) for row in rows] == [
        (1, "+", key), (2, "+", "b"), (3, "-", "b"),
    ]  # fmt: skip
    stored = rows[0]["record"]
    assert (json.loads(stored) if codec == "json" else stored) == (
        {"note": text} if codec == "json" else text
    )
    assert rows[0]["timestamp"] is not None
    assert rows[2]["record"] is None


@pytest.mark.parametrize("codec", ["text", "json"])
@pytest.mark.parametrize("escape", [False, True])
def test_rows_of_the_sink_are_stored_once_and_can_be_read(
    spark: SparkSession, client: Client, server: Server, codec: str, escape: bool
) -> None:
    table = Table(client, f"written/{codec}-{escape}")
    table.create("t", record=codec, escape=escape)
    text = ODD if escape else "plain \\ or \\t"
    record: Any = "struct(record AS note)" if codec == "json" else "record"
    rows = [("k1", text, "+"), ("k2" + (ODD if escape else ""), "x", "+"), ("k1", None, "-")]
    frame = spark.createDataFrame(rows, "key STRING, record STRING, action STRING").coalesce(1)
    frame = frame.selectExpr("key", f"{record} AS record", "action")
    for _ in range(2):
        writer = frame.write.format("durable_streams").mode("append")
        options = {"url": server.url, "table": f"written/{codec}-{escape}", "mode": "stp"}
        writer.options(txnAppId="a", txnVersion="1", chunkMessages="2", **options).save()
    read_back = spark.read.format("stp").option("tables", table.url).load().orderBy("seq").collect()
    assert [(row.seq, row.action, row.key) for row in read_back] == [
        (1, "+", rows[0][0]), (2, "+", rows[1][0]), (3, "-", "k1"),
    ]  # fmt: skip
    assert (
        json.loads(read_back[0].record)["note"] if codec == "json" else read_back[0].record
    ) == text


def test_invalid_rows_and_missing_tables_are_named(
    spark: SparkSession, client: Client, server: Server
) -> None:
    Table(client, "written/plain").create("t")
    frame = spark.createDataFrame([("a\tb", "r")], "key STRING, record STRING")
    for table, words in (("written/plain", "tab"), ("written/none", "There is no table")):
        options = {"url": server.url, "table": table, "mode": "stp"}
        with pytest.raises(Exception, match=words) as caught:
            frame.write.format("durable_streams").mode("append").options(**options).save()
        assert "\n" not in penstock.spark.error_message(caught.value)


def test_a_trimmed_table_is_an_error_or_a_reset(client: Client) -> None:
    table = Table(client, "tables/trimmed")
    table.create("t")
    table.write([("+", "a", "1"), ("+", "b", "1")])
    strict, query = Live(table), Live(table, failOnDataLoss="false")
    assert strict.step() == query.step() == [(1, "+", "a"), (2, "+", "b")]
    table.write([("-", "a"), ("+", "c", "1"), ("+", "d", "1")])
    stream = client.stream("tables/trimmed")
    stream.trim(stream.read(count=4).next_offset)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        strict.step()
    # The row that deleted `a` is gone: the reset deletes it.
    assert query.step() == [(4, "reset", None), (5, "+", "d")]
    assert query.step() == []
    assert [row["seq"] for row in read(table)] == [5], "from the beginning that there is"


def test_a_compacted_table_is_an_error_or_a_reset(client: Client) -> None:
    table = Table(client, "tables/compacted")
    table.create("t")
    table.write([("+", "a", "1"), ("+", "b", "1")])
    strict, query = Live(table), Live(table, failOnDataLoss="false")
    strict.step()
    query.step()
    up_to_date = Live(table)
    table.write([("-", "a"), ("+", "b", "2")])
    up_to_date.step()
    client.stream("tables/compacted").compact()
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        strict.step()
    assert [row[1:] for row in query.step()] == [("reset", None), ("+", "b")]
    assert [row[1:] for row in up_to_date.step()] == [("+", "b")], "rows that it has, once more"


def test_a_recreated_table_is_an_error_or_a_reset(client: Client) -> None:
    table = Table(client, "tables/recreated")
    table.create("t")
    table.write([("+", "a", "1"), ("+", "b", "1"), ("+", "c", "1")])
    strict, query = Live(table), Live(table, failOnDataLoss="false")
    strict.step()
    query.step()
    client.stream("tables/recreated").delete()
    table.create("t")
    table.write([("+", "z", "1")])
    with pytest.raises(DataLost, match="it was recreated"):
        strict.step()
    assert query.step() == [(0, "reset", None), (1, "+", "z")]
    assert query.step() == []


def test_a_guarded_table_needs_a_token() -> None:
    with running_server(memory=True, args=["--token", "secret"]) as guarded:
        with Client(guarded.url, token="secret") as client:
            table = Table(client, "t")
            table.create("t")
            table.put("a", "1")
        assert len(read(table, token="secret")) == 1
        assert httpx2.get(table.url).status_code == 401
