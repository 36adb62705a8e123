"""Batches that are read where they are written: small ones by the driver, others by tasks that
write what they read. Rows that came from Spark's scan would go to Java and back first.

Both run the reader of the scan with the ranges that Spark would plan. These follow from the two
offsets in Spark's checkpoint, so that a batch that is repeated, here or in a scan, has the same
rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import limits
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.options import EARLIEST, SourceOptions
from penstock.spark.source.planning import ranges_between
from penstock.spark.source.readers import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

Write = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class DirectBatches:
    """Reads batches of a query between two offsets of its checkpoint."""

    def __init__(self, options: SourceOptions, *, messages_max: int) -> None:
        self._options = options
        self._reader = StreamReader(options)
        self._messages_max = messages_max

    def first_start(self) -> dict[str, Any] | None:
        """Where the first batch begins, which no checkpoint has; None if only Spark knows."""
        starting = self._options.starting
        if isinstance(starting, SourceOffsets):
            return starting.to_spark()
        return self._reader.initialOffset() if starting == EARLIEST else None

    def is_small(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
        """Whether the driver should read the batch between two offsets."""
        if self._messages_max == 0:
            return False
        messages, size = _extent(from_spark(start), from_spark(end))
        return messages <= self._messages_max and size <= limits.PIPELINE_SMALL_BYTES

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        for partition in self._reader.partitions(start, end):
            yield from self._reader.read(partition)

    def in_tasks(
        self, spark: SparkSession, start: dict[str, Any], end: dict[str, Any], write: Write
    ) -> list[dict[str, Any]]:
        """The rows that `write` returns of each task."""
        partitions = self._reader.partitions(start, end)
        if not partitions:
            return []
        reader = self._reader

        def work(assigned: Iterable[InputPartition]) -> Iterator[dict[str, Any]]:
            for partition in assigned:
                for summary in write(reader.read(partition)):
                    yield from summary.to_pylist()

        tasks = spark.sparkContext.parallelize(partitions, len(partitions))
        return tasks.mapPartitions(work).collect()


def _extent(start: SourceOffsets, end: SourceOffsets) -> tuple[int, int]:
    """The number of messages and bytes between two offsets."""
    ranges = ranges_between(start, end)
    # The range of a recreated stream starts at its beginning.
    messages = sum(each.end.seq - each.start.seq for each in ranges)
    return messages, sum(each.size for each in ranges)
