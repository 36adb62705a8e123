"""What the cluster test runs as a driver of its own: a pipeline to its end; on a standalone cluster
also a batch that is repeated after a shuffle, the plain sink twice, and with its jars Delta's own
engine on the pipeline's tables.

`python -m tests.spark.cluster_job MASTER PIPELINE.toml REPORT.json [JAR …]`
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock.spark
from penstock.errors import WarehouseInUse
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.pipeline.run import PipelineRun
from tests.spark.clients import close_clients
from tests.spark.delta_jar import delta_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPETITIONS = 2


def main(master: str, file: str, report: str, *jars: str) -> None:
    pipeline = load_pipeline(Path(file))
    config = {**pipeline.run.spark, **(delta_settings([*map(Path, jars)]) if jars else {})}
    spark = penstock.spark.session("cluster job", master=master, config=config, quiet=True)
    try:
        PipelineRun(pipeline, spark).run(once=True)
        if master.startswith("local"):
            forget_last_batch(pipeline)
            PipelineRun(pipeline, spark).run(once=True)
        results: dict[str, Any] = {"executors": executors(spark)}
        if not master.startswith("local"):
            results["orders"] = orders(spark, pipeline)
            sink_twice(spark, pipeline)
        if jars:
            results["delta"] = delta_reads(spark, pipeline)
            results["refused"] = delta_writes(spark, Path(file))
    finally:
        spark.stop()
        close_clients()
    Path(report).write_text(json.dumps(results))


def forget_last_batch(pipeline: Pipeline) -> None:
    """As a driver leaves it that is killed before Spark has noted the end of its batch."""
    commits = Path(pipeline.warehouse.path) / "_checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def executors(spark: SparkSession) -> int:
    """On how many executors tasks have run; the driver is one more in Spark's list."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _events(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    source = pipeline.source
    return penstock.spark.events(spark, source.url, source.streams, minPartitions="4")


def orders(spark: SparkSession, pipeline: Pipeline) -> dict[str, list[list[list[str]]]]:
    """The rows of each partition after a shuffle, in their order, several times over."""
    shuffled = _events(spark, pipeline).select("stream", "seq").repartition(2, "seq")
    ordered = shuffled.sortWithinPartitions("stream", "seq")
    found: dict[str, list[list[list[str]]]] = {}
    for name, frame in (("shuffled", shuffled), ("ordered", ordered)):
        found[name] = [
            [[f"{row.stream}:{row.seq}" for row in part] for part in frame.rdd.glom().collect()]
            for _ in range(REPETITIONS)
        ]
    return found


def sink_twice(spark: SparkSession, pipeline: Pipeline) -> None:
    """A write after a shuffle that is run again, as a foreachBatch is after its driver has died."""
    shuffled = _events(spark, pipeline).selectExpr("stream AS `from`", "seq").repartition(2, "seq")
    for _ in range(2):
        writer = shuffled.sortWithinPartitions("from", "seq").write.format("durable_streams")
        writer = writer.options(url=pipeline.source.url, stream="derived/sink", chunkMessages="7")
        writer.options(txnAppId="cluster", txnVersion="0").mode("append").save()


def delta_reads(spark: SparkSession, pipeline: Pipeline) -> dict[str, Any]:
    """What Delta's own engine finds in the tables."""
    path = Path(pipeline.warehouse.path)
    events = spark.read.format("delta").load(f"{path}/events")
    # Deleted keys stay in the table while a dead letter of their stream may be replayed.
    state = spark.read.format("delta").load(f"{path}/state/user").where("_operation <> 'delete'")
    columns = ("stream", "generation", "ordinal", "kind", "value", "error")
    own = ("_stream", "_key", "_value", "_generation", "_ordinal")
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}/events`").first()
    assert detail is not None
    return {
        "events": sorted(map(list, events.select(*columns).collect()), key=str),
        "state": sorted(map(list, state.select(*own).collect())),
        "protocol": [detail.minReaderVersion, detail.minWriterVersion],
    }


def delta_writes(spark: SparkSession, file: Path) -> str:
    """What a pipeline says after that engine has written to (a copy of) its tables."""
    copied = file.with_name("copied.toml")
    copied.write_text(file.read_text().replace('path = "warehouse"', 'path = "copied"'))
    shutil.copytree(file.with_name("warehouse"), file.with_name("copied"))
    pipeline = load_pipeline(copied)
    spark.sql(f"DELETE FROM delta.`{pipeline.warehouse.path}/events` WHERE ordinal = 0")
    try:
        PipelineRun(pipeline, spark).run(once=True)
    except WarehouseInUse as error:
        return error.detail
    return "nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
