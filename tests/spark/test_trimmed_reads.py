"""Streams whose beginning is gone (trimmed, compacted) or another stream's (forks): every message
keeps its number and its position, and what was missed is an error or a reset. Driven without Spark.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from penstock import Client
from penstock.errors import DataLost
from penstock.state import delete, insert, upsert
from tests.helpers.server import Server
from tests.spark.direct import Query, read
from tests.spark.replay import Replay
from tests.spark.test_batch_reads import fill, users

Row = dict[str, Any]


def summary(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row["seq"], row["control"] or row["key"]) for row in rows]


def trim(client: Client, stream: str, count: int) -> None:
    """Let go of the first messages that there are."""
    trimmed = client.stream(stream)
    trimmed.trim(trimmed.read(count=count).next_offset)


def state_of(rows: list[Row]) -> list[tuple[Any, ...]]:
    replay = Replay()
    replay.see(rows)
    return replay.state_rows("user")


@pytest.mark.parametrize("size", [1, 2000])
def test_a_trimmed_stream_is_read_from_its_earliest_message(
    client: Client, server: Server, size: int
) -> None:
    """Small ranges are read together and large ones by themselves: both count from the end."""
    name = f"trimmed/start-{size}"
    fill(client, name, [insert("user", f"u{n}", "x" * size) for n in range(100)])
    whole = read(server.url, name)
    trim(client, name, 40)
    fill(client, "trimmed/beside", users(1))
    assert read(server.url, f"{name},trimmed/beside", partitionBytes="16k")[-60:] == whole[40:]
    assert read(server.url, name, mode="raw")[0]["seq"] == 40
    query = Query(server.url, name, maxMessagesPerTrigger=25)
    assert [row for rows in query.drain() for row in rows] == whole[40:]
    fill(client, name, users(2, first=200))
    assert summary(query.step()) == [(100, "u200"), (101, "u201")]


def test_byte_streams_are_read_from_their_earliest_byte(client: Client, server: Server) -> None:
    stream = client.stream("trimmed/bytes")
    stream.ensure("text/plain")
    first = stream.append(b"0123456789").offset
    stream.append(b"abc")
    stream.trim(first)
    rows = read(server.url, "trimmed/bytes", mode="raw")
    assert [(row["position"], row["seq"], row["payload"]) for row in rows] == [(10, 10, b"abc")]


@pytest.mark.parametrize("limits", [{}, {"maxMessagesPerTrigger": 2}, {"maxBytesPerTrigger": 150}])
def test_unread_messages_that_were_trimmed_are_an_error_or_a_reset(
    client: Client, server: Server, limits: dict[str, Any]
) -> None:
    name = f"trimmed/missed-{len(str(limits))}"
    fill(client, name, users(5))
    strict = Query(server.url, name, **limits)
    query = Query(server.url, name, failOnDataLoss="false", **limits)
    strict.step()
    seen = query.step()
    fill(client, name, [delete("user", "u0"), *users(6, first=10)])
    trim(client, name, 8)  # the delete is among what is gone
    with pytest.raises(DataLost, match="trimmed beyond what was read of it"):
        strict.step()
    rows = [row for batch in query.drain() for row in batch]
    # The reset has the number of the last message that was read: after that nothing held.
    assert summary(rows) == [(len(seen) - 1, "reset"), *((n, f"u{n + 4}") for n in range(8, 12))]
    assert json.loads(rows[0]["value"]) == {"reason": "stream-trimmed"}
    assert state_of(seen + rows) == state_of(read(server.url, name))
    assert query.step() == []
    assert query.reader.reportLatestOffset()["lag"] == {}  # type: ignore[index]


def test_trimming_messages_that_were_read_is_no_loss(client: Client, server: Server) -> None:
    fill(client, "trimmed/read", users(5))
    query = Query(server.url, "trimmed/read")
    query.step()
    trim(client, "trimmed/read", 3)
    assert query.step() == []
    fill(client, "trimmed/read", users(2, first=5))
    assert summary(query.step()) == [(5, "u5"), (6, "u6")]
    client.stream("trimmed/read").trim("now")
    fill(client, "trimmed/read", users(1, first=7))
    query.restart()
    assert summary(query.step()) == [(7, "u7")]


def test_a_stream_emptied_before_it_was_read_is_an_error_or_a_reset(
    client: Client, server: Server
) -> None:
    fill(client, "trimmed/empty", users(2))
    strict = Query(server.url, "trimmed/empty")
    query = Query(server.url, "trimmed/empty", failOnDataLoss="false")
    strict.step()
    query.step()
    fill(client, "trimmed/empty", users(3))
    client.stream("trimmed/empty").trim("now")
    with pytest.raises(DataLost, match="trimmed"):
        strict.step()
    assert summary(query.step()) == [(1, "reset")]
    assert query.step() == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_trim_while_a_batch_runs_resets_what_it_has_read(
    client: Client, server: Server, fails: str
) -> None:
    name = f"trimmed/midway-{fails}"
    fill(client, name, [insert("user", f"u{n}", "x" * 1000) for n in range(300)])
    query = Query(server.url, name, failOnDataLoss=fails)
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    [part] = query.reader.partitions(query.offset, end)
    batches = query.reader.read(part)
    rows = next(iter(batches)).to_pylist()
    assert 0 < len(rows) < 100
    trim(client, name, 250)  # at most one more answer was on its way
    if fails == "true":
        with pytest.raises(DataLost, match="failOnDataLoss=false"):
            list(batches)
        return
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert [row["control"] for row in rows].count("reset") == 1
    places = [(row["generation"], row["position"]) for row in rows]
    assert places == sorted(places), "the reset is where the gap is"
    assert state_of(rows) == state_of(read(server.url, name))


def test_offsets_that_were_trimmed_are_an_error_or_a_reset(client: Client, server: Server) -> None:
    fill(client, "trimmed/start", users(6))
    start = json.dumps({"trimmed/start": read(server.url, "trimmed/start")[1]["offset"]})
    trim(client, "trimmed/start", 4)
    with pytest.raises(DataLost, match="trimmed beyond"):
        read(server.url, "trimmed/start", startingOffsets=start)
    rows = read(server.url, "trimmed/start", startingOffsets=start, failOnDataLoss="false")
    assert summary(rows) == [(3, "reset"), (4, "u4"), (5, "u5")]


def test_a_compacted_stream_has_the_same_state(client: Client, server: Server) -> None:
    fill(client, "trimmed/compacted", users(5))
    stream = client.stream("trimmed/compacted")
    httpx2.put(f"{server.url}/v1/schema/trimmed/compacted", content=b'{"types": {}}')
    behind = Query(server.url, "trimmed/compacted", failOnDataLoss="false")
    strict = Query(server.url, "trimmed/compacted")
    seen, _ = behind.step(), strict.step()
    stream.append_many([delete("user", "u0"), upsert("user", "u1", 1)])
    at_the_end = Query(server.url, "trimmed/compacted")
    all_along = at_the_end.step()
    stream.compact()
    stream.append(upsert("user", "u2", 2))
    with pytest.raises(DataLost, match="trimmed"):
        strict.step()
    expected = state_of(read(server.url, "trimmed/compacted"))
    assert [row[1] for row in expected] == ["u1", "u2", "u3", "u4"]
    assert state_of(seen + behind.step()) == expected
    assert state_of(all_along + at_the_end.step()) == expected


@pytest.mark.parametrize("options", [{}, {"minPartitions": 4}, {"maxMessagesPerTrigger": 2}])
def test_a_fork_is_one_stream_from_its_beginning(
    client: Client, server: Server, options: dict[str, Any]
) -> None:
    source, name = f"forked/from-{len(str(options))}", f"forked/to-{len(str(options))}"
    fill(client, source, users(5))
    client.stream(source).fork(name)
    client.stream(name).append_many(users(3, first=5))
    query = Query(server.url, name, **options)
    rows = [row for batch in query.drain() for row in batch]
    assert summary(rows) == [(n, f"u{n}") for n in range(8)]
    assert len({row["generation"] for row in rows}) == 1, "whatever the ranges are"
    for number, row in enumerate(rows):
        # Offsets are the fork's own: each can be used to go on from.
        rest = read(server.url, name, startingOffsets=json.dumps({name: row["offset"]}))
        assert summary(rest) == summary(rows[number + 1 :])
    before = client.stream(source).read(count=2).next_offset
    rest = read(server.url, name, startingOffsets=json.dumps({name: before}))
    assert summary(rest) == summary(rows[2:]), "as it is to the source's, up to where they part"
