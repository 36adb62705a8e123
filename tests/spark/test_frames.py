"""Transformations of events: small frames in, rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.columns import STATE
from penstock.spark.frames import history_of, state_of

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
            "offset": f"{given.get('generation', 1):016d}_{position + 10:016d}",
            "kind": "control" if "control" in given else "change",
            "timestamp": f"t{index}",
        }
        rows.append({**dict.fromkeys(STATE.fieldNames()), **base, **given})
    return spark.createDataFrame(rows, STATE)


def put(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "key": key, "operation": "update", "value": value, **more}


def remove(key: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "key": key, "operation": "delete", **more}


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
    behind = {"control": "reset", "control_offset": f"{1:016d}_{5:016d}"}
    again = {"control": "reset", "generation": 2, "position": -1}
    cases: list[tuple[list[dict[str, Any]], set[tuple[str, str, str]]]] = [
        ([put("a", "1"), RESET, put("b", "1")], {("s", "b", "1")}),
        ([put("a", "1"), behind, put("b", "1")], {("s", "b", "1")}),
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
    rows = history_of(frame(spark, events)).orderBy("key", "valid_from_position").collect()
    found = [
        (row.key, row.value, row.valid_from_position, row.valid_to_position, row.is_current)
        for row in rows
    ]
    assert found == [
        ("a", "1", 10, 30, False),
        ("a", "2", 30, 40, False),
        ("a", "2", 50, 70, False),
        ("b", "1", 60, 70, False),
        ("b", "1", 80, None, True),
    ]
    assert (rows[0].valid_from_timestamp, rows[0].valid_to_timestamp) == ("t0", "t2")
