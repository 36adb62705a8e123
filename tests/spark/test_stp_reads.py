"""`format("stp")` against a small server that knows only the protocol."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import (
    ConnectionFailed,
    DataLost,
    InvalidOption,
    ProtocolError,
    TableNotFound,
)
from penstock.spark.stp.datasource import StpSource
from tests.spark.direct import run
from tests.spark.stp_server import StpTables, stp_server

ROWS = [f"{n}\t2025-01-01T00:00:0{n}Z\t+\tk{n}\tr{n}" for n in range(1, 6)]


def source(tables: str, **options: Any) -> StpSource:
    values = {"tables": tables, "maxAttempts": "3", **options}
    return StpSource({name: str(value) for name, value in values.items()})


def read(tables: str, **options: Any) -> list[dict[str, Any]]:
    stp = source(tables, **options)
    reader = stp.reader(stp.schema())
    return run(reader, reader.partitions())


@pytest.fixture(params=[True, False], ids=["sends-last", "plain"])
def tables(request: pytest.FixtureRequest) -> Any:
    with stp_server(sends_last=request.param) as server:
        server.add("/t", *ROWS)
        yield server


def test_rows_come_once_and_in_order(tables: StpTables) -> None:
    tables.add("/t", "7\t2025-01-01T00:00:07Z\t-\tk1\t", "8\tlater\t+\tk8\ta\tb", "9\t\t-\tk2")
    rows = read(f"{tables.url}/t")
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 7, 8, 9]
    assert rows[0] == {
        "table": f"{tables.url}/t",
        "seq": 1,
        "timestamp": datetime(2025, 1, 1, 0, 0, 1, tzinfo=UTC),
        "action": "+",
        "key": "k1",
        "record": "r1",
        "error": None,
    }
    assert (rows[5]["action"], rows[5]["record"]) == ("-", None)
    assert (rows[6]["record"], rows[6]["timestamp"]) == ("a\tb", None)
    assert (rows[7]["action"], rows[7]["key"]) == ("-", "k2")


def test_reading_resumes_after_an_answer_that_breaks_off(tables: StpTables) -> None:
    tables.breaks = 2
    assert [row["key"] for row in read(f"{tables.url}/t")] == ["k1", "k2", "k3", "k4", "k5"]


def test_batches_follow_the_tables(tables: StpTables) -> None:
    tables.add("/u", "4\t\t+\tx\ty")
    urls = f"{tables.url}/t,{tables.url}/u"
    stp = source(urls, maxRowsPerTrigger=4)
    reader: Any = stp.streamReader(stp.schema())
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    offset = reader.initialOffset()
    seen: list[tuple[str, int]] = []
    while (end := json.loads(json.dumps(reader.latestOffset(offset, ReadMaxRows(4))))) != offset:
        rows = run(reader, reader.partitions(offset, end))
        assert len(rows) <= 4
        seen += [(row["table"][-1], row["seq"]) for row in rows]
        offset = end
    assert sorted(seen) == [("t", 1), ("t", 2), ("t", 3), ("t", 4), ("t", 5), ("u", 4)]
    assert reader.reportLatestOffset()["lag"] == {}
    tables.add("/t", "6\t\t+\tk6\tr6")
    end = reader.latestOffset(offset, ReadAllAvailable())
    assert [row["key"] for row in run(reader, reader.partitions(offset, end))] == ["k6"]


def test_available_now_ends_where_the_tables_ended(tables: StpTables) -> None:
    stp = source(f"{tables.url}/t", startingOffsets=json.dumps({f"{tables.url}/t": 3}))
    reader: Any = stp.streamReader(stp.schema())
    reader.prepareForTriggerAvailableNow()
    tables.add("/t", "6\t\t+\tk6\tr6")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    rows = run(reader, reader.partitions(reader.initialOffset(), end))
    assert [row["seq"] for row in rows] == [4, 5]


def test_rows_that_are_gone_are_an_error_or_a_reset(tables: StpTables) -> None:
    tables.gone = True
    start = json.dumps({f"{tables.url}/t": 1})
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        read(f"{tables.url}/t", startingOffsets=start)
    rows = read(f"{tables.url}/t", startingOffsets=start, failOnDataLoss="false")
    assert [(row["seq"], row["action"]) for row in rows] == [
        (2, "reset"), (3, "+"), (4, "+"), (5, "+"),
    ]  # fmt: skip


def test_an_answer_that_is_not_a_table_is_refused(tables: StpTables) -> None:
    tables.content_type = "text/html"
    with pytest.raises(ProtocolError, match=f"{tables.url}/t: The answer is not a table"):
        read(f"{tables.url}/t")


def test_a_row_with_invalid_escaping_has_an_error(tables: StpTables) -> None:
    tables.content_type += "; escape=backslash"
    tables.add("/t", "6\t\t+\ta\\tb\tc\\\\d", "7\t\t+\tk\tbad\\x")
    rows = read(f"{tables.url}/t")[-2:]
    assert (rows[0]["key"], rows[0]["record"]) == ("a\tb", "c\\d")
    assert "backslash" in rows[1]["error"]
    assert rows[1]["record"] == "7\t\t+\tk\tbad\\x"


def test_errors_say_what_to_do(tables: StpTables) -> None:
    with pytest.raises(InvalidOption, match="takes State URLs"):
        read("endpoints")
    with pytest.raises(TableNotFound):
        read(f"{tables.url}/none")


@pytest.mark.parametrize(
    ("line", "seq", "error"),
    [
        ("x\t\t+\tk\tr", None, "A SeqNo is a whole number"),
        ("3\t", 3, "five fields"),
        ("3\t\t*\tk\tr", 3, "The action is + or -"),
        ("3\t\t+\t\tr", 3, "key must not be empty"),
    ],
)
def test_a_line_that_is_not_a_row_has_an_error_and_keeps_its_place(
    line: str, seq: int | None, error: str
) -> None:
    with stp_server() as server:
        server.add("/t", ROWS[0], ROWS[1], line, ROWS[3])
        rows = read(f"{server.url}/t")
    assert [row["seq"] for row in rows] == [1, 2, seq, 4]
    assert [row["error"] for row in (rows[0], rows[1], rows[3])] == [None] * 3
    assert error in rows[2]["error"]
    assert (rows[2]["action"], rows[2]["key"], rows[2]["record"]) == (None, None, line)


def test_a_line_that_is_not_a_row_comes_once_although_its_answer_breaks_off(
    tables: StpTables,
) -> None:
    tables.add("/t", "6\tno row", *(f"{n}\t\t+\tk{n}\tr{n}" for n in range(7, 17)))
    tables.breaks = 2
    assert [row["seq"] for row in read(f"{tables.url}/t")] == list(range(1, 17))


def test_a_table_may_end_with_a_line_that_is_not_a_row(tables: StpTables) -> None:
    tables.add("/t", "6\tno row")
    assert [row["seq"] for row in read(f"{tables.url}/t")] == [1, 2, 3, 4, 5, 6]


def test_a_row_without_a_record_has_an_empty_one(tables: StpTables) -> None:
    tables.add("/t", "6\t\t+\tk6")
    row = read(f"{tables.url}/t")[-1]
    assert (row["seq"], row["key"], row["record"], row["error"]) == (6, "k6", "", None)


def test_bytes_that_are_not_utf8_are_an_error_in_the_row(tables: StpTables) -> None:
    tables.encoding = "latin-1"
    tables.add("/t", "6\t\t+\tk6\té", "7\t\t+\tk7\tr7")
    rows = read(f"{tables.url}/t")[-2:]
    assert "UTF-8" in rows[0]["error"]
    assert (rows[0]["seq"], rows[0]["record"]) == (6, "6\t\t+\tk6\t\ufffd")
    assert (rows[1]["key"], rows[1]["error"]) == ("k7", None)


def test_a_server_that_keeps_the_answer_open_is_read_to_the_end_of_the_batch(
    tables: StpTables,
) -> None:
    tables.stays_open = True
    rows = read(f"{tables.url}/t")
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]


def test_answers_that_always_end_early_are_an_error() -> None:
    """Between lines nothing shows that an answer was cut: only the end that was read before."""
    with stp_server() as server:
        server.add("/t", *ROWS)
        server.rows_max = 0
        with pytest.raises(ConnectionFailed, match="ended at SeqNo 0, before 5"):
            read(f"{server.url}/t", maxAttempts=2)
        server.rows_max = 2
        assert [row["seq"] for row in read(f"{server.url}/t")] == [1, 2, 3, 4, 5]
