"""Batch reads of the source, against a real server, driven without Spark."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    StringStartsWith,
)

from penstock import Client
from penstock.errors import DataLost, InvalidOption, PenstockError, StreamNotFound, Unauthorized
from penstock.state import delete, insert, reset, update
from tests.helpers.server import Server, running_server
from tests.spark.direct import plan, read, run


def users(count: int, *, first: int = 0) -> list[Any]:
    return [insert("user", f"u{n}", {"n": n}) for n in range(first, first + count)]


def fill(client: Client, name: str, messages: list[Any]) -> None:
    stream = client.stream(name)
    stream.ensure()
    if messages:
        stream.append_many(messages)


def test_every_event_is_a_row_with_its_position(client: Client, server: Server) -> None:
    fill(client, "batch/places", users(3))
    stream = client.stream("batch/places")
    stream.append(update("user", "u1", {"n": 10}, old_value={"n": 1}, txid="t1",
                         timestamp="2025-01-15T10:30:00Z"))  # fmt: skip
    stream.append(delete("user", "u2"))
    rows = read(server.url, "batch/places")
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["kind"] for row in rows} == {"change"}
    assert rows[0]["position"] == 0
    changed = rows[3]
    assert (changed["type"], changed["key"], changed["operation"]) == ("user", "u1", "update")
    assert (changed["value"], changed["old_value"]) == ('{"n":10}', '{"n":1}')
    assert (changed["txid"], changed["timestamp"]) == ("t1", "2025-01-15T10:30:00Z")
    assert (rows[4]["operation"], rows[4]["value"]) == ("delete", None)
    for index, row in enumerate(rows):
        # The offset of a row is where the stream goes on after it.
        assert len(stream.read_json(row["offset"])) == 4 - index
        assert int(row["offset"][:16]) == row["generation"]
    begins = [row["position"] for row in rows[1:]]
    assert [int(row["offset"][17:]) for row in rows[:-1]] == begins


def test_a_message_that_is_not_an_event_is_a_row_with_an_error(
    client: Client, server: Server
) -> None:
    messages = [
        *users(2),
        {"hello": 1},
        "text",
        reset(offset="somewhere"),
        {"type": "user", "key": "", "value": 1, "headers": {"operation": "insert"}},
        {"type": "user", "key": "ü", "value": "ö", "headers": {"operation": "insert"}, "more": 1},
        {"type": "user", "key": "x", "headers": {"operation": "update"}},
    ]
    fill(client, "batch/invalid", messages)
    rows = read(server.url, "batch/invalid")
    kinds = [row["kind"] for row in rows]
    assert kinds == [
        "change", "change", "invalid", "invalid", "control", "invalid", "change", "invalid",
    ]  # fmt: skip
    assert rows[2]["error"] == "headers is missing: every event has headers."
    assert json.loads(rows[2]["value"]) == {"hello": 1}
    assert rows[3]["value"] == '"text"'
    assert (rows[4]["control"], rows[4]["control_offset"]) == ("reset", "somewhere")
    assert "key must not be empty" in rows[5]["error"]
    assert (rows[6]["key"], rows[6]["value"], rows[6]["error"]) == ("ü", '"ö"', None)
    assert "value is missing" in rows[7]["error"]


def test_a_large_value_is_valid_and_a_deep_one_is_not(client: Client, server: Server) -> None:
    wide = insert("doc", "wide", {"text": "x" * 1000})
    deep: Any = 1
    for _ in range(125):
        deep = [deep]
    fill(client, "batch/deep", [wide, insert("doc", "deep", {"text": "y" * 300, "deep": deep})])
    rows = read(server.url, "batch/deep")
    assert [row["kind"] for row in rows] == ["change", "change"]
    assert [len(row["value"]) for row in rows] == [1011, len(rows[1]["value"])]


def test_a_large_stream_is_cut_into_ranges_by_its_ends_alone(
    client: Client, server: Server
) -> None:
    fill(client, "batch/big", users(5000))
    options: dict[str, Any] = {"partitionBytes": "32k"}
    _, partitions, _ = plan(server.url, "batch/big", **options)
    assert len(partitions) > 5
    rows = read(server.url, "batch/big", **options)
    assert [row["seq"] for row in rows] == list(range(5000))
    assert [row["key"] for row in rows] == [f"u{n}" for n in range(5000)]
    assert rows == read(server.url, "batch/big"), "one range or many: the same rows"
    end = json.dumps({"batch/big": rows[-1]["offset"]})
    fill(client, "batch/big", users(100, first=5000))
    _, again, _ = plan(server.url, "batch/big", endingOffsets=end, **options)
    assert [each.value for each in again] == [each.value for each in partitions]


def test_more_partitions_can_be_requested(client: Client, server: Server) -> None:
    fill(client, "batch/min", users(400))
    _, one, _ = plan(server.url, "batch/min")
    reader, many, _ = plan(server.url, "batch/min", minPartitions=4)
    assert (len(one), len(many) >= 4) == (1, True)
    assert [row["seq"] for row in run(reader, many)] == list(range(400))


def test_small_streams_share_a_task(client: Client, server: Server) -> None:
    for number in range(20):
        fill(client, f"batch/small/{number:02}", users(2))
    reader, partitions, _ = plan(server.url, "batch/small/*")
    assert len(partitions) == 1
    rows = run(reader, partitions)
    assert [row["stream"] for row in rows[::2]] == [f"batch/small/{n:02}" for n in range(20)]
    alone = [row for n in range(20) for row in read(server.url, f"batch/small/{n:02}")]
    assert rows == alone, "together or one by one: the same rows"
    assert [row["seq"] for row in rows] == [0, 1] * 20
    fill(client, "batch/small/07", users(2, first=2))
    start = json.dumps({"batch/small/07": rows[15]["offset"], "batch/small/08": "latest"})
    later = read(server.url, "batch/small/07,batch/small/08,batch/small/09", startingOffsets=start)
    assert [(row["stream"][-1], row["seq"]) for row in later] == [
        ("7", 2), ("7", 3), ("9", 0), ("9", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ("globs/a", ["globs/a"]),
        ("/globs/a/", ["globs/a"]),
        ("globs/a,globs/b", ["globs/a", "globs/b"]),
        ('["globs/a", "globs/b"]', ["globs/a", "globs/b"]),
        ("globs/*", ["globs/a", "globs/ab", "globs/b"]),
        ("globs/a*", ["globs/a", "globs/ab"]),
        ("globs/**", ["globs/a", "globs/ab", "globs/b", "globs/b/c", "globs/b/c/d"]),
        ("globs/b/**", ["globs/b", "globs/b/c", "globs/b/c/d"]),
        ("globs/**/d", ["globs/b/c/d"]),
        ("globs/b/*", ["globs/b/c"]),
        ("globs/b/*,globs/a", ["globs/a", "globs/b/c"]),
        ("nothing/**", []),
    ],
)
def test_streams_are_named_or_matched(
    client: Client, server: Server, streams: str, expected: list[str]
) -> None:
    for name in ("a", "ab", "b", "b/c", "b/c/d"):
        stream = client.stream(f"globs/{name}")
        if not stream.exists():
            stream.create(body={"n": 1})
    client.stream("globs/text").ensure("text/plain", body="not of the state")
    rows = read(server.url, streams)
    assert sorted({row["stream"] for row in rows}) == expected


def test_raw_mode_returns_messages_unchanged(client: Client, server: Server) -> None:
    fill(client, "batch/raw", [{"n": 1}, [1, 2], "text", None, {"ü": "ö"}])
    rows = read(server.url, "batch/raw", mode="raw")
    assert [row["payload"] for row in rows] == [
        b'{"n":1}', b"[1,2]", b'"text"', b"null", '{"ü":"ö"}'.encode(),
    ]  # fmt: skip
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]


def test_byte_streams_are_cut_at_fixed_bytes(client: Client, server: Server) -> None:
    data = bytes(range(256)) * 1000
    stream = client.stream("batch/bytes")
    stream.create("application/octet-stream")
    stream.append(data[:100_000])
    stream.append(data[100_000:])
    rows = read(server.url, "batch/bytes", mode="raw")
    assert b"".join(row["payload"] for row in rows) == data
    assert [row["position"] for row in rows] == [0, 65536, 131072, 196608]
    parallel = read(server.url, "batch/bytes", mode="raw", minPartitions=3)
    assert b"".join(row["payload"] for row in parallel) == data


def test_reads_begin_and_end_at_offsets(client: Client, server: Server) -> None:
    fill(client, "batch/ends", users(10))
    rows = read(server.url, "batch/ends")
    start = json.dumps({"batch/ends": rows[2]["offset"]})
    end = json.dumps({"batch/ends": rows[6]["offset"]})
    part = read(server.url, "batch/ends", startingOffsets=start, endingOffsets=end)
    assert part == rows[3:7]
    assert read(server.url, "batch/ends", startingOffsets="latest") == []
    assert read(server.url, "batch/ends", startingOffsets=end, endingOffsets=start) == []
    named = json.dumps({"batch/ends": "earliest"})
    assert read(server.url, "batch/ends", startingOffsets=named) == rows


def test_an_empty_stream_has_no_rows(client: Client, server: Server) -> None:
    fill(client, "batch/empty", [])
    assert read(server.url, "batch/empty") == []


def test_pushed_filters_change_nothing_else(client: Client, server: Server) -> None:
    messages = [insert("a" if n % 2 else "b", str(n), n) for n in range(3000)]
    fill(client, "filter/one", [*messages, reset()])
    fill(client, "filter/two", messages[:10])
    rows = read(server.url, "filter/*")
    middle = rows[1500]["position"]
    cases: list[tuple[list[Filter], Any]] = [
        ([EqualTo(("stream",), "filter/two")], lambda row: row["stream"] == "filter/two"),
        ([In(("stream",), ("filter/two", "x"))], lambda row: row["stream"] == "filter/two"),
        ([StringStartsWith(("stream",), "filter/t")], lambda row: row["stream"] == "filter/two"),
        ([EqualTo(("type",), "a")], lambda row: row["type"] == "a"),
        ([In(("type",), ("a", "z"))], lambda row: row["type"] == "a"),
        ([GreaterThanOrEqual(("position",), middle)], lambda row: row["position"] >= middle),
        (
            [LessThan(("position",), middle), EqualTo(("type",), "b")],
            lambda row: row["position"] < middle and row["type"] == "b",
        ),
        ([EqualTo(("position",), middle)], lambda row: row["position"] == middle),
    ]
    for filters, passes in cases:
        reader, partitions, refused = plan(server.url, "filter/*", filters, partitionBytes="16k")
        assert refused == []
        assert run(reader, partitions) == [row for row in rows if passes(row)], filters
    _, every, _ = plan(server.url, "filter/*", partitionBytes="16k")
    _, some, _ = plan(
        server.url, "filter/*", [GreaterThanOrEqual(("position",), middle)], partitionBytes="16k"
    )
    assert len(some) < len(every), "ranges without such positions are not read"
    other: list[Filter] = [IsNotNull(("type",)), EqualTo(("value",), "1")]
    _, _, refused = plan(server.url, "filter/*", other)
    assert refused == other, "Spark applies what the source does not accept"


def test_the_option_types_passes_control_events(client: Client, server: Server) -> None:
    fill(client, "batch/types", [insert("a", "1", 1), insert("b", "1", 1), reset(), {"bad": 1}])
    rows = read(server.url, "batch/types", types="a")
    assert [(row["kind"], row["type"]) for row in rows] == [
        ("change", "a"), ("control", None), ("invalid", None),
    ]  # fmt: skip


def test_a_recreated_stream_is_an_error_or_a_reset(client: Client, server: Server) -> None:
    fill(client, "batch/anew", users(3))
    rows = read(server.url, "batch/anew")
    client.stream("batch/anew").delete()
    fill(client, "batch/anew", users(2, first=7))
    start = json.dumps({"batch/anew": rows[1]["offset"]})
    with pytest.raises(DataLost, match="batch/anew: It was deleted, and another one created"):
        read(server.url, "batch/anew", startingOffsets=start)
    fresh = read(server.url, "batch/anew", startingOffsets=start, failOnDataLoss="false")
    assert [(row["kind"], row["control"], row["key"]) for row in fresh] == [
        ("control", "reset", None), ("change", None, "u7"), ("change", None, "u8"),
    ]  # fmt: skip
    assert json.loads(fresh[0]["value"]) == {"reason": "stream-recreated"}
    places = [(row["generation"], row["position"]) for row in (*rows, *fresh)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"streams": "no/such"}, StreamNotFound, "There is no stream no/such"),
        ({"streams": ""}, InvalidOption, "Option streams is missing"),
        ({"url": "ftp://x"}, InvalidOption, "has to begin with http"),
        ({"mode": "odd"}, InvalidOption, "Option mode is 'odd': it is state or raw"),
        ({"colour": "red"}, InvalidOption, "Option colour is unknown"),
        ({"minPartitions": "0"}, InvalidOption, "whole number above 0"),
        ({"maxBytesPerTrigger": "big"}, InvalidOption, "takes bytes, or a size"),
        ({"failOnDataLoss": "maybe"}, InvalidOption, "true or false"),
        ({"startingOffsets": "soon"}, InvalidOption, "earliest, latest, or JSON"),
        ({"startingOffsets": "{"}, InvalidOption, "not the JSON it should be"),
        ({"endingOffsets": "earliest"}, InvalidOption, "nothing to read"),
        ({"startingOffsets": '{"other":"-1"}'}, InvalidOption, "not among the streams"),
        ({"streams": "error/text"}, InvalidOption, "has no state events"),
        ({"streams": "http://127.0.0.1:9/x"}, InvalidOption, "by its path"),
        ({"url": "http://127.0.0.1:9", "maxAttempts": "1"}, PenstockError, "got no whole answer"),
    ],
)
def test_errors_say_what_to_do(
    client: Client, server: Server, options: dict[str, str], error: type[Exception], words: str
) -> None:
    fill(client, "error/one", users(1))
    client.stream("error/text").ensure("text/plain")
    values = {"url": server.url, "streams": "error/one", **options}
    with pytest.raises(error, match=words):
        read(**values)  # type: ignore[arg-type]


def test_a_token_is_sent() -> None:
    with running_server(memory=True, args=["--token", "secret"]) as guarded:
        with Client(guarded.url, token="secret") as client:
            fill(client, "a", users(1))
        assert len(read(guarded.url, "a", token="secret")) == 1
        with pytest.raises(Unauthorized):
            read(guarded.url, "a")


@pytest.mark.soak
def test_a_message_of_100_megabytes_is_one_row() -> None:
    with running_server(memory=True, args=["--max-body", "110m"]) as roomy:
        text = "x" * (100 << 20)
        with Client(roomy.url) as client:
            fill(client, "a", [insert("doc", "1", "small"), insert("doc", "2", text)])
        rows = read(roomy.url, "a")
        assert [len(row["value"]) for row in rows] == [7, len(text) + 2]


def test_a_read_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path / "data", args=["--chunk-size", "4k"]) as first:
        with Client(first.url) as client:
            fill(client, "a", users(2000))
        reader, partitions, _ = plan(first.url, "a", maxAttempts=12)
        batches = reader.read(partitions[0])
        rows = next(batches).to_pylist()
        first.kill()
        rest: list[Any] = []
        task = threading.Thread(
            target=lambda: rest.extend(row for batch in batches for row in batch.to_pylist())
        )
        task.start()
        with running_server(data_dir=tmp_path / "data", args=["--port", str(first.port)]):
            task.join(30)
            assert not task.is_alive()
    assert [row["seq"] for row in rows + rest] == list(range(2000))
