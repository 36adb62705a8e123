"""Schemas that change: what is done in place, what needs a rebuild, and a rebuild that is killed,
resumed and switched in one commit. Without Spark.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidPipeline, WarehouseMismatch
from penstock.spark.ddl import parse_ddl
from penstock.spark.type_schema import type_schema
from penstock.spark.warehouse import rebuild as rebuilding
from penstock.spark.warehouse.delta import Table, write_file
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.evolution import is_wider
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.rebuild import check_tables, rebuild_table, switch_rebuilt
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.test_dead_letters import pipeline
from tests.spark.warehouse_bench import WarehouseBench, gone, put

OLD = "name STRING, age INT"
WIDENED = [
    ("TINYINT", "SMALLINT", True), ("SMALLINT", "INT", True), ("INT", "BIGINT", True),
    ("INT", "DOUBLE", True), ("BIGINT", "DOUBLE", False), ("BIGINT", "INT", False),
    ("FLOAT", "DOUBLE", True), ("DOUBLE", "FLOAT", False), ("INT", "STRING", False),
    ("INT", "DECIMAL(10, 0)", True), ("INT", "DECIMAL(10, 1)", False),
    ("BIGINT", "DECIMAL(20, 1)", True), ("DECIMAL(5, 2)", "DECIMAL(7, 4)", True),
    ("DECIMAL(5, 2)", "DECIMAL(6, 4)", False), ("DECIMAL(5, 2)", "DOUBLE", False),
    ("DATE", "TIMESTAMP", False), ("STRING", "DATE", False), ("BOOLEAN", "INT", False),
    ("ARRAY<INT>", "ARRAY<BIGINT>", True), ("ARRAY<BIGINT>", "ARRAY<INT>", False),
    ("MAP<STRING, INT>", "MAP<STRING, DOUBLE>", True),
    ("STRUCT<a INT>", "STRUCT<a BIGINT, b STRING>", True),
    ("STRUCT<a INT, b INT>", "STRUCT<a INT>", False), ("INT", "ARRAY<INT>", False),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "declared", "wider"), WIDENED)
def test_a_type_is_wider_if_it_has_every_value_of_the_other(
    stored: str, declared: str, wider: bool
) -> None:
    [before], [after] = parse_ddl(f"c {stored}"), parse_ddl(f"c {declared}")
    assert is_wider(before.type, after.type) is wider


@pytest.fixture
def bench(tmp_path: Path) -> WarehouseBench:
    """A folded table of a hundred rows in ten files, a deleted key and an event after the fold."""
    found = WarehouseBench(tmp_path / "warehouse", {"user": type_schema(OLD)})
    rows = [put(f"k{n:03d}", f'{{"name":"n{n}","age":{n},"mail":"m{n}"}}') for n in range(100)]
    found.batch(*rows, put("bad", '{"name":1}'), gone("k007"))
    found.fold()
    found.batch(put("late", '{"name":"late","age":1,"mail":"l"}'))
    found.warehouse.close()
    found.duck.close()
    return found


def ask(bench: WarehouseBench, schema: str, query: str) -> list[tuple[Any, ...]]:
    duck = Duck(Warehouse(str(bench.path)), {"user": type_schema(schema)})
    try:
        return [tuple(row.values()) for row in duck.sql(query).to_pylist()]
    finally:
        duck.close()


def stored_columns(bench: WarehouseBench) -> dict[str, str]:
    """The columns that other engines see."""
    table = Table(f"{bench.path}/state/user", None)
    return {f.name: str(f.type) for f in table.columns if not f.name.startswith("_")}


@pytest.mark.parametrize(
    ("schema", "columns", "row"),
    [
        (
            "name STRING, age BIGINT, mail STRING",
            {"name": "string", "age": "int64", "mail": "string"},
            ("n5", 5, "m5"),
        ),
        ("mail STRING, age DOUBLE, name STRING", {"age": "double"}, ("n5", 5.0, "m5")),
    ],
)
def test_columns_are_added_and_widened_by_the_next_fold(
    bench: WarehouseBench, schema: str, columns: dict[str, str], row: tuple[Any, ...]
) -> None:
    query = "SELECT name, age, mail FROM state_user WHERE _key = 'k005'"
    assert ask(bench, schema, query) == [row], "before the fold, too"
    types = {"user": type_schema(schema)}
    warehouse = Warehouse(str(bench.path))
    check_tables(warehouse, types)
    warehouse.open()
    duck = Duck(warehouse, types)
    assert duck.stored("user").is_due(warehouse.events.record, rows=0, percent=100)
    fold_here(duck, "user", warehouse.events.record)
    duck.close()
    warehouse.close()
    assert stored_columns(bench).items() >= columns.items()
    assert ask(bench, schema, query) == [row]
    assert not StateTable(warehouse, "user", types["user"]).is_outgrown


def test_the_same_columns_with_another_meaning_are_folded_again(tmp_path: Path) -> None:
    """Any JSON and a text are both a column of texts."""
    any_json, text = (
        type_schema({"properties": {"name": schema}}) for schema in ({}, {"type": "string"})
    )
    bench = WarehouseBench(tmp_path / "warehouse", {"user": any_json})
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.fold()
    assert bench.duck.sql("SELECT name FROM state_user").to_pylist() == [{"name": '"Ada"'}]
    bench.duck.close()
    duck = Duck(bench.warehouse, {"user": text})
    assert duck.stored("user").is_outgrown
    assert duck.sql("SELECT name FROM state_user").to_pylist() == [{"name": "Ada"}]
    duck.close()


BREAKING = [
    ("name STRING", "the column age is in the table and not in the schema"),
    ("name STRING, years INT", "the column age is in the table and not in the schema"),
    ("name STRING, age STRING", "the column age is int32 in the table and string in the schema"),
    ("name STRING, age SMALLINT", "the column age is int32 in the table and int16 in the schema"),
]


@pytest.mark.parametrize(("schema", "reason"), BREAKING)
def test_removed_renamed_and_changed_columns_need_a_rebuild(
    bench: WarehouseBench, schema: str, reason: str
) -> None:
    types = {"user": type_schema(schema)}
    with pytest.raises(InvalidPipeline, match=f"{reason}.*penstock pipeline rebuild FILE user"):
        check_tables(Warehouse(str(bench.path)), types)
    events = ask(bench, OLD, "SELECT count(*) FROM events")
    before = ask(bench, OLD, "SELECT _key, _value FROM state_user ORDER BY ALL")
    done = rebuild_table(pipeline(bench, user=schema), "user")
    assert (done.batch, done.rows, done.is_switched) == (1, 100, True)
    check_tables(Warehouse(str(bench.path)), types)
    columns = [each.name for each in types["user"].fields]
    assert list(stored_columns(bench)) == columns
    assert ask(bench, schema, "SELECT _key, _value FROM state_user ORDER BY ALL") == before
    assert ask(bench, schema, "SELECT count(*) FROM events") == events


def test_values_that_do_not_fit_are_counted_and_null(bench: WarehouseBench) -> None:
    done = rebuild_table(pipeline(bench, user="name STRING, age TINYINT, mail DATE"), "user")
    assert done.misfits == 99, "of every row but the deleted one"
    query = "SELECT name, age, mail FROM state_user WHERE _key = 'k005'"
    assert ask(bench, "name STRING, age TINYINT, mail DATE", query) == [("n5", 5, None)]
    history = query.replace("state_user", "history_user")
    assert ask(bench, "name STRING, age TINYINT, mail DATE", history) == [("n5", 5, None)]


def test_a_type_may_lose_its_schema(bench: WarehouseBench) -> None:
    chosen = pipeline(bench)
    with pytest.raises(InvalidPipeline, match=r"types\.user is no longer there.*rebuild FILE user"):
        check_tables(Warehouse(str(bench.path)), chosen.types)
    assert rebuild_table(chosen, "user").rows == 100
    assert stored_columns(bench) == {}
    check_tables(Warehouse(str(bench.path)), chosen.types)


class Killed(Exception):
    """Takes the place of a kill."""


def test_a_rebuild_that_was_killed_resumes_after_the_last_file(
    bench: WarehouseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.limits.PIPELINE_BUCKET_ROWS", 10)
    monkeypatch.setattr("penstock.spark.warehouse.duckdb._ROWS_AT_ONCE", 10)
    assert rebuild_table(pipeline(bench, user=OLD), "user", from_events=True).rows == 101
    chosen = pipeline(bench, user="name STRING")
    written: list[str] = []
    killed_at = 4

    def counted(*args: Any, **options: Any) -> Any:
        if len(written) == killed_at:
            raise Killed
        written.append("one")
        return write_file(*args, **options)

    monkeypatch.setattr(rebuilding, "write_file", counted)
    with pytest.raises(Killed):
        rebuild_table(chosen, "user")
    assert list(stored_columns(bench)) == ["name", "age"], "the table is as it was"
    files = len(Table(f"{bench.path}/state/user", None).files())
    assert files > 5
    killed_at = -1
    done = rebuild_table(chosen, "user")
    assert len(written) == files, "each file once"
    assert done.rows == 101
    assert list(stored_columns(bench)) == ["name"]
    assert not list(bench.path.glob("_penstock/rebuild/*"))


REBUILD = """
import sys
from penstock import limits
from penstock.cli import main
from penstock.spark.warehouse import duckdb, rebuild

