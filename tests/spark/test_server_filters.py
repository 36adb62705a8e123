"""Filters on type and key that the server applies: the same rows as without it, with fewer bytes.
Driven without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In

from penstock import Client
from penstock.client.answers import Answer
from penstock.client.requests import Request
from penstock.spark.server import Server as SparkServer
from penstock.spark.source.bulk import BulkReads
from penstock.state import insert, reset
from tests.helpers.server import Server
from tests.spark.direct import Row, plan, read
from tests.spark.test_batch_reads import fill

Passes = Callable[[Row], bool]
CASES: list[tuple[list[Filter], Passes]] = [
    ([EqualTo(("type",), "user")], lambda row: row["type"] == "user"),
    ([EqualTo(("key",), "k3")], lambda row: row["key"] == "k3"),
    (
        [In(("type",), ("user", "ключ")), In(("key",), ("k1", "k5", 'a"b'))],
        lambda row: row["type"] in ("user", "ключ") and row["key"] in ("k1", "k5", 'a"b'),
    ),
    ([EqualTo(("type",), "none")], lambda row: False),
    ([EqualTo(("type",), "user"), EqualTo(("type",), "noise")], lambda row: False),
    ([EqualTo(("key",), "")], lambda row: False),
    (
        [EqualTo(("type",), "user"), GreaterThanOrEqual(("position",), 100_000)],
        lambda row: row["type"] == "user" and row["position"] >= 100_000,
    ),
    ([In(("key",), tuple(f"k{n}" for n in range(150)))], lambda row: row["key"] is not None
     and row["key"].startswith("k")),
]  # fmt: skip


@pytest.fixture(scope="module")
def name(client: Client) -> str:
    """A stream of more than one small read, with events of all kinds, and none."""
    types = ("user", "noise", "ключ", "noise")
    messages: list[Any] = [
        insert(types[n % 4], 'a"b' if n % 50 == 0 else f"k{n % 7}", {"n": n, "pad": "x" * 300})
        for n in range(1200)
    ]
    messages[100:100] = [reset(), {"type": "user", "key": "k1"}, "no event", 5]
    fill(client, "pushed", messages)
    return "pushed"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, Answer]]:
    """The requests of tasks, and their answers."""
    exchanges: list[tuple[Request, Answer]] = []
    original = SparkServer.send

    def send(self: SparkServer, request: Request) -> Answer:
        answer = original(self, request)
        exchanges.append((request, answer))
        return answer

    monkeypatch.setattr(SparkServer, "send", send)
    monkeypatch.setattr(BulkReads, "read", lambda self, read: None)
    return exchanges


@pytest.mark.parametrize("case", range(len(CASES)))
def test_rows_are_those_of_an_unfiltered_read(
    server: Server, name: str, sent: list[tuple[Request, Answer]], case: int
) -> None:
    filters, passes = CASES[case]
    expected = [row for row in read(server.url, name) if passes(row)]
    sent.clear()
    assert read(server.url, name, filters) == expected
    _, _, refused = plan(server.url, name, filters)
    assert refused == []


def test_the_server_sends_what_passes_alone(
    server: Server, name: str, sent: list[tuple[Request, Answer]]
) -> None:
    read(server.url, name)
    everything = sum(len(answer.body) for _, answer in sent)
    sent.clear()
    read(server.url, name, [EqualTo(("type",), "user"), EqualTo(("key",), "k0")])
    reads = [(request, answer) for request, answer in sent if "type" in request.params]
    assert reads
    assert all(request.params["key"] == ["k0"] for request, _ in reads)
    assert all(answer.headers["stream-filter"] == "type, key, positions" for _, answer in reads)
    assert sum(len(answer.body) for _, answer in reads) < everything / 10


def test_a_server_that_ignores_the_filter_gives_the_same_rows(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters, _ = CASES[2]
    expected = read(server.url, name, filters)
    original = SparkServer.send

    def send(self: SparkServer, request: Request) -> Answer:
        params = {
            key: value
            for key, value in request.params.items()
            if key not in ("type", "key", "positions")
        }
        return original(self, request._replace(params=params))

    monkeypatch.setattr(SparkServer, "send", send)
    monkeypatch.setattr(BulkReads, "read", lambda self, read: None)
    assert expected
    assert read(server.url, name, filters) == expected


def test_the_option_types_is_not_sent_because_it_passes_what_is_no_event(
    server: Server, name: str, sent: list[tuple[Request, Answer]]
) -> None:
    rows = read(server.url, name, types="user")
    assert {row["kind"] for row in rows} == {"change", "control", "invalid"}
    assert not any("type" in request.params for request, _ in sent)
    both = read(server.url, name, [EqualTo(("key",), "k1")], types="user")
    assert both == [row for row in rows if row["key"] == "k1"]


def test_a_trimmed_stream_and_a_fork_have_the_same_rows(client: Client, server: Server) -> None:
    messages = [insert("user" if n % 3 else "noise", str(n), "x" * 300) for n in range(900)]
    fill(client, "pushed-source", messages)
    source = client.stream("pushed-source")
    middle = source.read(count=450).next_offset
    source.fork("pushed-fork", at=middle).append_many(messages[:300])
    source.trim(source.read(count=100).next_offset)
    for path in ("pushed-source", "pushed-fork"):
        expected = [row for row in read(server.url, path) if row["type"] == "user"]
        assert len(expected) > 300
        assert read(server.url, path, [EqualTo(("type",), "user")]) == expected
