"""The tables of a warehouse in a catalog: SQL that registers them under names by which other people
find them, for Spark with Delta's jar and whatever catalog that session has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidPipeline
from penstock.spark.config import Pipeline
from penstock.spark.error_text import error_message
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.sql import literal
from penstock.spark.warehouse.storage import parse_location
from penstock.spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HIVE: Final = "hive"
SPARK: Final = "spark"
_SESSION_CATALOG: Final = "spark_catalog"
# Spark's package has no file system for s3://, only Hadoop's for s3a://.
_HADOOP_SCHEMES: Final = {"s3": "s3a"}


def session_settings(catalog: str | None) -> dict[str, str]:
    """The settings that a session needs for a catalog."""
    return {"spark.sql.catalogImplementation": "hive"} if catalog == HIVE else {}


def statements(pipeline: Pipeline, warehouse: Warehouse) -> dict[str, str]:
    """A statement for each object to register, by its name in the catalog."""
    catalog = pipeline.warehouse.catalog or SPARK
    prefix = _SESSION_CATALOG if catalog in (HIVE, SPARK) else catalog
    database = f"{_quoted(prefix)}.{_quoted(pipeline.warehouse.database)}"
    found = {"": f"CREATE SCHEMA IF NOT EXISTS {database}"}
    found["events"] = _table(f"{database}.events", warehouse.events.uri)
    names = warehouse.events.record.named(pipeline.types)
    for entity in warehouse.types():
        uri, name = warehouse.state_uri(entity), names.get(entity)
        if name is None or not Table(uri, None, warehouse.options).exists:
            continue
        state = f"{database}.{_quoted(f'state_{name}')}"
        found[f"state_{name}"] = _table(state, uri)
        found[f"current_{name}"] = (
            f"CREATE OR REPLACE VIEW {database}.{_quoted(f'current_{name}')} AS "
            f"SELECT s.* FROM {state} s WHERE s._operation <> 'delete'"
        )
    return found


def _table(name: str, uri: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {literal(_location(uri))}"


def _location(uri: str) -> str:
    scheme = parse_location(uri).scheme
    hadoop = None if scheme is None else _HADOOP_SCHEMES.get(scheme)
    return uri if hadoop is None else uri.replace(f"{scheme}://", f"{hadoop}://", 1)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Registration:
    """Registers tables in the catalog of a session, each once."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, warehouse: Warehouse) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._warehouse = warehouse
        self.names: list[str] = []
        self._types = -1

    def update(self) -> None:
        """Register tables that are new; costs nothing while there are none."""
        types = len(self._warehouse.events.record.types)
        if self._pipeline.warehouse.catalog is None or types == self._types:
            return
        for name, statement in statements(self._pipeline, self._warehouse).items():
            if name not in self.names:
                try:
                    self._spark.sql(statement)
                except Exception as error:
                    raise InvalidPipeline(
                        f"{name or self._pipeline.warehouse.database} cannot be registered in the "
                        f"catalog {self._pipeline.warehouse.catalog!r}: {error_message(error)} "
                        "Does [pipeline.spark] have Delta's jar and its settings, and the catalog?"
                    ) from error
                self.names.append(name)
        self._types = types
