"""Publishing without Spark: results as differences, the outbox, and what is sent twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Client
from penstock.errors import PublishFailed
from penstock.spark.config import Publish
from penstock.spark.pipeline.diff import differences, keyed
from penstock.spark.pipeline.outbox import Outbox
from penstock.spark.pipeline.publish import Publisher
from penstock.stp import Table
from tests.helpers.server import Server
from tests.spark.publishing import Run
from tests.spark.stp_server import stp_server

EVENTS = Publish(to="derived/x", sql="…")
ROWS = Publish(to="table:derived/x", sql="…")


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    return Run(server.url, tmp_path)


def test_a_result_is_published_as_what_changed_in_it(run: Run, client: Client) -> None:
    assert run.publish({"a": 1, "b": 1, "c": 1}) == 3
    assert run.publish({"a": 1, "b": 2}) == 2
    assert run.publish({"a": 1, "b": 2}) == 0
    found = client.stream(run.target()).read().messages
    changes = [(each["headers"]["operation"], each["key"]) for each in found]
    assert changes[:3] == [("insert", "a"), ("insert", "b"), ("insert", "c")]
    assert changes[3:] == [("delete", "c"), ("update", "b")]
    assert found[4] == {
        "type": "p",
        "key": "b",
        "value": {"n": 2},
        "old_value": {"n": 1},
        "headers": {"operation": "update"},
    }


def test_what_is_sent_again_is_stored_once(run: Run, client: Client, tmp_path: Path) -> None:
    run.publish({str(number): number for number in range(7)})
    stream = client.stream(run.target())
    before = stream.read().messages
    assert len(before) == 7
    # Killed after it was sent, and before it was written down: the next run sends it all again.
    again = Run(run.pipeline.source.url, tmp_path)
    assert again.publish({"0": 0}) == 6
    assert stream.read().messages[:7] == before
    assert len(stream.read().messages) == 13
    again.publisher.close()
    outbox = Outbox(again.warehouse)
    outbox.refresh()
    assert list(outbox.waiting("p")) == [], "it is written down in the end"


def test_what_was_committed_and_not_sent_is_sent_by_the_next_run(
    run: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Publisher, "_append", killed)
    with pytest.raises(KeyboardInterrupt):
        run.publish({"a": 1, "b": 2, "c": 3})
    monkeypatch.undo()
    Run(run.pipeline.source.url, tmp_path)
    found = client.stream(run.target()).read().messages
    assert [each["key"] for each in found] == ["a", "b", "c"]


def test_a_target_that_was_deleted_is_an_error_that_says_so(run: Run, client: Client) -> None:
    run.publish({"a": 1})
    client.stream(run.target()).delete()
    client.stream(run.target()).create()
    with pytest.raises(PublishFailed, match="deleted or recreated"):
        run.publish({"a": 2})


@pytest.mark.parametrize("escape", [False, True])
def test_a_table_of_this_server_gets_rows(
    server: Server, client: Client, tmp_path: Path, escape: bool
) -> None:
    path = f"derived/{tmp_path.name}"
    table = Table(client, path)
    if escape:
        table.create("mine", record="json", escape=True)
    run = Run(server.url, tmp_path, to=f"table:{path}")
    assert run.publish({"a": 1, "b": 2, "c": 3}) == 3
    assert run.publish({"a": 1, "c": 4}) == 2
    rows = [(row.action, row.key, row.record) for row in table.read()]
    assert rows == [
        ("+", "a", '{"n":1}'), ("+", "b", '{"n":2}'), ("+", "c", '{"n":3}'),
        ("-", "b", ""), ("+", "c", '{"n":4}'),
    ]  # fmt: skip
    if not escape:
        with pytest.raises(PublishFailed, match="tab"):
            run.publish({"with\ttab": 1})
        return
    # The table was there, and it takes what another one cannot hold.
    run.publish({"with\ttab\\": 1, "a": 1, "c": 4})
    assert table.state()["with\ttab\\"] == '{"n":1}'


def test_where_there_are_no_tables_is_said(tmp_path: Path) -> None:
    with stp_server() as plain:
        run = Run(plain.url, tmp_path, to="table:derived/x")
        with pytest.raises(PublishFailed, match="serves no STP tables"):
            run.publish({"a": 1})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"city": "x"}], "column called key"),
        ([{"key": "a", "n": 1}, {"key": "a", "n": 2}], "twice"),
    ],
)
def test_a_result_needs_one_row_for_each_key(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(PublishFailed, match=words):
        keyed("p", rows)


def test_keys_are_texts_and_rows_without_one_are_left_out_and_counted() -> None:
    rows: list[dict[str, Any]] = [
        {"key": 7, "n": 1},
        {"key": None, "n": 2},
        {"key": "", "n": 2},
        {"key": "k", "n": None},
    ]
    assert keyed("p", rows) == ({"7": '{"n":1}', "k": '{"n":null}'}, 2)


def test_differences_lead_from_one_result_to_the_other() -> None:
    before, after = {"a": "1", "b": "2"}, {"b": "3", "c": "4"}
    found = list(differences("p", EVENTS, before, after))
    assert [(each.operation, each.key, each.value) for each in found] == [
        ("delete", "a", None),
        ("update", "b", "3"),
        ("insert", "c", "4"),
    ]
    assert json.loads(found[1].message)["old_value"] == 2
    with pytest.raises(PublishFailed, match="tab"):
        list(differences("p", ROWS, {}, {"a\tb": "1"}))
