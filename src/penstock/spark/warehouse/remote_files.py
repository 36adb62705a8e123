"""Files of a warehouse in an object store as a DataFrame: tasks read them by Arrow with the options
of the warehouse, so that Spark needs no jar for the store.

The options appear neither in plans nor in Spark's UI: they are sent with the code of the reader.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.warehouse.storage import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.warehouse.delta import TableFile

_TASK_ROWS: Final = 128 * 1024  # small files share a task
_BATCH_ROWS: Final = 16 * 1024
_READAHEAD: Final = 2  # batches and files; more would take too much memory of a task


class RemoteFiles:
    """Reads files of one object store in one session."""

    def __init__(self, session: SparkSession, options: Mapping[str, str]) -> None:
        self._session = session
        self._name = f"penstock_files_{uuid.uuid4().hex[:12]}"
        session.dataSource.register(_source(self._name, dict(options)))

    def frame(
        self, files: Sequence[TableFile], columns: StructType, rows: RowFilter | None = None
    ) -> DataFrame:
        """The rows of files, or those that a filter selects."""
        reader = self._session.read.format(self._name).schema(columns)
        plan = msgspec.json.encode(Plan(shared_out(files), rows)).decode()
        return reader.option("plan", plan).load()


class RowFilter(msgspec.Struct, frozen=True):
    """Selects rows of batches after `after`; with `column` only those with a value in it."""

    after: int
    column: str | None

    @property
    def filter(self) -> Any:
        from pyarrow import dataset

        later = dataset.field("batch") > self.after
        return later if self.column is None else later & dataset.field(self.column).is_valid()


class Plan(msgspec.Struct, frozen=True):
    """The files that each task reads, and the filter of their rows."""

    tasks: list[list[str]]
    rows: RowFilter | None


def shared_out(files: Sequence[TableFile]) -> list[list[str]]:
    """The files of each task: small files share a task."""
    tasks: list[list[str]] = []
    rows = _TASK_ROWS
    for file in files:
        if rows + file.rows > _TASK_ROWS:
            tasks.append([])
            rows = 0
        tasks[-1].append(file.path)
        rows += file.rows
    return tasks


class FilesReader(DataSourceReader):
    """One task for each group of files."""

    def __init__(self, plan: Plan, columns: StructType, options: dict[str, str]) -> None:
        self._plan = plan
        self._columns = columns
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        paths = [filesystem(path, self._options) for path in partition.value]
        rows = dataset.dataset(
            [path for _, path in paths],
            schema=to_arrow_schema(self._columns, timezone="UTC"),
            filesystem=paths[0][0],
            format="parquet",
        )
        selected = self._plan.rows
        yield from rows.to_batches(
            filter=None if selected is None else selected.filter,
            batch_size=_BATCH_ROWS,
            batch_readahead=_READAHEAD,
            fragment_readahead=_READAHEAD,
        )


def _source(name: str, options: dict[str, str]) -> type[DataSource]:
    """A data source class with the options in it: Spark sends the class to tasks by value."""

    class Files(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def reader(self, schema: StructType) -> DataSourceReader:
            plan = msgspec.json.decode(self.options["plan"], type=Plan)
            return FilesReader(plan, schema, options)

    return Files
