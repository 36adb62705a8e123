"""Pipelines against a real server, in one Spark session: all tables, views and published streams
come to what a replay of the log does.
"""

from __future__ import annotations

import os
import shutil
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Client, limits
from penstock.errors import ConnectionFailed, PublishFailed, WarehouseMismatch
from penstock.protocol.offsets import Offset
from penstock.spark.config import make_pipeline
from penstock.spark.offsets import Position, SourceOffsets
from penstock.spark.pipeline.progress import Meter, serving_metrics
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.pipeline.status import status_of
from penstock.spark.stream_progress import Lags, StreamProgress
from penstock.spark.warehouse.dead_letters import replay_dead_letters
from penstock.spark.warehouse.fold import fold_in_spark
from penstock.spark.warehouse.spark_sql import SparkViews
from penstock.state.events import delete, reset, upsert
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.pipelines import Make, append, ask, run, user
from tests.spark.warehouse_bench import USER, WarehouseBench, as_of_everything, gone, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_table_view_and_published_stream_is_what_a_replay_comes_to(
    spark: SparkSession, client: Client, make: Make
) -> None:
    home = "test_every_table_view_and_published_stream_is_what_a_replay_comes_to"
    pipeline = make()
    append(
        client,
        f"{home}/one",
        *(user(str(number % 7), f"c{number % 3}") for number in range(30)),
        user("bad", 7),
        b'{"headers":{"operation":"insert"}}',
        upsert("flag", "dark mode", True).to_json(),
    )
    append(client, f"{home}/two", user("1", "c1"), delete("user", "1").to_json(), user("2", None))
    first = run(pipeline, spark)
    assert first.meter.last.batches == 2
    replay = check_warehouse(pipeline)
    assert len(replay.dead) == 2
    published = check_cities(pipeline, client, replay)
    run(pipeline, spark)  # nothing new
    assert check_cities(pipeline, client, check_warehouse(pipeline)) == published
    append(client, f"{home}/one", reset().to_json(), user("9", "c9"), user("9", "c9"))
    append(client, f"{home}/three", user("1", "c1"))
    run(pipeline, spark)
    assert len(check_cities(pipeline, client, check_warehouse(pipeline))) > len(published)
    status = status_of(pipeline)
    assert (status.lag, status.streams, status.dead_letters) == (0, 3, 2)
    assert status.published == {"cities": 2}


