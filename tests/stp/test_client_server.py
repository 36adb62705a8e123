"""Our STP client against our server, as a process: every method, producers, restarts; and the
three dialects of one log, which agree at every position.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Client, Retry
from penstock.errors import (
    InvalidRow,
    NotAcceptable,
    SequenceGap,
    StaleEpoch,
    TableExists,
    TableNotFound,
)
from penstock.state import MaterializedState
from penstock.stp import Table, fold
from tests.client.driver import connecting
from tests.helpers.server import Server, running_server
from tests.stp.clients import QUICK, table_of

_numbers = itertools.count()


@pytest.fixture(scope="module", params=[False, True], ids=["native", "asgi"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    arguments = ["--table-idle", "0.5"]
    with running_server(memory=True, asgi=request.param, args=arguments) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    with connecting(request.param) as connect:
        yield connect(server.url, retry=QUICK)


@pytest.fixture
def table(client: Any) -> Any:
    table = table_of(client, f"tables/{next(_numbers)}")
    table.create("endpoint_manifest", version=2)
    return table


def shown(rows: Any) -> list[tuple[int, str, str, str]]:
    return [(row.seqno, row.action, row.key, row.record) for row in rows]


def test_what_is_written_is_read_back(table: Any) -> None:
    assert table.put("a", "1").seqno == 1
    assert table.put("b", "two words, ünïcode 🚰").seqno == 2
    assert table.delete("a").seqno == 3
    assert table.write([("+", "c", ""), ("-", "b"), ("+", "b", "3")]).seqno == 6
    assert shown(table.read()) == [
        (1, "+", "a", "1"),
        (2, "+", "b", "two words, ünïcode 🚰"),
        (3, "-", "a", ""),
        (4, "+", "c", ""),
        (5, "-", "b", ""),
        (6, "+", "b", "3"),
    ]
    assert shown(table.read(4)) == shown(table.tail(2)) == shown(table.read())[4:]
    assert shown(table.iter_rows()) == shown(table.read())
    state = table.state()
    assert (dict(state), state.last_seqno) == ({"c": "", "b": "3"}, 6)
    assert {key: row.seqno for key, row in state.rows.items()} == {"c": 4, "b": 6}
    head = table.head()
    assert (head.schema, head.version, head.last_seqno, head.escape) == (
        "endpoint_manifest",
        2,
        6,
        False,
    )


def test_the_state_of_a_table_whose_last_row_is_a_delete_knows_its_place(table: Any) -> None:
    table.write([("+", "a", "1"), ("-", "a")])
    state = table.state()
    assert (dict(state), state.last_seqno) == ({}, 2)


def test_declaring_again_is_found_or_refused(client: Any, table: Any) -> None:
    with pytest.raises(TableExists):
        table.create("endpoint_manifest", version=2)
    again = table.create("endpoint_manifest", version=2, exist_ok=True)
    assert again.created is False
    with pytest.raises(TableExists):
        table.create("endpoint_manifest", version=3, exist_ok=True)


def test_absent_tables_are_not_found(client: Any) -> None:
    absent = table_of(client, "tables/absent")
    for action in (absent.read, absent.state, absent.head, lambda: absent.put("k", "v")):
        with pytest.raises(TableNotFound):
            action()
    with pytest.raises(TableNotFound), absent.follow() as rows:
        next(iter(rows))


def test_a_producer_makes_every_write_safe_to_repeat(table: Any) -> None:
    calls = [
        (table.put, ("a", "1")),
        (table.delete, ("a",)),
        (table.write, ([("+", "b", "2"), ("+", "c", "3")],)),
    ]
    for seq, (write, arguments) in enumerate(calls):
        producer = ("writer", 0, seq)
        assert write(*arguments, producer=producer).duplicate is False
        assert write(*arguments, producer=producer).duplicate is True
    assert [row.key for row in table.read()] == ["a", "a", "b", "c"]
    with pytest.raises(SequenceGap):
        table.put("d", "4", producer=("writer", 0, 9))
    table.put("d", "4", producer=("writer", 1, 0))
    with pytest.raises(StaleEpoch):
        table.put("e", "5", producer=("writer", 0, 3))


def test_a_bad_row_writes_nothing(table: Any) -> None:
    for changes in ([("+", "a", "1"), ("+", "b", "t\tab")], [("+", "", "1")]):
        with pytest.raises(InvalidRow):
            table.write(changes)
    with pytest.raises(InvalidRow):
        table.put("k", "line\nend")
    for wrong in ([], [("*", "a", "1")], [("+", "a")], [("-", "a", "1")]):
        with pytest.raises(ValueError):
            table.write(wrong)
    assert len(table.read()) == 0


def test_escaping_is_understood_on_both_sides(client: Any) -> None:
    table = table_of(client, f"tables/{next(_numbers)}")
    table.create("s", escape=True)
    key, record = "tab\tkey", "line\nend\r \\t backslash"
    table.put(key, record)
    table.write([("+", key + "2", record)])
    assert dict(table.state()) == {key: record, key + "2": record}
    assert table.read().escape is True
    with table.follow() as rows:
        assert next(iter(rows)).record == record
        assert rows.media.escape is True


def test_json_records_are_compact_json(client: Any) -> None:
    table = table_of(client, f"tables/{next(_numbers)}")
    table.create("s", record="json")
    table.put("a", '{"x": [1,  2], "y": "ü"}')
    assert dict(table.state()) == {"a": '{"x":[1,2],"y":"ü"}'}
    with pytest.raises(InvalidRow):
        table.put("a", "{not json")


def test_a_table_of_another_kind_is_not_acceptable(client: Any, table: Any) -> None:
    path = table.url.split("/v1/table/")[1]
    for wrong in ({"schema": "other"}, {"schema": "endpoint_manifest", "version": 1}):
        with pytest.raises(NotAcceptable):
            table_of(client, path, **wrong).read()
    assert len(table_of(client, path, schema="endpoint_manifest", version=2).read()) == 0


def test_follow_reconnects_when_the_server_ends_its_answers(table: Any) -> None:
    table.put("a", "1")
    with table.follow() as rows:
        taken = [next(iter(rows)).seqno]
        for number in range(3):
            table.put("a", str(number))
            taken.append(next(iter(rows)).seqno)
    assert taken == [1, 2, 3, 4]


def test_follow_ends_when_the_stream_is_closed(server: Server, table: Any) -> None:
    table.put("a", "1")
    with Client(server.url) as client:
        client.stream(table.url.split("/v1/table/")[1]).close()
    with table.follow() as rows:
        assert [row.seqno for row in rows] == [1]


def test_follow_lives_through_a_server_that_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data_dir=data) as first:
        port = str(first.port)
        with Client(first.url, retry=Retry(first_s=0.01, max_s=0.1)) as client:
            table = Table(client, "survivor")
            table.create("s")
            table.write([("+", f"k{number}", "v") for number in range(50)])
            with table.follow() as rows:
                assert [next(rows).seqno for _ in range(30)] == list(range(1, 31))
                first.kill()
                with running_server(data_dir=data, args=["--port", port]):
                    table.put("after", "the crash")
                    assert [next(rows).seqno for _ in range(21)] == list(range(31, 52))
                    assert rows.conflicts == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_three_dialects_agree_at_every_position(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    with Client(server.url) as client:
        path = f"tables/agree-{seed}-{next(_numbers)}"
        table = Table(client, path)
        table.create("thing")
        stream = client.stream(path)
        for _ in range(40):
            _change(chance, table, stream)
        rows = table.read().rows
        events = [json.dumps(event) for event in stream.read_json()]
        assert [row.seqno for row in rows] == list(range(1, len(events) + 1))
        for position in range(len(events) + 1):
            state = MaterializedState()
            state.apply_json(f"[{','.join(events[:position])}]")
            folded = {key: row.record for key, row in fold(rows[:position]).items()}
            assert folded == dict(state.get_type("thing"))
        last = client.request(_state_request(stream.url)).body
        assert json.loads(last)["types"].get("thing", {}) == dict(table.state())


def _change(chance: random.Random, table: Table, stream: Any) -> None:
    """One random change, in one of the dialects."""
    key = chance.choice("abcd")
    record = chance.choice(["1", "zwei", "三", "with space", ""])
    operation = chance.choice(["insert", "update", "upsert", "delete"])
    event = {"type": "thing", "key": key, "headers": {"operation": operation}}
    if operation != "delete":
        event["value"] = record
    match chance.randrange(4):
        case 0:
            table.put(key, record)
        case 1:
            table.delete(key)
        case 2:
            table.write([("+", key, record), ("-", chance.choice("abcd"))])
        case _:
            stream.append(event)


def _state_request(url: str) -> Any:
    from penstock.client.requests import Request

    return Request("GET", url.replace("/v1/stream/", "/v1/state/"))
