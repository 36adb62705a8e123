"""Spark sessions with Penstock's sources: in UTC, without Spark's log and user interface.

Creates classic sessions; sessions of Spark Connect are the user's, and only get the sources.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from penstock.errors import InvalidOption
from penstock.spark.error_text import error_message, missing_package
from penstock.spark.sessions.class_archive import class_archive_options
from penstock.spark.sessions.launchers import provide_java, pyspark_python_env, task_python

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
    sources: bool = True,
) -> SparkSession:
    """Return a session with Penstock's sources, on this machine unless `master` names a cluster.

    An existing session is returned as it is. `config` has any of Spark's settings. With `quiet`
    Java starts without output, and without the vector instructions that machine learning can use.
    Without `sources` they are left to `register`.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    if (master or "").startswith("sc://"):
        raise InvalidOption(
            f"{master} is a Spark Connect server: create the session with SparkSession.builder."
            "remote(…), and add Penstock's sources with penstock.spark.register()."
        )
    java_home = provide_java(quiet=quiet)
    java_options = class_archive_options(java_home, os.environ)
    master = master or "local[*]"
    local = _LOCAL if master.startswith("local") else {}
    settings = {**_defaults(memory, java_options), **local, **(config or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with pyspark_python_env(task_python(master, settings, os.environ)):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if sources:
        register(spark)
    return spark


def is_connect(spark: Any) -> bool:
    """Whether a session is of Spark Connect, where a remote server runs Spark."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def needs_classic(spark: Any, what: str) -> None:
    """Raise InvalidOption for a session of Spark Connect."""
    if is_connect(spark):
        raise InvalidOption(
            f"{what} needs a driver of its own, and this is a session of Spark Connect. Pass a "
            "session of penstock.spark.session(master=…), or run `penstock pipeline run "
            "--master …` on the machine of the driver."
        )


def register(spark: SparkSession) -> None:
    """Register the sources `durable_streams` and `stp` with a session of your own.

    With Spark Connect the server runs them, and needs the package too.
    """
    try:
        from penstock.spark.source.datasource import DurableStreamsSource
        from penstock.spark.stp.datasource import StpSource
    except ModuleNotFoundError as error:
        raise missing_package(error) from error

    # Without this setting Spark refuses readers that accept filters. Definitions of a declarative
    # pipeline may not set it.
    if spark.conf.get(_PUSHDOWN, "false") != "true":
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(DurableStreamsSource)
    spark.dataSource.register(StpSource)
    if is_connect(spark) and spark not in _CHECKED:
        _check_server(spark)
        _CHECKED.add(spark)


def _check_server(spark: SparkSession) -> None:
    """Raise InvalidOption if the Spark Connect server cannot create a source.

    Later the same error would come inside pages of a Java stack trace.
    """
    reader = spark.read.format("durable_streams").options(url="http://127.0.0.1", streams="any")
    try:
        reader.load().schema  # noqa: B018 - the server asks the source, which sends no request
    except Exception as error:
        raise InvalidOption(f"Spark Connect: {error_message(error)}") from error


_CHECKED: Final[WeakSet[Any]] = WeakSet()  # sessions of Spark Connect that can create the sources

_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


def _defaults(memory: str, java_options: Sequence[str]) -> dict[str, str]:
    options = (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *java_options)
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _PUSHDOWN: "true",
    }
