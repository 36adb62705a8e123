"""The tables of a pipeline as DataFrames: its relations, and state and history as of any batch or
offset, by the SQL that `penstock pipeline sql` and `show` run. Writes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import QueryFailed
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.declared import with_noted
from penstock.spark.warehouse.spark_sql import SparkViews
from penstock.spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def pipeline_tables(spark: SparkSession, pipeline: Pipeline | Path | str) -> PipelineTables:
    """The tables of a pipeline, which is loaded if it is the path of a file."""
    if not isinstance(pipeline, Pipeline):
        pipeline = load_pipeline(Path(pipeline))
    return PipelineTables(spark, with_noted(pipeline))


class PipelineTables:
    """The tables as of one moment: later commits are seen after `refresh`."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
        warehouse.need()
        replaces = pipeline.run.snapshots == "replace"
        self._views = SparkViews(spark, warehouse, pipeline.types, replaces=replaces)
        self._spark = spark

    def refresh(self) -> None:
        self._views.refresh()

    def sql(self, query: str) -> DataFrame:
        """The result of a query that may name events, dead_letters, state_TYPE and so on."""
        return self._views.sql(query)

    def state(
        self,
        entity: str,
        *,
        batch: int | None = None,
        stream: str | None = None,
        at: str = "",
        time: str | None = None,
    ) -> DataFrame:
        """The state of a type: now, after a batch, of one stream at an offset of it, or as the
        tables were at a time."""
        self._check(entity)
        until = _until(batch, stream, at, time)
        if until == sql.NOW:
            return self._spark.sql(self._views.state(entity))
        return self._spark.sql(sql.everything(self._views.state_at(entity, until)))

    def history(
        self,
        entity: str,
        *,
        batch: int | None = None,
        stream: str | None = None,
        at: str = "",
        time: str | None = None,
    ) -> DataFrame:
        """Every value of the entities of a type: now, after a batch, at an offset of one stream,
        or as the tables were at a time."""
        self._check(entity)
        query = self._views.history(entity, _until(batch, stream, at, time))
        return self._spark.sql(sql.everything(query))

    def _check(self, entity: str) -> None:
        types = self._views.entities()
        if entity not in types:
            raise QueryFailed(f"There is no type {entity!r}; there are: {', '.join(types)}.")


def _until(batch: int | None, stream: str | None, at: str, time: str | None) -> sql.Until:
    if (stream is None) != (not at):
        raise QueryFailed(
            "`at` needs `stream`, and `stream` needs `at`: an offset belongs to one stream."
        )
    until = sql.NOW if stream is None else sql.until_offset(stream, at)
    return until._replace(batch=batch, ingested=None if time is None else sql.parse_time(time))
