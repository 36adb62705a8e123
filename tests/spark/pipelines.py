"""Pipelines for tests: made from a few settings, run to the end of their streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Client
from penstock.spark.config import Pipeline, make_pipeline
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import upsert
from tests.spark.checking import CITIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[..., Pipeline]
SCHEMA = "name STRING NOT NULL, city STRING"


def user(key: str, city: Any, name: Any = "n") -> bytes:
    return upsert("user", key, {"name": name, "city": city}).to_json()


def maker(url: str, folder: Path, home: str) -> Make:
    """Makes pipelines over the streams below `home`; settings given are put over the usual."""

    def made(**changes: Any) -> Pipeline:
        given: dict[str, Any] = {
            "source": {"url": url, "streams": [f"{home}/**"], "max_messages": 25},
            "warehouse": {"path": str(folder / "warehouse")},
            "types": {"user": {"schema": SCHEMA}},
            "publish": {"cities": {"sql": CITIES, "to": f"derived-{home}/cities", "chunk": 2}},
        }
        for name, value in changes.items():
            given[name] = {**given.get(name, {}), **value} if value is not None else {}
        return make_pipeline(given)

    return made


def append(client: Client, stream: str, *messages: bytes) -> None:
    found = client.stream(stream)
    found.ensure()
    found.append_many([json.loads(message) for message in messages])


def run(pipeline: Pipeline, spark: SparkSession, **options: Any) -> PipelineRun:
    found = PipelineRun(pipeline, spark)
    found.run(once=True, **options)
    return found


def ask(pipeline: Pipeline, query: str) -> list[dict[str, Any]]:
    """The answer of DuckDB to a query over a pipeline's tables."""
    replaces = pipeline.run.snapshots == "replace"
    duck = Duck(
        Warehouse(pipeline.warehouse.path, pipeline.warehouse.options),
        pipeline.types,
        replaces=replaces,
    )
    try:
        found: list[dict[str, Any]] = duck.sql(query).to_pylist()
        return found
    finally:
        duck.close()