limits.PIPELINE_BUCKET_ROWS = duckdb._ROWS_AT_ONCE = 10
write = rebuild.write_file
written = 0

def counted(*arguments, **options):
    global written
    file = write(*arguments, **options)
    written += 1
    print(written, flush=True)
    if written == 4:
        sys.stdin.read()  # until the kill
    return file

rebuild.write_file = counted
main(["pipeline", "rebuild", sys.argv[1], "user"])
"""


def test_a_rebuild_whose_process_is_killed_resumes(
    bench: WarehouseBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a file was written, and before it was noted."""
    monkeypatch.setattr("penstock.limits.PIPELINE_BUCKET_ROWS", 10)
    monkeypatch.setattr("penstock.spark.warehouse.duckdb._ROWS_AT_ONCE", 10)
    rebuild_table(pipeline(bench, user=OLD), "user", from_events=True)
    files = len(Table(f"{bench.path}/state/user", None).files())
    file = tmp_path / "pipeline.toml"
    file.write_text(
        '[source]\nurl = "http://127.0.0.1:9"\nstreams = ["s"]\n'
        f'[warehouse]\npath = "{bench.path}"\n'
        '[types.user]\nschema = "name STRING"\n'
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", REBUILD, str(file)]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(4)] == ["1\n", "2\n", "3\n", "4\n"]
        process.kill()
    assert list(stored_columns(bench)) == ["name", "age"], "the table is as it was"
    again: list[str] = []

    def counted(*args: Any, **options: Any) -> Any:
        again.append("one")
        return write_file(*args, **options)

    monkeypatch.setattr(rebuilding, "write_file", counted)
    done = rebuild_table(pipeline(bench, user="name STRING"), "user")
    assert (len(again), done.rows) == (files - 3, 101)
    assert list(stored_columns(bench)) == ["name"]
    names = ask(bench, "name STRING", "SELECT _key, name FROM state_user ORDER BY _key LIMIT 2")
    assert names == [("k000", "n0"), ("k001", "n1")]


def test_a_staged_rebuild_waits_for_the_next_run(bench: WarehouseBench) -> None:
    """A run with the old schema goes on meanwhile, and folds."""
    chosen = pipeline(bench, user="name STRING, mail STRING")
    assert not rebuild_table(chosen, "user", stage_only=True).is_switched
    running = Warehouse(str(bench.path))
    running.open()
    duck = Duck(running, bench.types)
    fold_here(duck, "user", running.events.record)
    duck.close()
    running.close()
    assert list(stored_columns(bench)) == ["name", "age"]
    warehouse = Warehouse(str(bench.path))
    check_tables(warehouse, chosen.types)
    warehouse.open()
    before = Table(f"{bench.path}/state/user", None).version
    assert switch_rebuilt(warehouse, chosen.types) == ["user"]
    assert Table(f"{bench.path}/state/user", None).version == (before or 0) + 1, "one commit"
    assert switch_rebuilt(warehouse, chosen.types) == []
    warehouse.close()
    schema = "name STRING, mail STRING"
    query = "SELECT name, mail FROM state_user WHERE _key IN ('late', 'k001') ORDER BY ALL"
    assert ask(bench, schema, query) == [("late", "l"), ("n1", "m1")], "and what came since"


def test_a_plan_for_another_schema_or_with_missing_files_begins_again(
    bench: WarehouseBench,
) -> None:
    one = pipeline(bench, user="name STRING")
    rebuild_table(one, "user", stage_only=True)
    other = pipeline(bench, user="mail STRING")
    with pytest.raises(InvalidPipeline, match="rebuild"):
        check_tables(Warehouse(str(bench.path)), other.types)
    note = bench.path / "_penstock/rebuild/user.json"
    [part] = msgspec.json.decode(note.read_bytes())["parts"]
    (bench.path / "state/user" / part["name"]).unlink()
    with pytest.raises(InvalidPipeline, match="rebuild"):
        check_tables(Warehouse(str(bench.path)), one.types)
    assert rebuild_table(one, "user").rows == 100


def test_a_table_that_is_ahead_of_the_events_is_refused_and_rebuilt_from_them(
    bench: WarehouseBench, tmp_path: Path
) -> None:
    """The events were restored from an older copy, the state was not."""
    state = f"{bench.path}/state/user"
    table = StateTable(Warehouse(str(bench.path)), "user", bench.types["user"])
    ahead = msgspec.structs.replace(table.folded, batch=9)
    table.replace([], ahead)
    chosen = pipeline(bench, user=OLD)
    with pytest.raises(WarehouseMismatch, match=r"ends with batch 9 and the events with 2"):
        check_tables(Warehouse(str(bench.path)), chosen.types)
    assert rebuild_table(chosen, "user", from_events=True).rows == 101
    check_tables(Warehouse(str(bench.path)), chosen.types)
    assert len(ask(bench, OLD, "SELECT * FROM state_user")) == 100
    assert Table(state, None).exists


def test_a_type_that_is_not_there_is_named(bench: WarehouseBench) -> None:
    with pytest.raises(InvalidPipeline, match=r"no type 'order' in the warehouse \(types: user\)"):
        rebuild_table(pipeline(bench, user=OLD), "order")
