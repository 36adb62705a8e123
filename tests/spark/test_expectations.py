"""Expectations: conditions over types and results, counted, and what happens to rows that do not
meet them. Without Spark; test_pipeline_rules has them in a run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpectationFailed, InvalidPipeline
from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.config import Pipeline, make_pipeline
from penstock.spark.expectations import Expectation, violations
from penstock.spark.pipeline.publish import expected
from penstock.spark.pipeline.status import status_of
from penstock.spark.warehouse.dead_letters import Selection, replay_dead_letters
from penstock.spark.warehouse.events import validate
from tests.spark.warehouse_bench import USER, WarehouseBench, put

PEOPLE = [
    put("ada", '{"name":"Ada","age":36}'),
    put("kid", '{"name":"Kid","age":7}'),
    put("who", '{"name":"Who"}'),
    put("", '{"name":"","age":99}'),
    put("odd", '{"name":3}'),
]


def pipeline(path: Path, **expect: Any) -> Pipeline:
    return make_pipeline(
        {
            "source": {"url": "http://127.0.0.1:9", "streams": ["s"], "attempts": 1},
            "warehouse": {"path": str(path)},
            "types": {"user": {"schema": "name STRING, age INT", "expect": expect}},
        }
    )


def filled(path: Path, **expect: Any) -> tuple[WarehouseBench, Pipeline]:
    chosen = pipeline(path, **expect)
    bench = WarehouseBench(path, {"user": USER}, expect=chosen.expect)
    bench.batch(*PEOPLE)
    bench.batch(put("kid", '{"name":"Kid","age":8}'))
    bench.duck.close()
    bench.warehouse.close()
    return bench, chosen


def test_a_condition_that_is_not_true_is_violated() -> None:
    rows = pa.table({"age": [1, None, 20], "seen": [datetime(2026, 1, 1, tzinfo=UTC)] * 3})
    found = violations(rows, [Expectation("adult", "age >= 18")], "types.user")
    assert found.masks == [[True, True, False]], "NULL is not true"
    assert found.counts() == {"adult": 2}
    [ok] = violations(rows, [Expectation("utc", "hour(seen) = 0")], "types.user").masks
    assert ok == [False] * 3


def test_warnings_are_counted_and_change_nothing(tmp_path: Path) -> None:
    bench, chosen = filled(tmp_path / "w", adult="age IS NULL OR age >= 18", named="name <> ''")
    record = bench.warehouse.events.record
    assert record.violations == {"user.adult": 2, "user.named": 1}
    assert record.invalid == 1, "which the schema refused"
    shown = {each.name: (each.violated, each.last_batch) for each in status_of(chosen).expectations}
    assert shown == {"types.user.adult": (2, 1), "types.user.named": (1, 0)}


def test_dropped_rows_are_dead_letters_with_the_condition_as_their_reason(tmp_path: Path) -> None:
    adult = {"sql": "age >= 18", "action": "drop"}
    bench, chosen = filled(tmp_path / "w", adult=adult, named="name <> ''")
    record = bench.warehouse.events.record
    assert record.violations == {"user.adult": 3, "user.named": 1}
    assert record.invalid == 4
    reasons = status_of(chosen, details=True).details
    assert reasons is not None
    assert reasons.reasons["expectation adult: age >= 18"] == 3
    selection = Selection(reason="expectation adult: age >= 18")
    assert replay_dead_letters(chosen, selection).done == 0, "still not expected"
    merged = "json_merge_patch(value, '{\"age\": 18}')"
    only = Selection(reason=selection.reason, key="who")
    assert replay_dead_letters(chosen, only, fix=merged, dry_run=True) == (1, 3, 0)
    assert replay_dead_letters(chosen, only, fix=merged) == (1, 3, 0)
    stopping = pipeline(tmp_path / "w", adult={"sql": "age >= 18", "action": "fail"})
    assert replay_dead_letters(stopping) == (0, 3, 0), "a replay is not stopped by it"
    relaxed = pipeline(tmp_path / "w", adult="age >= 18")
    assert replay_dead_letters(relaxed) == (2, 1, 0), "a warning lets them through"


def test_a_row_that_stops_the_run_is_named(tmp_path: Path) -> None:
    chosen = pipeline(tmp_path / "w", adult={"sql": "age >= 18", "action": "fail"})
    bench = WarehouseBench(tmp_path / "w", {"user": USER}, expect=chosen.expect)
    words = r"types\.user\.expect\.adult: 3 rows do not meet age >= 18; the first is 'kid' of s\."
    with pytest.raises(ExpectationFailed, match=words):
        bench.batch(*PEOPLE[:3], put("x", '{"age":1}'))
    assert bench.warehouse.events.record.batch == 0
    bench.duck.close()


def test_conditions_reach_the_key_the_stream_and_the_time(tmp_path: Path) -> None:
    chosen = pipeline(
        tmp_path,
        own="_stream = 's' AND _key <> '' AND _operation = 'upsert' AND json_valid(_value)",
        old="_time < TIMESTAMPTZ '2026-01-01'",
    )
    bench = WarehouseBench(tmp_path, {"user": USER})
    rows = bench.rows(*PEOPLE[:2], {**PEOPLE[3], "timestamp": "2025-12-31T23:00:00Z"})
    bench.duck.close()
    batch = pa.RecordBatch.from_pylist(rows, schema=STATE_ARROW)
    assert validate(batch, chosen.types, chosen.expect).violations == {"user.own": 1, "user.old": 2}


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ({"x": "agee > 1"}, r"types\.user\.expect\.x cannot be evaluated: .*agee"),
        ({"x": {"sql": "age > 1", "action": "shrug"}}, r"shrug"),
        ({"x": "age FROM range(3) --"}, r"types\.user\.expect\.x"),
        ({"x": "(SELECT count(*) FROM read_text('/etc/passwd')) = 0"}, r"cannot be evaluated"),
    ],
)
def test_conditions_are_checked_with_the_settings(expect: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        pipeline(Path("w"), **expect)


def test_results_have_expectations_too() -> None:
    expect = {"few": "n < 5", "some": {"sql": "n > 0", "action": "drop"}}
    publish = make_pipeline(
        {
            "source": {"url": "http://h", "streams": ["s"]},
            "warehouse": {"path": "w"},
            "publish": {"p": {"to": "t", "sql": "x", "expect": expect}},
        }
    ).publish["p"]
    rows = pa.table({"key": ["a", "b", None], "n": [0, 7, 1]})
    kept, counts = expected("p", publish, rows)
    assert kept["key"].to_pylist() == ["b", None]
    assert counts == {"few": 1, "some": 1}


def test_a_result_that_stops_the_run_names_the_key() -> None:
    publish = make_pipeline(
        {
            "source": {"url": "http://h", "streams": ["s"]},
            "warehouse": {"path": "w"},
            "publish": {
                "p": {"to": "t", "sql": "x", "expect": {"e": {"sql": "n > 0", "action": "fail"}}}
            },
        }
    ).publish["p"]
    with pytest.raises(ExpectationFailed, match=r"publish\.p\.expect\.e: 1 rows .* is 'a'"):
        expected("p", publish, pa.table({"key": ["b", "a"], "n": [1, 0]}))
