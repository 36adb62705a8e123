"""Streaming reads of the source: how far each batch goes, and that a repeated one is the same.

Against a real server, driven without Spark.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock import Client
from penstock.client.requests import JSON, Request
from penstock.errors import DataLost, InvalidOption
from penstock.spark.offsets import Position, SourceOffsets, from_spark, parse
from penstock.spark.source.driver import shares
from tests.helpers.server import Server, running_server
from tests.spark.direct import Query, read
from tests.spark.test_batch_reads import fill, users


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


def test_batches_follow_the_stream(client: Client, server: Server) -> None:
    fill(client, "live/follow", users(3))
    query = Query(server.url, "live/follow")
    assert keys(query.step()) == ["u0", "u1", "u2"]
    assert query.step() == []
    fill(client, "live/follow", users(2, first=3))
    query.restart()
    rows = query.step()
    assert keys(rows) == ["u3", "u4"]
    assert [row["seq"] for row in rows] == [3, 4]


def test_a_repeated_batch_has_the_same_rows_whatever_was_appended_since(
    client: Client, server: Server
) -> None:
    fill(client, "live/again", users(2000))
    query = Query(server.url, "live/again", partitionBytes="16k")
    rows = query.step()
    fill(client, "live/again", users(2000, first=2000))
    query.restart()
    start, end = query.batches[0]
    assert query.rows(start, end) == rows
    before = [each.value for each in query.reader.partitions(start, end)]
    assert len(before) > 3
    assert [each.value for each in query.reader.partitions(start, end)] == before


def test_latest_begins_with_what_comes_next(client: Client, server: Server) -> None:
    fill(client, "live/latest/a", users(3))
    query = Query(server.url, "live/latest/*", startingOffsets="latest")
    assert query.step() == []
    fill(client, "live/latest/a", users(1, first=3))
    fill(client, "live/latest/b", users(2))
    # A stream that appears later is read from its beginning.
    assert keys(query.step()) == ["u3", "u0", "u1"]


def test_a_stream_may_appear_later(client: Client, server: Server) -> None:
    query = Query(server.url, "live/later")
    assert query.step() == []
    fill(client, "live/later", users(1))
    assert keys(query.step()) == ["u0"]


def test_no_batch_has_more_messages_than_allowed(client: Client, server: Server) -> None:
    for name, count in (("a", 100), ("b", 3), ("c", 40)):
        fill(client, f"live/most/{name}", users(count))
    query = Query(server.url, "live/most/*", maxMessagesPerTrigger=30)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
    first = query.step()
    sizes = {name: keys_of for name in "abc" if (keys_of := _count(first, f"live/most/{name}"))}
    assert sizes == {"a": 14, "b": 3, "c": 13}, "a fair share for each"
    batches = [first, *query.drain()]
    assert {len(rows) for rows in batches[:-1]} == {30}
    assert sum(map(len, batches)) == 143
    for name, count in (("a", 100), ("b", 3), ("c", 40)):
        of_stream = [
            row for rows in batches for row in rows if row["stream"] == f"live/most/{name}"
        ]
        assert keys(of_stream) == [f"u{n}" for n in range(count)]


def _count(rows: list[dict[str, Any]], stream: str) -> int:
    return sum(row["stream"] == stream for row in rows)


def test_batches_are_bounded_by_bytes_but_have_a_message(client: Client, server: Server) -> None:
    fill(client, "live/bytes", users(200))
    query = Query(server.url, "live/bytes", maxBytesPerTrigger="1k")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(1024)
    batches = query.drain()
    assert len(batches) > 10
    assert [row["seq"] for rows in batches for row in rows] == list(range(200))
    tiny = Query(server.url, "live/bytes", maxBytesPerTrigger="1")
    assert [len(tiny.step()) for _ in range(3)] == [1, 1, 1]


def test_both_limits_hold_and_spark_may_request_everything(client: Client, server: Server) -> None:
    fill(client, "live/both", users(100))
    query = Query(server.url, "live/both", maxMessagesPerTrigger=50, maxBytesPerTrigger="1k")
    assert len(query.step()) < 20
    query = Query(server.url, "live/both", maxMessagesPerTrigger=5, maxBytesPerTrigger="1m")
    assert len(query.step()) == 5
    assert len(query.step(ReadAllAvailable())) == 95


def test_available_now_ends_where_the_streams_ended(client: Client, server: Server) -> None:
    fill(client, "live/now/a", users(20))
    query = Query(server.url, "live/now/*", maxMessagesPerTrigger=8)
    query.reader.prepareForTriggerAvailableNow()
    first = query.step()
    fill(client, "live/now/a", users(5, first=20))
    fill(client, "live/now/b", users(5))
    assert [len(first), *map(len, query.drain())] == [8, 8, 4]


def test_the_progress_of_a_query_shows_the_lag(client: Client, server: Server) -> None:
    fill(client, "live/lag", users(10))
    query = Query(server.url, "live/lag", maxMessagesPerTrigger=4)
    assert query.reader.reportLatestOffset() is None
    query.step()
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    assert shown["lag"] == {"live/lag": 6}
    query.drain()
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    assert shown["lag"] == {}


def test_a_deleted_stream_is_an_error_or_a_reset(client: Client, server: Server) -> None:
    for fails in ("true", "false"):
        fill(client, "live/gone", users(3))
        query = Query(server.url, "live/gone", failOnDataLoss=fails)
        rows = query.step()
        client.stream("live/gone").delete()
        if fails == "true":
            with pytest.raises(DataLost, match="live/gone: It was deleted"):
                query.step()
            continue
        lost = query.step()
        assert [row["control"] for row in lost] == ["reset"]
        assert (lost[0]["generation"], lost[0]["position"]) > (
            rows[-1]["generation"],
            rows[-1]["position"],
        )
        assert query.step() == []
        fill(client, "live/gone", users(1, first=9))
        assert keys(query.step()) == ["u9"]


def test_a_recreated_stream_is_an_error_or_a_reset(client: Client, server: Server) -> None:
    fill(client, "live/anew", users(30))
    strict = Query(server.url, "live/anew")
    query = Query(server.url, "live/anew", failOnDataLoss="false", maxMessagesPerTrigger=10)
    strict.step()
    query.step()
    client.stream("live/anew").delete()
    fill(client, "live/anew", users(2, first=70))
    with pytest.raises(DataLost, match="another one created at its path"):
        strict.step()
    rows = query.step()
    assert [row["control"] or row["key"] for row in rows] == ["reset", "u70", "u71"]
    assert query.step() == []


def test_a_stream_that_is_recreated_while_a_batch_runs(client: Client, server: Server) -> None:
    fill(client, "live/midway", users(30))
    for fails in ("true", "false"):
        query = Query(server.url, "live/midway", failOnDataLoss=fails)
        end = query.reader.latestOffset(query.offset, ReadAllAvailable())
        start, query.offset = query.offset, end
        client.stream("live/midway").delete()
        fill(client, "live/midway", users(1, first=50))
        if fails == "true":
            with pytest.raises(DataLost, match="failOnDataLoss=false"):
                query.rows(start, end)
        else:
            assert query.rows(start, end) == []
            assert [row["control"] or row["key"] for row in query.step()] == ["reset", "u50"]


def test_a_server_with_less_than_was_read_is_an_error(client: Client, server: Server) -> None:
    fill(client, "live/less", users(3))
    query = Query(server.url, "live/less")
    query.step()
    offsets = from_spark(query.offset)
    position = offsets.of("live/less")
    further = f"{position.offset[:17]}{position.byte + 100:016d}"
    ahead = SourceOffsets(offsets.kind, {"live/less": Position(further, 99)})
    query.offset = ahead.to_spark()
    with pytest.raises(DataLost, match="the server has lost data, or is another one"):
        query.step()


def test_a_streaming_query_has_no_end(server: Server) -> None:
    with pytest.raises(InvalidOption, match="a streaming query has no end"):
        Query(server.url, "live/x", endingOffsets='{"live/x": "-1"}')


def test_offsets_of_another_version_are_refused() -> None:
    with pytest.raises(InvalidOption, match="another source or a newer Penstock"):
        from_spark({"version": 9, "streams": {}})


@pytest.mark.parametrize("position", [Position("-1"), Position("a@b", 7), Position("x_1", 7, 3)])
def test_positions_are_written_and_parsed(position: Position) -> None:
    assert parse(position.to_text()) == position


@pytest.mark.parametrize(
    ("pending", "limit", "turn", "expected"),
    [
        ({"a": 100, "b": 3, "c": 40}, 30, 0, {"a": 14, "b": 3, "c": 13}),
        ({"a": 1, "b": 1}, 5, 0, {"a": 1, "b": 1}),
        ({"a": 9, "b": 9}, 9, 0, {"a": 4, "b": 5}),
        ({"a": 9, "b": 9, "c": 9}, 2, 0, {"a": 1, "b": 1}),
        ({"a": 9, "b": 9, "c": 9}, 2, 2, {"c": 1, "a": 1}),
        ({"a": 0, "b": 9}, 2, 0, {"b": 2}),
        ({}, 2, 0, {}),
    ],
)
def test_shares_are_fair(
    pending: dict[str, int], limit: int, turn: int, expected: dict[str, int]
) -> None:
    result = shares(pending, limit, turn=turn)
    assert sum(result.values()) == min(limit, sum(pending.values()))
    assert {name: result.get(name, 0) for name in expected} == expected or sorted(
        result.values()
    ) == sorted(expected.values())


@pytest.mark.soak
def test_ten_thousand_streams_are_one_query() -> None:
    with running_server(memory=True) as many:
        create_streams(many.port, 10_000)
        query = Query(many.url, "many/**")
        assert len(query.step()) == 10_000
        with Client(many.url) as client:
            for number in range(0, 10_000, 500):
                client.stream(f"many/{number:05}", content_type=JSON).append({"n": 2})
            rows = query.step()
            assert [row["stream"] for row in rows] == [
                f"many/{n:05}" for n in range(0, 10_000, 500)
            ]
            named = ",".join(f"many/{number:05}" for number in range(0, 10_000, 3))
            assert len(read(many.url, named, startingOffsets="latest")) == 0
            metrics = client.request(_metrics(many.url)).body.decode()
        assert 'method="HEAD"' not in metrics, "tails come from the listing"


def _metrics(url: str) -> Request:
    return Request("GET", f"{url}/metrics")


def create_streams(port: int, count: int, *, body: str = '{"n":1}', first: int = 0) -> None:
    """Many streams with a message each, by pipelined requests: a client would take ten times as
    long."""
    head = "PUT /v1/stream/many/{:05} HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\n"
    requests = "".join(
        f"{head.format(first + number)}Content-Length: {len(body)}\r\n\r\n{body}"
        for number in range(count)
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(requests.encode(),))
        sender.start()
        answers = 0
        last = b""
        while answers < count:
            piece = connection.recv(1 << 20)
            assert piece, "the server has closed the connection"
            answers += (last + piece).count(b"HTTP/1.1 201") - last.count(b"HTTP/1.1 201")
            last = piece[-11:]
        sender.join()
