"""`format("stp")`: the rows of STP tables at any State URL, in batches or live.

spark.read.format("stp").option("tables", "http://127.0.0.1:4437/v1/table/endpoints").load()

Works with any server of the protocol. The protocol has no request for a range of rows, so one task
reads one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.columns import STP
from penstock.spark.error_text import data_lost
from penstock.spark.stp.rows import StpOptions, TableReader, stp_options


class TableRange(InputPartition):
    """Rows of one table with `after` < SeqNo <= `until`; with `reset`, after a reset row."""

    def __init__(self, table: str, after: int, until: int, *, reset: bool = False) -> None:
        super().__init__((table, after, until, reset))
        self.table, self.after, self.until, self.reset = table, after, until, reset


class StpSource(DataSource):
    """The data source `stp` that `penstock.spark.register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        return "stp"

    def schema(self) -> StructType:
        return STP

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(stp_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return _StreamReader(stp_options(self.options))


class _BatchReader(DataSourceReader):
    def __init__(self, options: StpOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        start, end = _starting(self._options), _last_seqnos(self._options)
        return [
            TableRange(table, after, end[table])
            for table, after in start.items()
            if end[table] > after
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: StpOptions) -> None:
        self._options = options
        self._target: dict[str, int] | None = None
        self._last: dict[str, int] = {}
        self._end: dict[str, int] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _starting(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.rows_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = _last_seqnos(self._options)

    # The name is Spark's.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._last = _last_seqnos(self._options) if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._end = {}
        for table in sorted(self._options.tables):
            after, until = int(start.get(table, 0)), self._last.get(table, 0)
            if until < after:
                self._check_loss(table, after, until)
                after = 0
            # SeqNos may have gaps, so that these may be fewer rows than the limit, never more.
            share = None if most is None else max(1, most // len(self._options.tables))
            self._end[table] = until if share is None else min(until, after + share)
        return self._end

    def _check_loss(self, table: str, after: int, until: int) -> None:
        """SeqNos only grow, so that a table which ends earlier than before is another one."""
        if self._options.fail_on_data_loss:
            reason = f"It ends at SeqNo {until}, and was read up to {after}: it was recreated."
            raise data_lost(table, reason)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        lag = {table: last - self._end[table] for table, last in self._last.items()}
        return {"tables": self._last, "lag": {table: rows for table, rows in lag.items() if rows}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        partitions: list[InputPartition] = []
        for table, until in sorted(end.items()):
            after = int(start.get(table, 0))
            if int(until) < after:
                partitions.append(TableRange(table, 0, int(until), reset=True))
            elif int(until) > after:
                partitions.append(TableRange(table, after, int(until)))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


def _starting(options: StpOptions) -> dict[str, int]:
    """The SeqNo after which each table is read."""
    if isinstance(options.starting, dict):
        return {table: options.starting.get(table, 0) for table in sorted(options.tables)}
    if options.starting == "earliest":
        return dict.fromkeys(sorted(options.tables), 0)
    return _last_seqnos(options)


def _last_seqnos(options: StpOptions) -> dict[str, int]:
    """The SeqNo of the last row of each table."""
    return {table: TableReader(table, options).last_seqno() for table in sorted(options.tables)}


def _read(options: StpOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TableRange):
        return iter(())  # Spark's own partition of a plan without any
    reader = TableReader(partition.table, options)
    return reader.read(partition.after, partition.until, reset=partition.reset)