def test_a_lost_checkpoint_stops_the_pipeline_until_it_resumes_from_the_warehouse(
    spark: SparkSession, client: Client, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "test_a_lost_checkpoint_stops_the_pipeline_until_it_resumes_from_the_warehouse"
    pipeline = make()
    append(client, f"{home}/one", *(user(str(number), "c") for number in range(5)))
    run(pipeline, spark)
    assert pipeline.warehouse.checkpoint is not None
    shutil.move(pipeline.warehouse.checkpoint, pipeline.warehouse.checkpoint + "-away")
    append(client, f"{home}/one", user("5", "d"))
    with pytest.raises(WarehouseMismatch, match="--resume-from-warehouse"):
        run(pipeline, spark)
    left = Path(pipeline.warehouse.path) / "state" / "user" / "state-left.parquet"
    left.write_text("by a task that was killed")
    os.utime(left, (0, 0))
    monkeypatch.setattr(limits, "PIPELINE_TIDY_INTERVAL_S", 0)
    run(pipeline, spark, resume_from_warehouse=True)
    assert not left.exists()
    check_cities(pipeline, client, check_warehouse(pipeline))
    shutil.rmtree(pipeline.warehouse.checkpoint)
    shutil.move(pipeline.warehouse.checkpoint + "-away", pipeline.warehouse.checkpoint)
    with pytest.raises(WarehouseMismatch, match="another query"):
        run(pipeline, spark)
    shutil.rmtree(pipeline.warehouse.path + "/events")
    with pytest.raises(WarehouseMismatch, match="warehouse lacks"):
        run(pipeline, spark)


def test_dead_letters_replayed_after_a_fix_take_their_old_place(
    spark: SparkSession, client: Client, make: Make
) -> None:
    home = "test_dead_letters_replayed_after_a_fix_take_their_old_place"
    strict = make()
    append(
        client,
        f"{home}/one",
        user("a", "old", name=None),
        user("a", "new"),
        user("b", "old", name=None),
        delete("user", "b").to_json(),
        user("c", "late", name=None),
        b'"no event"',
    )
    run(strict, spark)
    assert replay_dead_letters(strict) == (0, 4, 0)
    fixed = make(types={"user": {"schema": "name STRING, city STRING"}})
    assert replay_dead_letters(fixed) == (3, 1, 0)
    assert replay_dead_letters(fixed) == (0, 1, 0)
    run(fixed, spark)
    duck_rows = {row["_key"]: row["city"] for row in ask(fixed, "SELECT * FROM state_user")}
    assert duck_rows == {"a": "new", "c": "late"}
    messages = client.stream(fixed.publish["cities"].target).read().messages
    assert sorted(each["key"] for each in messages) == ["late", "new"]


def test_a_query_that_cannot_be_published_is_named_in_a_line_and_events_are_kept(
    spark: SparkSession, client: Client, make: Make
) -> None:
    home = "test_a_query_that_cannot_be_published_is_named_in_a_line_and_events_are_kept"
    append(client, f"{home}/one", user("a", "x"), user("b", "y"))
    target = "derived/broken"
    sql = "SELECT nothing AS key FROM state_user"
    pipeline = make(publish={"cities": {"sql": sql, "to": target}})
    with pytest.raises(PublishFailed, match=r"publish\.cities") as caught:
        run(pipeline, spark)
    assert "nothing" in caught.value.detail
    assert "\n" not in caught.value.detail
    check_warehouse(pipeline)
    # A fixed query takes up where the broken one ended.
    fixed = make(publish={"cities": {"sql": CITIES, "to": target}})
    run(fixed, spark)
    check_cities(fixed, client, check_warehouse(fixed))


def test_a_live_run_follows_until_it_is_stopped(
    spark: SparkSession, client: Client, make: Make
) -> None:
    home = "test_a_live_run_follows_until_it_is_stopped"
    append(client, f"{home}/one", user("a", "x"))
    progressed = threading.Condition()
    pipeline = make(pipeline={"interval_s": 0})

    def notify(_: object) -> None:
        with progressed:
            progressed.notify_all()

    running = PipelineRun(pipeline, spark, on_progress=notify)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        with progressed:
            assert progressed.wait_for(lambda: running.meter.last.events == 1, 60)
        append(client, f"{home}/one", user("b", "y"))
        with progressed:
            assert progressed.wait_for(lambda: running.meter.last.events == 2, 60)
    finally:
        running.stop()
        thread.join(60)
    assert not thread.is_alive()
    check_cities(pipeline, client, check_warehouse(pipeline))
    with (
        serving_metrics(running.meter, "127.0.0.1", 0) as address,
        urllib.request.urlopen(address, timeout=10) as answer,
    ):
        assert "penstock_pipeline_events_total 2.0" in answer.read().decode()


@pytest.mark.soak  # the cluster test folds in tasks
def test_spark_folds_and_reads_what_the_driver_does(spark: SparkSession, tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    views = SparkViews(spark, bench.warehouse, bench.types)

    def agree() -> None:
        views.refresh()
        bench.agree()
        columns = "_stream, _key, _value, _generation, _ordinal"
        state = views.sql(f"SELECT {columns} FROM state_user").collect()
        assert sorted(map(tuple, state)) == bench.replay.state_rows("user")
        columns = "_stream, _key, _value, _valid_from_ordinal, coalesce(_valid_to_ordinal, -1)"
        history = views.sql(f"SELECT {columns} FROM history_user").collect()
        assert sorted(map(tuple, history)) == bench.replay.history_rows("user")
        dead = views.sql("SELECT stream, ordinal, value, error FROM dead_letters").collect()
        assert sorted(map(tuple, dead)) == bench.replay.dead_rows()

    bench.batch(put("a", '{"name":"Ada","age":3}'), put("b", '{"name":1}'), put("c", '{"age":1}'))
    agree()
    fold_in_spark(views, "user", bench.warehouse.events.record)
    agree()
    bench.batch(put("a", '{"name":"Al"}'), gone("c"), {"control": "reset", "stream": "t"})
    bench.batch({"control": "reset"}, put("d", '{"name":"Di"}'), put("d", '{"name":"Di"}'))
    agree()
    assert fold_in_spark(views, "user", bench.warehouse.events.record).folded.rows == 1
    agree()
    ages = views.sql("SELECT _key, name, age FROM state_user").collect()
    assert [tuple(row) for row in ages] == [("d", "Di", None)]
    bench.batch(put("d", '{"name":"Du"}', stream="t"))
    views.refresh()
    found = views.sql("SELECT _key, name, _streams FROM by_key_user").collect()
    assert [tuple(row) for row in found] == [("d", "Du", 2)]
    found = views.sql("SELECT * FROM collisions").collect()
    assert [tuple(row) for row in found] == [("user", "d", 2)]
    bench.duck.close()


def test_the_past_is_the_same_in_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    views = SparkViews(spark, bench.warehouse, bench.types)
    # Every third point, since each takes Spark a second: DuckDB is asked for all elsewhere.
    for number, check in enumerate(as_of_everything(bench, views)):
        if number % 3 == 1:
            check(lambda query: [tuple(row) for row in spark.sql(query).collect()])
    bench.duck.close()


def at(byte: int) -> str:
    return Offset(1, byte).token


def test_meters_count_what_a_run_does() -> None:
    meter = Meter()
    start, end = {"s": Position(at(100), 3)}, {"s": Position(at(450), 13), "t": Position(at(7), 1)}
    lags = Lags({"s": 17, "t": 1}, {"s": 900, "t": 7})  # when the batch was planned
    meter.streams(SourceOffsets("penstock", start), SourceOffsets("penstock", end), lags, 0.5)
    progress = meter.batch(number=4, events=10, total=40, invalid=2, seconds=0.5)
    assert progress.streams["s"] == StreamProgress(
        messages=10,
        bytes=350,
        lag_messages=7,
        lag_bytes=550,
        messages_per_s=20.0,
        bytes_per_s=700.0,
    )
    assert (progress.streams["t"].messages, progress.streams["t"].lag_messages) == (1, 0)
    assert (progress.batches, progress.events, progress.events_total, progress.lag) == (
        1,
        10,
        40,
        7,
    )
    assert "lag 7" in progress.line()
    assert "dead letters 2" in progress.line()


def test_a_broken_source_is_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = make_pipeline(
        {
            "source": {"url": "http://127.0.0.1:9", "streams": ["x"], "attempts": 1},
            "warehouse": {"path": str(tmp_path)},
        }
    )
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9") as caught:
        run(pipeline, spark)
    assert "\n" not in caught.value.detail
