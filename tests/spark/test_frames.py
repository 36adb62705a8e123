"""Transformations of events: small frames in, rows out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.columns import STATE
from penstock.spark.frames import history_of, state_of
from tests.spark.warehouse_bench import WarehouseBench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, events: list[dict[str, Any]]) -> DataFrame:
    """Events with positions 10, 20, … unless they say otherwise."""
    rows = []
    for index, given in enumerate(events):
        position = given.get("position", 10 * (index + 1))
        base = {
            "stream": "s",
            "generation": 1,
            "position": position,
            "seq": index,
            "offset": spelled(position + 10, given.get("generation", 1)),
            "kind": "control" if "control" in given else "change",
            "timestamp": at(index),
        }
        rows.append({**dict.fromkeys(STATE.fieldNames()), **base, **given})
    return spark.createDataFrame(rows, STATE)


def put(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "key": key, "operation": "update", "value": value, **more}


def remove(key: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "key": key, "operation": "delete", **more}


def spelled(position: int, generation: int = 1) -> str:
    return f"{generation:016d}_{position:016d}"


def at(index: int) -> str:
    return f"2026-01-01T12:00:{index:02d}Z"


RESET = {"control": "reset"}


def states(spark: SparkSession, events: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    rows = state_of(frame(spark, events)).collect()
    return {(row.stream, row.key, row.value) for row in rows}


def test_the_newest_change_of_each_entity_counts(spark: SparkSession) -> None:
    events = [
        put("a", "1"), put("b", "1"), put("a", "2"), remove("b"), put("c", "1"),
        put("a", "9", stream="other"), {"kind": "invalid", "value": "x", "error": "no"},
    ]  # fmt: skip
    assert states(spark, events) == {("s", "a", "2"), ("s", "c", "1"), ("other", "a", "9")}


def test_resets_clear_their_stream_up_to_the_offset_they_name(spark: SparkSession) -> None:
    ahead = {"control": "reset", "control_offset": f"{1:016d}_{60:016d}"}
    behind = {"control": "reset", "control_offset": f"{1:016d}_{20:016d}"}
    again = {"control": "reset", "generation": 2, "position": -1}
    cases: list[tuple[list[dict[str, Any]], set[tuple[str, str, str]]]] = [
        ([put("a", "1"), RESET, put("b", "1")], {("s", "b", "1")}),
        ([put("a", "1"), put("b", "1"), behind, put("c", "1")], {("s", "b", "1"), ("s", "c", "1")}),
        ([put("a", "1"), ahead, put("b", "1"), put("c", "1", position=60)], {("s", "c", "1")}),
        ([put("a", "1"), RESET], set()),
        (
            [put("a", "1"), again, put("b", "2", generation=2, position=0)],
            {("s", "b", "2")},
        ),
        ([put("a", "1", stream="other"), RESET], {("other", "a", "1")}),
    ]
    for number, (events, wanted) in enumerate(cases):
        assert states(spark, events) == wanted, number


def test_history_says_from_where_to_where_a_value_held(spark: SparkSession) -> None:
    events = [
        put("a", "1"),  # 10
        put("a", "1"),  # 20: nothing new
        put("a", "2"),  # 30
        remove("a"),  # 40
        put("a", "2"),  # 50: a new life
        put("b", "1"),  # 60
        RESET,  # 70
        put("b", "1"),  # 80: the same value, but of another time
    ]
    times = ("string(valid_from_time) AS began", "string(valid_to_time) AS ended")
    spanned = history_of(frame(spark, events)).selectExpr("*", *times)
    rows = spanned.orderBy("key", "valid_from_ordinal").collect()
    spans = [
        (row.key, row.value, row.valid_from_ordinal, row.valid_to_ordinal, row.is_current)
        for row in rows
    ]
    assert spans == [
        ("a", "1", 0, 2, False),
        ("a", "2", 2, 3, False),
        ("a", "2", 4, 6, False),
        ("b", "1", 5, 6, False),
        ("b", "1", 7, None, True),
    ]
    assert (rows[0].valid_from_offset, rows[0].valid_to_offset) == (spelled(20), spelled(40))
    assert (rows[0].began, rows[0].ended) == ("2026-01-01 12:00:00", "2026-01-01 12:00:02")
    # Until the next release:
    assert (rows[0].valid_from_position, rows[0].valid_to_position) == (10, 30)
    assert (rows[0].valid_from_timestamp, rows[0].valid_to_timestamp) == (at(0), at(2))


def test_frames_and_warehouse_have_the_same_columns(spark: SparkSession, tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    bench.batch({"key": "a", "operation": "insert", "value": "1"})
    rows = frame(spark, [put("a", "1")])
    state = bench.duck.sql("SELECT * FROM state_user").column_names
    history = bench.duck.sql("SELECT * FROM history_user").column_names
    bench.duck.close()
    inner = {"_operation", "_batch"}  # of the pipeline's own making
    assert {name[1:] for name in set(state) - inner} <= set(state_of(rows).columns)
    assert {name[1:] for name in history} <= set(history_of(rows).columns)


def test_a_time_without_a_zone_is_no_point_in_time(spark: SparkSession) -> None:
    events = [
        put("a", "1", timestamp="2026-01-01T12:00:00"),
        put("b", "1", timestamp="2026-01-01T12:00:00+01:00"),
        put("c", "1", timestamp="noon Z"),
    ]
    rows = state_of(frame(spark, events)).selectExpr("*", "string(time) AS moment").collect()
    moments = {row.key: row.moment for row in rows}
    assert moments == {"a": None, "b": "2026-01-01 11:00:00", "c": None}
    assert {row.key: row.timestamp for row in rows}["c"] == "noon Z"
