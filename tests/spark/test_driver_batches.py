"""Batches that the driver or tasks read and write: the same rows that Spark's scan brings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Client, limits
from penstock.spark.config import make_pipeline
from penstock.spark.offsets import Position, SourceOffsets
from penstock.spark.options import source_options
from penstock.spark.pipeline.driver_batches import DirectBatches
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import WRITTEN_DDL, BatchResult, writer_of
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import delete, reset, upsert
from tests.helpers.server import Server
from tests.spark.checking import check_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "name STRING NOT NULL, city STRING"


def at(byte: int, seq: int, generation: int = 1) -> dict[str, Any]:
    place = Position(f"{generation:016d}_{byte:016d}", seq)
    return SourceOffsets("penstock", {"orders": place}).to_spark()


@pytest.mark.parametrize(
    ("start", "end", "small"),
    [
        (at(100, 10), at(900, 20), True),
        (at(100, 10), at(900, 21), False),
        (at(100, 10), at(100 + limits.PIPELINE_SMALL_BYTES, 11), True),
        (at(100, 10), at(101 + limits.PIPELINE_SMALL_BYTES, 11), False),
        (SourceOffsets("penstock", {}).to_spark(), at(900, 10), True),
        (SourceOffsets("penstock", {}).to_spark(), at(900, 11), False),
        (at(9000, 90), at(900, 10, generation=2), True),
        (at(9000, 90), at(900, 11, generation=2), False),
        (at(9000, 90), SourceOffsets("penstock", {}).to_spark(), True),
    ],
)
def test_a_batch_is_small_by_its_messages_and_its_bytes(
    start: dict[str, Any], end: dict[str, Any], small: bool
) -> None:
    options = source_options({"url": "http://127.0.0.1:1", "streams": "orders"})
    assert DirectBatches(options, messages_max=10).is_small(start, end) == small
    assert not DirectBatches(options, messages_max=0).is_small(start, end)


@pytest.mark.soak  # kill and cluster tests compare all with a replay
def test_driver_tasks_and_scan_bring_the_same_rows(
    spark: SparkSession,
    client: Client,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(name: str, **run: Any) -> Any:
        streams = {"url": server.url, "streams": ["small/*"], "max_messages": 20}
        return make_pipeline(
            {
                "source": streams | {"fail_on_data_loss": False},
                "warehouse": {"path": str(tmp_path / name)},
                "types": {"user": {"schema": SCHEMA}},
                "pipeline": run,
            }
        )

    for name in ("small/one", "small/two"):
        client.stream(name).ensure()
        messages: list[Any] = [
            upsert("user", str(number % 9), {"name": "n", "city": f"c{number % 4}"})
            for number in range(25)
        ]
        messages += [upsert("user", "x", {"city": 7}), delete("user", "3"), {"no": "event"}]
        client.stream(name).append_many([*messages, reset(), *messages[:6]])
    driver, tasks, scan = made("driver"), made("tasks", driver_messages=0), made("scan")
    direct = PipelineRun._write
    for begun in (True, False):
        taken = []
        for pipeline in (driver, tasks, scan):
            write = _by_scan if pipeline is scan else direct
            monkeypatch.setattr(PipelineRun, "_write", write)
            run = PipelineRun(pipeline, spark)
            run.run(once=True)
            assert run._query is not None
            taken.append([progress.numInputRows for progress in run._query.recentProgress])
        # Spark counts what its scan has read.
        assert taken == ([[0] * 4, [0] * 4, [20, 20, 20, 10]] if begun else [[0], [0], [8]])
        if begun:
            check_warehouse(driver)
            client.stream("small/two").delete()
            client.stream("small/two").create()
            client.stream("small/two").append_many(messages[:7])
    assert _events(driver) == _events(tasks) == _events(scan)


def _by_scan(self: PipelineRun, rows: Any, batch: int, end: Any) -> BatchResult:
    events = self.warehouse.events
    number = events.record.batch + 1
    write = writer_of(events.uri, self._pipeline.types, number, datetime.now(UTC))
    return BatchResult.of(row.asDict() for row in rows.mapInArrow(write, WRITTEN_DDL).collect())


def _events(pipeline: Any) -> list[dict[str, Any]]:
    duck = Duck(Warehouse(pipeline.warehouse.path), pipeline.types)
    try:
        order = "batch, stream, generation, ordinal"
        found = duck.sql(f"SELECT * EXCLUDE ingested FROM events ORDER BY {order}")
        return list(found.to_pylist())
    finally:
        duck.close()
