"""Servers without Penstock's extensions: the reference server from npm."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock import Client
from penstock.errors import DataLost, InvalidOption
from tests.conformance.reference import Reference, reference_server
from tests.spark.direct import Query, plan, read
from tests.spark.replay import Replay
from tests.spark.test_batch_reads import fill, users
from tests.spark.test_stream_reads import keys


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with reference_server() as running:
        yield running


@pytest.fixture(scope="module")
def other(reference: Reference) -> Iterator[Client]:
    with Client(reference.url) as client:
        yield client


def test_every_event_is_read_once_and_in_order(other: Client, reference: Reference) -> None:
    for first in range(0, 50, 10):
        fill(other, "batch", users(10, first=first))
    other.stream("batch").append({"bad": 1})
    rows = read(reference.url, "batch")
    assert [row["seq"] for row in rows] == [row["position"] for row in rows] == list(range(51))
    assert keys(rows[:50]) == [f"u{n}" for n in range(50)]
    assert (rows[50]["kind"], rows[50]["error"] is not None) == ("invalid", True)
    assert {(row["generation"], row["offset"]) for row in rows} == {(None, None)}


def test_ranges_are_an_offset_and_a_count(other: Client, reference: Reference) -> None:
    fill(other, "live", users(25))
    query = Query(reference.url, "live", maxMessagesPerTrigger=10)
    first = query.step()
    fill(other, "live", users(5, first=25))
    query.restart()
    rest = query.drain()
    assert [len(rows) for rows in (first, *rest)] == [10, 10, 10]
    assert keys([row for rows in (first, *rest) for row in rows]) == [f"u{n}" for n in range(30)]
    for (start, end), rows in zip(query.batches, (first, *rest), strict=True):
        assert query.rows(start, end) == rows, "again the same, though the stream has grown"


def test_reads_begin_at_an_offset_and_end_at_another(other: Client, reference: Reference) -> None:
    fill(other, "ends", users(3))
    middle = other.stream("ends").head().offset
    fill(other, "ends", users(2, first=3))
    offsets = json.dumps({"ends": middle})
    assert keys(read(reference.url, "ends", startingOffsets=offsets)) == ["u3", "u4"]
    assert keys(read(reference.url, "ends", endingOffsets=offsets)) == ["u0", "u1", "u2"]
    assert read(reference.url, "ends", startingOffsets=offsets, endingOffsets=offsets) == []
    assert read(reference.url, "ends", startingOffsets="latest") == []


def test_available_now_and_latest(other: Client, reference: Reference) -> None:
    fill(other, "now", users(5))
    late = Query(reference.url, "now", startingOffsets="latest")
    query = Query(reference.url, "now", maxMessagesPerTrigger=2)
    query.reader.prepareForTriggerAvailableNow()
    assert [len(rows) for rows in query.drain()] == [2, 2, 1]
    fill(other, "now", users(1, first=5))
    assert keys(late.step()) == ["u5"]


def test_byte_streams_are_counted_in_bytes(other: Client, reference: Reference) -> None:
    stream = other.stream("bytes")
    stream.create("text/plain")
    stream.append("hello ")
    stream.append("world")
    query = Query(reference.url, "bytes", mode="raw", maxMessagesPerTrigger=4)
    pieces = [b"".join(row["payload"] for row in rows) for rows in query.drain()]
    assert pieces == [b"hell", b"o wo", b"rld"]


def test_a_stream_can_be_named_by_its_url(other: Client, reference: Reference) -> None:
    fill(other, "by-url", users(2))
    url = other.stream("by-url").url
    rows = read(reference.url, url)
    assert (rows[0]["stream"], keys(rows)) == (url, ["u0", "u1"])


def test_patterns_need_a_listing(reference: Reference) -> None:
    with pytest.raises(InvalidOption, match="cannot list its streams"):
        plan(reference.url, "any/**")


def test_a_query_that_starts_at_the_offsets_of_another_continues_counting(
    other: Client, reference: Reference
) -> None:
    fill(other, "stood", users(5))
    first = Query(reference.url, "stood", maxMessagesPerTrigger=3)
    first.step()
    stood = json.dumps(first.offset)
    assert "+3" in stood, "inside an answer of the server"
    fill(other, "stood", users(1, first=5))
    rows = Query(reference.url, "stood", startingOffsets=stood).step()
    assert [(row["seq"], row["key"]) for row in rows] == [(3, "u3"), (4, "u4"), (5, "u5")]


def test_an_unselected_stream_resumes_at_its_position(other: Client, reference: Reference) -> None:
    fill(other, "rests-a", users(1))
    fill(other, "rests-b", users(2))
    query = Query(reference.url, "rests-a,rests-b")
    query.step()
    query.change("rests-a")
    fill(other, "rests-b", users(1, first=2))
    assert query.step() == []
    query.change("rests-a,rests-b")
    assert [(row["seq"], row["key"]) for row in query.step()] == [(2, "u2")]


def test_a_recreated_stream_is_counted_from_the_reset(other: Client, reference: Reference) -> None:
    """There are no generations to tell the two streams apart: the numbers have to."""
    fill(other, "anew", users(3))
    strict = Query(reference.url, "anew")
    query = Query(reference.url, "anew", failOnDataLoss="false")
    seen, _ = query.step(), strict.step()
    other.stream("anew").delete()
    with pytest.raises(DataLost, match="anew: It was deleted"):
        strict.step()
    lost = query.step()
    assert [(row["seq"], row["position"], row["generation"], row["offset"]) for row in lost] == [
        (3, 3, None, None)
    ]
    assert query.step() == []
    query.restart()
    fill(other, "anew", users(2, first=8))
    rows = query.step()
    assert [(row["seq"], row["key"]) for row in rows] == [(4, "u8"), (5, "u9")]
    replay = Replay()
    replay.see(sorted(seen + lost + rows, key=lambda row: int(row["seq"])))
    assert [row[1] for row in replay.state_rows("user")] == ["u8", "u9"]
