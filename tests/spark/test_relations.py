"""The relations that SQL can name: what they are called, for good, and what happens where keys of
several streams meet. Without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.spark.type_schema import TypeSchema, type_schema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import USER, WarehouseBench, gone, put, spelled


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WarehouseBench]:
    found = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    yield found
    found.duck.close()


def test_names_of_types_become_names_of_views() -> None:
    assert sql.view_names(["Order", "order", "ORDER", "order_2", "a-b"]) == {
        "order": "order",
        "order_2": "order_2",
        "ORDER": "order_3",
        "Order": "order_4",
        "a-b": "a_b",
    }
    assert sql.view_names(["a-b", "a_b"], {"a_b": "a_b"}) == {"a_b": "a_b", "a-b": "a_b_2"}
    assert sql.literal("it's") == "'it''s'"
    assert sql.literal("a\\b'") == "('a' || chr(92) || 'b''')"


def test_a_relation_by_key_has_each_key_once_and_says_where_keys_collide(
    bench: WarehouseBench,
) -> None:
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    bench.batch(
        put("a", '{"name":"late"}', timestamp=late),
        put("a", '{"name":"early"}', timestamp=early, stream="t"),
        put("b", '{"name":"old"}', stream="t"),
        put("c", '{"name":"alone"}', stream="t"),
        put("x", "1", type="flag"),
        put("x", "2", type="flag", stream="t"),
    )
    bench.fold()
    bench.batch(put("b", '{"name":"new"}'), put("d", "{}"), put("d", "{}", stream="t"))
    bench.batch(gone("d"))
    rows = bench.duck.sql("SELECT _key, _stream, name, _streams FROM by_key_user ORDER BY _key")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("a", "s", "late", 2),
        ("b", "s", "new", 2),
        ("c", "t", "alone", 1),
        ("d", "t", None, 1),
    ]
    rows = bench.duck.sql("SELECT * FROM collisions ORDER BY _type, _key")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("flag", "x", 2),
        ("user", "a", 2),
        ("user", "b", 2),
    ]
    columns = bench.duck.sql("SELECT * FROM by_key_user").column_names
    assert columns == [*bench.duck.sql("SELECT * FROM state_user").column_names, "_streams"]


def test_no_types_have_no_collisions(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    assert bench.duck.sql("SELECT * FROM collisions").num_rows == 0
    bench.duck.close()


def test_a_type_keeps_its_name_whatever_types_come_later(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    bench.warehouse.open(["c_d"])  # declared, and not met yet
    bench.batch(put("k", "1", type="a_b"))
    bench.batch(put("k", "2", type="a-b"), put("k", "3", type="C-D"), put("k", "4", type="A_B"))
    bench.batch(put("k", "5", type="c_d"))

    def value(view: str) -> list[str]:
        return [row["_value"] for row in bench.duck.sql(f"SELECT * FROM {view}").to_pylist()]

    assert value("state_a_b") == ["1"]
    assert value("state_c_d") == ["5"]
    assert sorted(value("state_a_b_2") + value("state_a_b_3")) == ["2", "4"]
    assert value("state_c_d_2") == ["3"]
    again = Duck(Warehouse(str(bench.path)), {"a*b": USER})
    assert again.view_names()["a_b"] == "a_b", "nor whatever types are declared later"
    again.close()
    bench.duck.close()


def test_a_warehouse_without_noted_names_notes_those_that_it_shows(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    for name in ("b", "a_b", "a-b"):
        bench.batch(put("k", "1", type=name))
    bench.warehouse.events.note(msgspec.structs.replace(bench.warehouse.events.record, names={}))
    wanted = {"a_b": "a_b", "a-b": "a_b_2", "b": "b"}
    assert bench.duck.view_names() == wanted
    bench.warehouse.open()
    bench.duck.refresh()
    assert bench.warehouse.events.record.names == bench.duck.view_names() == wanted
    bench.duck.close()


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("SELECT count(*) AS n FROM history_user", 0),
        ("SELECT * FROM history_user WHERE _key = '7'", 1),
        ("SELECT name, age FROM history_user LIMIT 3", 3),
        ("SELECT * FROM state_user WHERE _key = '8'", 1),
    ],
)
def test_only_values_that_are_asked_for_are_read(
    bench: WarehouseBench, monkeypatch: pytest.MonkeyPatch, query: str, most: int
) -> None:
    bench.batch(*(put(str(number), f'{{"age":{number}}}') for number in range(5000)))
    read = 0
    columns = TypeSchema.columns

    def counted(self: TypeSchema, values: list[str | None]) -> list[pa.Array]:
        nonlocal read
        read += len(values)
        return columns(self, values)

    monkeypatch.setattr(TypeSchema, "columns", counted)
    assert bench.duck.sql(query).num_rows == max(most, 1)
    assert read <= (2048 if "LIMIT" in query else most), "DuckDB takes 2048 rows at a time"


def test_queries_may_use_the_former_names_of_the_columns_of_history(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'), put("a", '{"name":"Al"}'))
    now = bench.duck.sql("SELECT * FROM history_user")
    assert {"_valid_from_ordinal", "_valid_to_offset", "_is_current"} <= set(now.column_names)
    assert not set(sql.FORMER_NAMES) & set(now.column_names)
    former = bench.duck.sql(
        "SELECT _from_ordinal, _from_offset, _from_time, _to_ordinal, _to_offset, _to_time, "
        "_current FROM history_user ORDER BY _from_ordinal"
    )
    assert former.column_names == list(sql.FORMER_NAMES)
    rows = [tuple(row.values()) for row in former.to_pylist()]
    assert rows == [
        (0, spelled(1, 10), None, 1, spelled(1, 20), None, False),
        (1, spelled(1, 20), None, None, None, None, True),
    ]


def test_what_is_chosen_is_chosen_before_values_are_read(
    bench: WarehouseBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.batch(*(put(str(number), f'{{"age":{number}}}') for number in range(5000)))
    seen: list[str | None] = []
    columns = TypeSchema.columns

    def counted(self: TypeSchema, values: list[str | None]) -> list[pa.Array]:
        seen.extend(values)
        return columns(self, values)

    monkeypatch.setattr(TypeSchema, "columns", counted)
    for rows in (
        bench.duck.history("user", chosen="ORDER BY x._valid_from_ordinal DESC LIMIT 2"),
        bench.duck.state_at("user", sql.Until(batch=1), chosen="ORDER BY x._ordinal DESC LIMIT 2"),
    ):
        found = bench.duck.table(f"SELECT x.age FROM {rows} x ORDER BY x.age")
        assert found["age"].to_pylist() == [4998, 4999]
    assert len(seen) == 4


def test_columns_of_every_kind_come_as_they_are_declared(tmp_path: Path) -> None:
    kinds = {
        "Text": "STRING", "whole": "BIGINT", "part": "DOUBLE", "is it": "BOOLEAN",
        "sum": "DECIMAL(10, 2)", "day": "DATE", "at": "TIMESTAMP", "list": "ARRAY<INT>",
        "map": "MAP<STRING, INT>", "nested": "STRUCT<a: INT, b: STRING>",
    }  # fmt: skip
    schema = type_schema(", ".join(f"`{name}` {kind}" for name, kind in kinds.items()))
    value = {
        "Text": "t", "whole": 2**60, "part": 0.5, "is it": True, "sum": "1.25", "day": "2026-01-02",
        "at": "2026-01-02T03:04:05Z", "list": [1, None], "map": {"k": 1}, "nested": {"a": 1},
    }  # fmt: skip
    bench = WarehouseBench(tmp_path / "warehouse", {"user": schema})
    bench.batch(put("a", json.dumps(value)), put("b", "{}"))
    names = ", ".join(f'"{name}"' for name in kinds)
    query = f"SELECT {names} FROM %s ORDER BY _key"
    before = [
        bench.duck.sql(query % name) for name in ("state_user", "history_user", "by_key_user")
    ]
    bench.fold()
    after = bench.duck.sql(query % "state_user")
    assert all(each.to_pylist() == after.to_pylist() for each in before)
    first, second = after.to_pylist()
    assert set(second.values()) == {None}
    assert first["nested"] == {"a": 1, "b": None}
    assert (first["Text"], first["whole"], first["list"]) == ("t", 2**60, [1, None])
    assert str(first["sum"]) == "1.25"
    bench.duck.close()
