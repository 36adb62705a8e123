"""The outbox: what others do to its files, what it lets go of, and where it can be killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock import Client, limits
from penstock.errors import WarehouseInUse
from penstock.spark.pipeline.outbox import Outbox
from penstock.spark.pipeline.outbox_rows import OUTBOX, Change
from penstock.spark.pipeline.publish import Publisher
from penstock.spark.pipeline.status import status_of
from penstock.spark.warehouse.delta import Table, write_file
from tests.helpers.server import Server
from tests.spark.publishing import Run, folded

Start = Callable[..., Run]
FEW = {"outbox_files": 2}


class Killed(BaseException):
    pass


def killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Start:
    return lambda *names, **settings: Run(server.url, tmp_path, *names, **settings)


def messages(client: Client, run: Run, name: str = "p") -> list[Any]:
    return client.stream(run.target(name)).read().messages


# What others do to its files


def test_optimized_by_another_engine_it_keeps_every_publish_apart(
    start: Start, client: Client
) -> None:
    run = start("a", "b")
    run.publish(a={"x": 1, "y": 1, "z": 1}, b={"x": 7})
    run.publish(a={"x": 2, "y": 1}, b={"x": 8})
    assert run.outbox.optimize.compact()["numFilesRemoved"] == 4
    run.publish(a={"x": 3}, b={"w": 1, "x": 8})
    run.outbox.optimize.compact()
    run.outbox.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    again = start("a", "b")
    assert status_of(again.pipeline).published == {"a": 1, "b": 2}
    assert again.publish(a={"x": 3}, b={"w": 1, "x": 8}) == 0
    again.publish(a={"x": 4}, b={})
    assert folded(messages(client, again, "a")) == {"x": {"n": 4}}
    assert folded(messages(client, again, "b")) == {}
    assert len(messages(client, again, "a")) == 8


def test_optimized_at_the_very_moment_of_a_commit_it_goes_on(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    run.publish({"a": 1})
    run.publish({"a": 2})
    commit = Table.commit

    def optimized_before(table: Table, *given: Any, **more: Any) -> None:
        if table.uri.endswith("outbox"):
            monkeypatch.undo()
            assert run.outbox.optimize.compact()["numFilesRemoved"] == 2
        commit(table, *given, **more)

    monkeypatch.setattr(Table, "commit", optimized_before)
    run.publish({"a": 3})
    assert [each["value"]["n"] for each in messages(client, run)] == [1, 2, 3]


def test_rows_of_another_engine_are_refused(start: Start) -> None:
    run = start()
    run.publish({"a": 1})
    rows = pa.Table.from_pylist([{"publish": "p", "chunk": 1, "key": "z"}], OUTBOX)
    write_deltalake(run.outbox, rows, mode="append")
    with pytest.raises(WarehouseInUse, match="another engine"):
        run.publish({"a": 2})
    with pytest.raises(WarehouseInUse, match="another engine"):
        start()


def test_a_run_that_was_taken_over_commits_nothing_more(start: Start, tmp_path: Path) -> None:
    old = start()
    old.publish({"a": 1})
    new = start()
    change = Change("insert", "b", "1", "{}")
    # It had looked at the warehouse before it was taken over, and does not look again.
    with pytest.raises(WarehouseInUse, match="Another run"):
        old.publisher._outbox.add("p", old.target(), 2, [[change]])
    assert len(new.outbox_rows()) == 1
    new.publish({"a": 2})


# What it lets go of


@pytest.mark.soak
def test_it_does_not_grow_with_the_batches(start: Start, client: Client) -> None:
    run = start("a", "b", run={"outbox_files": 4})
    for number in range(60):
        run.publish(a={"x": number, f"k{number % 7}": 1}, b={f"k{number % 5}": number})
        assert len(run.outbox.file_uris()) <= 2 * 4
        assert len(run.outbox_rows()) <= 5 * 4 + 4
    last = {"x": {"n": 59}, "k3": {"n": 1}}
    assert folded(messages(client, run, "a")) == last
    before = len(messages(client, run, "a"))
    again = start("a", "b", run={"outbox_files": 4})
    assert again.publish(a={"x": 59, "k3": 1}, b={"k4": 59}) == 0, "it knows what it has published"
    again.publish(a={"x": 60, "k3": 1}, b={})
    assert folded(messages(client, again, "a")) == {**last, "x": {"n": 60}}
    assert len(messages(client, again, "a")) == before + 1
    assert folded(messages(client, again, "b")) == {}


def test_a_batch_reads_no_file_and_lists_none(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    run.publish({"a": 1})
    monkeypatch.setattr(Table, "files", killed)
    run.publish({"a": 2})
    run.publish({"a": 2})


def test_large_changes_are_let_go_of_before_there_are_many_files(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_OUTBOX_BYTES", 10_000)
    run = start()
    for number in range(20):
        run.publish({"a": number})
    assert len(run.outbox.file_uris()) < 20


def test_a_result_without_keys_is_numbered_on(start: Start, client: Client) -> None:
    run = start(run={"outbox_files": 2})
    run.publish({"a": 1, "b": 1, "c": 1})
    run.publish({})
    assert len(run.outbox_rows()) == 0, "nothing of it is needed"
    again = start()
    again.publish({"a": 2})
    assert folded(messages(client, again)) == {"a": {"n": 2}}
    assert len(messages(client, again)) == 7


def test_what_is_not_sent_stays_also_if_it_is_no_longer_published(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start("a", "b")
    run.publish(a={"x": 1, "y": 1, "z": 1}, b={})
    monkeypatch.setattr(Publisher, "_append", killed)
    with pytest.raises(Killed):
        run.publish(a={"x": 2, "y": 2})
    monkeypatch.undo()
    other = start("b", run={"outbox_files": 1})
    for number in range(4):
        other.publish(b={"x": number})
    rows = other.outbox_rows().to_pylist()
    changes = [(row["operation"], row["key"]) for row in rows if row["publish"] == "a"]
    assert len(changes) == 6, "three that were sent, three that were not"
    again = start("a", "b")
    found = messages(client, again, "a")
    assert [each["headers"]["operation"] for each in found[3:]] == ["delete", "update", "update"]
    assert folded(found) == {"x": {"n": 2}, "y": {"n": 2}}


@pytest.mark.parametrize("point", ["file", "commit", "committed"])
def test_killed_while_it_lets_go_it_loses_and_doubles_nothing(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    run = start(run=FEW)
    run.publish({"a": 1, "b": 1, "c": 1})
    tidy, commit = Outbox.compact_if_due, Table.commit

    def committed(table: Table, *given: Any, **more: Any) -> None:
        commit(table, *given, **more)
        raise Killed

    def interrupted(outbox: Outbox) -> None:
        if point == "file":
            monkeypatch.setattr("penstock.spark.pipeline.outbox.write_file", killed)
        else:
            monkeypatch.setattr(Table, "commit", killed if point == "commit" else committed)
        tidy(outbox)

    monkeypatch.setattr(Outbox, "compact_if_due", interrupted)
    with pytest.raises(Killed):
        run.publish({"a": 2, "c": 1})
    monkeypatch.undo()
    again = start(run=FEW)
    assert again.publish({"a": 2, "c": 1}) == 0
    again.publish({"a": 3, "d": 1})
    assert folded(messages(client, again)) == {"a": {"n": 3}, "d": {"n": 1}}
    assert len(messages(client, again)) == 8


# What earlier versions have left


def test_the_outbox_of_an_earlier_version_is_taken_up(start: Start, client: Client) -> None:
    first = start("a", "b")
    folder, target = first.folder, first.pipeline.publish["a"].to
    first.publisher.close()
    rows = [
        ("insert", "x", '{"n":1}', 0, 0), ("insert", "y", '{"n":1}', 0, 1),
        ("delete", "y", None, 1, 0), ("update", "x", '{"n":2}', 1, 1),
    ]  # fmt: skip
    table = Table(str(folder / "outbox"), OUTBOX)
    for batch in (1, 2):
        made = [
            {
                "publish": "a", "batch": batch, "target": target, "chunk": chunk,
                "ordinal": ordinal, "operation": operation, "key": key, "value": value,
                "message": _event(operation, key, value, "1" if chunk else None),
            }
            for operation, key, value, chunk, ordinal in rows
            if chunk == batch - 1
        ]  # fmt: skip
        written = write_file(
            table.uri,
            OUTBOX,
            [pa.RecordBatch.from_pylist(made, OUTBOX)],
            prefix="a",
            statistics=("publish", "chunk", "batch"),
        )
        assert written is not None
        mail = {"warehouse": "0123", "sent": {}, "computed": {"a": batch}}
        table.commit([written], mail, {})
        table.refresh()
    again = start("a", "b")
    assert folded(messages(client, again, "a")) == {"x": {"n": 2}}
    again.publish(a={"x": 3})
    assert folded(messages(client, again, "a")) == {"x": {"n": 3}}
    assert len(messages(client, again, "a")) == 5
    assert again.outbox.optimize.compact()["numFilesRemoved"] == 3, "old files and new ones"
    again.publish(a={"x": 4})
    assert folded(messages(client, start("a"), "a")) == {"x": {"n": 4}}


def _event(operation: str, key: str, value: str | None, old: str | None) -> str:
    field = "" if value is None else f'"value":{value},'
    before = "" if old is None else f'"old_value":{{"n":{old}}},'
    return f'{{"type":"a","key":"{key}",{field}{before}"headers":{{"operation":"{operation}"}}}}'
