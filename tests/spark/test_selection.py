"""Queries that continue with other streams, or from the offsets of another query: an unselected
stream keeps its position, resumes when it is selected again, and every event keeps its number.
Driven without Spark.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from penstock import Client
from penstock.errors import DataLost, InvalidOption
from penstock.spark.offsets import Position, SourceOffsets
from penstock.spark.source.planning import ranges_between
from tests.helpers.server import Server, running_server
from tests.spark.direct import Query, read
from tests.spark.test_batch_reads import fill, users
from tests.spark.test_stream_reads import create_streams


def summary(rows: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(row["stream"], row["seq"], row["control"] or row["key"]) for row in rows]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_unselected_stream_keeps_its_position_until_it_is_selected_again(
    client: Client, server: Server, fails: str
) -> None:
    home = f"selected/rests-{fails}"
    for name in ("a", "b"):
        fill(client, f"{home}/{name}", users(2))
    query = Query(server.url, f"{home}/*", failOnDataLoss=fails)
    query.step()
    fill(client, f"{home}/b", users(1, first=2))
    query.change(f"{home}/a")
    assert query.step() == []
    fill(client, f"{home}/a", users(1, first=2))
    assert summary(query.step()) == [(f"{home}/a", 2, "u2")]
    query.change(f"{home}/a,{home}/b")
    assert summary(query.step()) == [(f"{home}/b", 2, "u2")], (
        "from where it was, not from its start"
    )


def test_the_progress_of_a_query_shows_unselected_streams(client: Client, server: Server) -> None:
    for name in ("a", "b", "c"):
        fill(client, f"selected/shown/{name}", users(2))
    query = Query(server.url, "selected/shown/*")
    query.step()
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    assert "unselected" not in shown
    query.change("/selected/shown/a/")
    query.step()
    shown = query.reader.reportLatestOffset()
    assert shown is not None
    assert shown["unselected"] == ["selected/shown/b", "selected/shown/c"]
    assert shown["lag"] == {}


def test_a_deleted_stream_is_lost_whether_it_is_selected_or_not(
    client: Client, server: Server
) -> None:
    for name in ("a", "b", "c"):
        fill(client, f"selected/lost/{name}", users(2))
    query = Query(server.url, "selected/lost/*")
    query.step()
    query.change("selected/lost/a")
    client.stream("selected/lost/b").delete()
    with pytest.raises(DataLost, match="selected/lost/b: It was deleted"):
        query.step()
    query.change("selected/lost/a", failOnDataLoss="false")
    assert summary(query.step()) == [("selected/lost/b", 2, "reset")]
    assert query.step() == []
    fill(client, "selected/lost/b", users(1, first=5))
    query.change("selected/lost/*")
    assert summary(query.step()) == [("selected/lost/b", 0, "u5")], "a new stream, a new generation"


def test_a_stream_recreated_while_unselected_is_detected_when_it_is_selected_again(
    client: Client, server: Server
) -> None:
    fill(client, "selected/anew/a", users(2))
    fill(client, "selected/anew/b", users(2))
    query = Query(server.url, "selected/anew/*")
    query.step()
    query.change("selected/anew/a")
    client.stream("selected/anew/b").delete()
    fill(client, "selected/anew/b", users(1, first=7))
    assert query.step() == []
    query.change("selected/anew/*")
    with pytest.raises(DataLost, match="another one created at its path"):
        query.step()


def test_unselected_streams_are_looked_up_by_pages() -> None:
    with running_server(memory=True) as many:
        create_streams(many.port, 3_000)
        query = Query(many.url, "many/**")
        assert len(query.step()) == 3_000
        before = requests(many.url)
        assert before > 3_000
        query.change("many/00000")
        assert query.step() == []
        assert requests(many.url) - before < 10, "not one for each"
        query.change("many/**")
        assert query.step() == []


def requests(url: str) -> float:
    """How many the server has answered."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("penstock_requests_total")
    )


def test_a_query_starts_at_the_offsets_of_another_one(client: Client, server: Server) -> None:
    for name in ("a", "b", "gone"):
        fill(client, f"selected/stood/{name}", users(3))
    first = Query(server.url, "selected/stood/*", maxMessagesPerTrigger=5)
    first.step()
    stood = json.dumps(first.offset)
    rest = [row for rows in first.drain() for row in rows]
    second = Query(server.url, "selected/stood/*", startingOffsets=stood)
    assert summary(second.step()) == sorted(summary(rest))
    assert summary(read(server.url, "selected/stood/*", startingOffsets=stood)) == sorted(
        summary(rest)
    )
    client.stream("selected/stood/gone").delete()
    strict = Query(server.url, "selected/stood/*", startingOffsets=stood)
    with pytest.raises(DataLost, match="selected/stood/gone: It was deleted"):
        strict.step()
    lenient = {"startingOffsets": stood, "failOnDataLoss": "false"}
    rows = Query(server.url, "selected/stood/*", **lenient).step()
    assert [row["control"] for row in rows if row["stream"].endswith("gone")] == ["reset"]
    with pytest.raises(DataLost, match="selected/stood/gone: It was deleted"):
        read(server.url, "selected/stood/*", startingOffsets=stood)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ('{"version": 2, "server": "penstock", "streams": {}}', "newer Penstock"),
        (
            '{"version": 1, "server": "mine", "streams": {}}',
            "looks like the offsets of another query",
        ),
        ('{"version": 1, "streams": {}}', "looks like the offsets of another query"),
        ('{"version": 1, "server": "other", "streams": {"a": 1}}', "looks like the offsets of"),
        ('{"version": 1, "server": "other", "streams": {"a": "x@y"}}', "looks like the offsets of"),
        ('{"a": 1}', "not the JSON it should be"),
    ],
)
def test_invalid_offsets_are_named(server: Server, offsets: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Query(server.url, "selected/none", startingOffsets=offsets)


def test_offsets_of_another_kind_of_server_are_refused(server: Server) -> None:
    offsets = SourceOffsets("other", {"selected/x": Position("5", 5)})
    query = Query(server.url, "selected/x", startingOffsets=json.dumps(offsets.to_spark()))
    with pytest.raises(
        InvalidOption, match=r"is not a Penstock server, and .* is a Penstock server"
    ):
        query.step()


def test_only_penstock_has_generations() -> None:
    """Other servers put what they like before the underscore."""
    before, after = Position("0000000000000001_0000000000000009", 3), Position(
        "0000000000000002_0000000000000001", 5
    )  # fmt: skip
    [range_] = ranges_between(
        SourceOffsets("other", {"a": before}), SourceOffsets("other", {"a": after})
    )
    assert range_.reset is None
    [range_] = ranges_between(
        SourceOffsets("penstock", {"a": before}), SourceOffsets("penstock", {"a": after})
    )
    assert range_.reset == "stream-recreated"
