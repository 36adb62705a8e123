"""Queries of others reach the tables of a warehouse, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import QueryFailed
from penstock.spark.warehouse.sandbox import QueryResult, SandboxedDuck
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import USER, WarehouseBench, put


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxedDuck]:
    folder = tmp_path_factory.mktemp("sandbox")
    bench = WarehouseBench(folder / "warehouse", {"user": USER})
    bench.batch(put("a", '{"name":"Ada","age":36}'), put("b", '{"name":"Bob"}'))
    bench.fold()
    bench.batch(put("c", '{"name":"Cy"}'), put("d", '{"name":1}'))
    bench.duck.close()
    sandbox = SandboxedDuck(Warehouse(str(folder / "warehouse")), {"user": USER})
    yield sandbox
    sandbox.close()


def ask(duck: SandboxedDuck, query: str, **changes: Any) -> QueryResult:
    limits = {"rows_max": 100, "bytes_max": 10_000, "seconds_max": 20.0, **changes}
    return duck.query(query, **limits)


def rows(result: QueryResult) -> list[list[Any]]:
    return [msgspec.json.decode(row) for row in result.rows]


def test_every_relation_can_be_read_with_its_types(duck: SandboxedDuck) -> None:
    result = ask(duck, "SELECT _key, name, age FROM state_user ORDER BY _key")
    assert [(each.name, each.type) for each in result.columns] == [
        ("_key", "VARCHAR"),
        ("name", "VARCHAR"),
        ("age", "INTEGER"),
    ]
    assert rows(result) == [["a", "Ada", 36], ["b", "Bob", None], ["c", "Cy", None]]
    assert not result.truncated
    for name in duck.names():
        ask(duck, f"FROM {name}")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_parquet('{warehouse}/events/*.parquet')",
        "SELECT * FROM '/etc/x.csv'",
        "SELECT * FROM glob('/**')",
        "SELECT * FROM query('SELECT * FROM read_blob(''/etc/passwd'')')",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
        "SELECT * FROM duckdb_secrets()",
    ],
)
def test_no_file_and_no_address_can_be_reached(duck: SandboxedDuck, query: str) -> None:
    with pytest.raises(QueryFailed, match="tables of the pipeline only"):
        ask(duck, query.replace("{warehouse}", duck._warehouse.path))


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '/x.csv'",
        "ATTACH '/x.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "CREATE TABLE t (a INT)",
        "DROP VIEW events",
        "EXPORT DATABASE '/x'",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_only_one_select_is_run(duck: SandboxedDuck, query: str) -> None:
    with pytest.raises(QueryFailed, match="one SELECT"):
        ask(duck, query)


def test_python_variables_are_no_tables(duck: SandboxedDuck) -> None:
    with pytest.raises(QueryFailed, match="There are: events"):
        ask(duck, "SELECT * FROM duck")


def test_rows_and_bytes_have_limits(duck: SandboxedDuck) -> None:
    result = ask(duck, "FROM range(10)", rows_max=3)
    assert (rows(result), result.truncated) == ([[0], [1], [2]], True)
    result = ask(duck, "FROM range(3)", rows_max=3)
    assert (len(result.rows), result.truncated) == (3, False)
    result = ask(duck, "SELECT repeat('x', 6000) FROM range(9)")
    assert (len(result.rows), result.truncated) == (1, True)


def test_a_query_that_takes_too_long_is_ended(duck: SandboxedDuck) -> None:
    with pytest.raises(QueryFailed, match="longer than 0"):
        ask(duck, "SELECT count(*) FROM range(100000000) a, range(100000) b", seconds_max=0.2)
    assert rows(ask(duck, "SELECT 1")) == [[1]]


def test_a_query_that_needs_too_much_memory_is_refused(duck: SandboxedDuck) -> None:
    with pytest.raises(QueryFailed, match="more memory"):
        ask(duck, "SELECT list(i) FROM range(100000000) t(i)")


def test_a_single_value_cannot_take_the_memory_of_the_machine(duck: SandboxedDuck) -> None:
    file = Path(duck._warehouse.path).parent / "pipeline.toml"
    source = '[source]\nurl = "http://127.0.0.1:9"\nstreams = ["s"]\n'
    file.write_text(source + '[warehouse]\npath = "warehouse"\n')
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "query", str(file)]
    done = subprocess.run(
        command, input=b"SELECT length(repeat('x', 3000000000))", capture_output=True, check=True
    )
    assert b"more memory" in done.stdout


def test_mistakes_in_the_sql_are_told(duck: SandboxedDuck) -> None:
    with pytest.raises(QueryFailed, match="nosuch"):
        ask(duck, "SELECT nosuch FROM events")
    with pytest.raises(QueryFailed, match=r"[Ss]yntax"):
        ask(duck, "SELEC 1")


def test_values_of_all_kinds_become_json(duck: SandboxedDuck) -> None:
    query = """SELECT TIMESTAMPTZ '2026-01-02 03:04:05+00', 1.5::DECIMAL(4,1), 'x'::BLOB,
        {'a': [1, NULL]}, MAP {'k': 1}, 'NaN'::DOUBLE, DATE '2026-01-02'"""
    values = rows(ask(duck, query))[0]
    assert values[0] == "2026-01-02T03:04:05Z"
    assert values[3:6] == [{"a": [1, None]}, {"k": 1}, None]
