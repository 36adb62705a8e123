"""The relations of a warehouse in Spark: temporary views over the files that delta-rs lists, so
that no jar is needed. Spark reads local files, `remote_files` those of an object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock import limits
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.events import EVENTS
from penstock.spark.warehouse.relations import Relations, with_columns
from penstock.spark.warehouse.remote_files import RemoteFiles, RowFilter
from penstock.spark.warehouse.sql import KEY
from penstock.spark.warehouse.storage import is_remote
from penstock.spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkViews(Relations):
    """The relations of a warehouse in one Spark session."""

    def __init__(
        self,
        session: SparkSession,
        warehouse: Warehouse,
        types: Mapping[str, TypeSchema],
        *,
        replaces: bool = False,
    ) -> None:
        super().__init__(warehouse, types, replaces=replaces)
        self.session = session
        self._registered = 0

    def sql(self, query: str) -> DataFrame:
        """The result of a user's query."""
        self.prepare(query)
        return self.session.sql(query)

    def files(self, files: Sequence[TableFile], schema: pa.Schema) -> str:
        columns = from_arrow_schema(schema)
        if not files:
            return self._named(self.session.createDataFrame([], columns))
        if is_remote(self._warehouse.path):
            return self._named(self._remote.frame(files, columns))
        rows = self.session.read.schema(columns).parquet(*(each.path for each in files))
        if sum(each.rows for each in files) <= limits.PIPELINE_TASK_ROWS:
            # Rows in one partition are grouped and joined without a shuffle, which halves the time.
            rows = rows.coalesce(1)
        return self._named(rows)

    @cached_property
    def _remote(self) -> RemoteFiles:
        return RemoteFiles(self.session, self._warehouse.options)

    def events(self, *, after: int = 0, column: str | None = None) -> str:
        files = self._warehouse.events.files(after=after, column=column)
        if not files or not is_remote(self._warehouse.path):
            return self.files(files, EVENTS)
        # Rows that our queries would filter out are not fetched from the store.
        columns = from_arrow_schema(EVENTS)
        return self._named(self._remote.frame(files, columns, RowFilter(after, column)))

    def typed(self, query: str, schema: TypeSchema | None) -> str:
        if schema is None:
            return f"({query})"
        rows = self.session.sql(query)
        own, added = rows.schema.fields, from_arrow_schema(pa.schema(schema.nullable)).fields
        columns = StructType([*own[: len(KEY)], *added, *own[len(KEY) :]])
        return self._named(rows.mapInArrow(_column_adder(schema), columns))

    def shuffled(self, query: str, parts: int) -> str:
        """The rows of a query in so many partitions, by key."""
        return self._named(self.session.sql(query).repartition(parts, *KEY))

    def define(self, name: str, query: str) -> None:
        self.session.sql(query).createOrReplaceTempView(name)

    def drop(self, name: str) -> None:
        """Do nothing: the next view of that name replaces it, and dropping it takes time."""

    def refresh(self) -> None:
        super().refresh()
        self._registered = 0

    def _named(self, rows: DataFrame) -> str:
        self._registered += 1
        name = f"penstock_rows_{self._registered}"
        rows.createOrReplaceTempView(name)
        return name


def _column_adder(
    schema: TypeSchema,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from with_columns(batch, schema).to_batches()

    return add
