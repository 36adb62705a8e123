"""Runs that end, and what the next one makes of it: errors after a stop, other streams than before,
a warehouse to resume from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Client
from penstock.errors import DataLost, PublishFailed
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.pipeline.status import status_of
from penstock.state.events import delete
from tests.conformance.reference import reference_server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.pipelines import Make, append, ask, maker, run, user

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE = "SELECT _key, city FROM state_user ORDER BY _key"
_before_failing: list[Callable[[], None]] = []


def failing(_: SparkSession) -> DataFrame:
    """A result that is asked to stop, and then has a mistake."""
    for call in _before_failing:
        call()
    raise LookupError("no such city")


def test_an_error_after_a_stop_is_told_and_the_batch_taken_up_again(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    append(client, f"{home}/one", user("a", "x"))
    broken = {"function": f"{__name__}:failing", "to": f"derived-{home}/cities"}
    running = PipelineRun(make(publish={"cities": broken}), spark)
    _before_failing[:] = [running.stop]
    with pytest.raises(PublishFailed, match=r"publish\.cities: no such city"):
        running.run()
    fixed = make(publish={"cities": {"sql": CITIES, "to": f"derived-{home}/cities"}})
    run(fixed, spark)
    check_cities(fixed, client, check_warehouse(fixed))


@pytest.mark.soak  # the test before this stops a run, too
def test_a_stop_between_batches_is_no_error(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    append(client, f"{home}/one", *(user(str(number), "x") for number in range(60)))
    pipeline = make()
    running = PipelineRun(pipeline, spark, on_progress=lambda _: running.stop())
    running.run()
    assert running.meter.last.events == 25, "the first batch, and no other"
    run(pipeline, spark)
    check_cities(pipeline, client, check_warehouse(pipeline))


def test_a_stream_that_is_no_longer_selected_keeps_its_rows_and_is_named_once(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    for name in ("one", "two"):
        append(client, f"{home}/{name}", user(f"{name}-a", "x"))
    wide = make(publish=None)
    run(wide, spark)
    narrow = make(source={"streams": [f"{home}/one"]}, publish=None)
    append(client, f"{home}/one", user("one-b", "y"))
    append(client, f"{home}/two", user("two-b", "y"), delete("user", "two-a").to_json())
    notes: list[str] = []
    running = PipelineRun(narrow, spark, on_note=notes.append)
    running.run(once=True)
    assert notes == [f"{home}/two no longer in source.streams: not read any further, rows stay"]
    assert [row["_key"] for row in ask(narrow, STATE)] == ["one-a", "one-b", "two-a"]
    assert status_of(narrow).lag == 0
    run(wide, spark)
    check_warehouse(wide)


@pytest.mark.soak  # test_selection has it without Spark
def test_a_resumed_warehouse_notices_what_was_deleted(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    for name in ("one", "two"):
        append(client, f"{home}/{name}", user(f"{name}-a", "x"))
    pipeline = make(publish=None)
    run(pipeline, spark)
    client.stream(f"{home}/two").delete()
    append(client, f"{home}/one", user("one-b", "y"))
    with pytest.raises(DataLost, match=f"{home}/two: It was deleted") as caught:
        run(pipeline, spark, resume_from_warehouse=True)
    assert "\n" not in caught.value.detail
    lenient = make(source={"fail_on_data_loss": False}, publish=None)
    run(lenient, spark, resume_from_warehouse=True)
    assert [row["_key"] for row in ask(lenient, STATE)] == ["one-a", "one-b"]
    resets = ask(lenient, "SELECT stream, value FROM events WHERE control = 'reset'")
    assert resets == [{"stream": f"{home}/two", "value": '{"reason":"stream-deleted"}'}]


@pytest.mark.soak  # test_other_servers has it without Spark
def test_a_warehouse_of_another_server_is_resumed_with_its_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    with reference_server() as reference, Client(reference.url) as other:
        source: dict[str, Any] = {"streams": ["users"], "max_messages": 2}
        pipeline = maker(reference.url, tmp_path, "other")(source=source, publish=None)
        append(other, "users", user("a", "old"), user("b", "old"), user("c", "old"))
        run(pipeline, spark)
        append(other, "users", user("a", "new"), delete("user", "b").to_json())
        run(pipeline, spark, resume_from_warehouse=True)
        assert [(row["_key"], row["city"]) for row in ask(pipeline, STATE)] == [
            ("a", "new"), ("c", "old"),
        ]  # fmt: skip
        ordinals = ask(pipeline, "SELECT ordinal FROM events ORDER BY ordinal")
        assert [row["ordinal"] for row in ordinals] == [0, 1, 2, 3, 4]
        check_warehouse(pipeline)
