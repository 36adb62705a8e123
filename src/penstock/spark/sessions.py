"""A Spark session that is ready for Penstock: Java found, sources known, quiet, modest, in UTC."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.java import provide_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    memory: str = "1g",
    config: dict[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """A session with Penstock's sources, on this machine unless `master` names a cluster.

    If there is one already it is that one. `config` is any of Spark's settings. With `quiet` Java
    starts without a word, and without the vector instructions that machine learning can use.
    """
    from pyspark.sql import SparkSession

    provide_java(quiet=quiet)
    python = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    master = master or "local[*]"
    here = _LOCAL if master.startswith("local") else {}
    settings = {**_defaults(memory), **here, **(config or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `durable_streams` and `stp` known to a session of your own."""
    from penstock.spark.source import DurableStreamsSource
    from penstock.spark.stp_source import StpSource

    # Spark refuses readers that take filters unless this is on.
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(DurableStreamsSource)
    spark.dataSource.register(StpSource)


_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


def _defaults(memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _PUSHDOWN: "true",
    }
