"""Batches that are too small to be worth a Spark job: the driver reads them itself.

It runs the reader of the tasks with the ranges that Spark would plan. These follow from the two
offsets in Spark's checkpoint, so that a batch that is repeated, here or in tasks, has the same rows
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from penstock import limits
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.options import SourceOptions
from penstock.spark.source.datasource import StreamReader
from penstock.spark.source.planning import ranges_between


class SmallBatches:
    """Reads batches of a query between two offsets of its checkpoint."""

    def __init__(self, options: SourceOptions, *, messages_max: int) -> None:
        self._reader = StreamReader(options)
        self._messages_max = messages_max

    def is_small(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
        """Whether the driver should read the batch between two offsets."""
        if self._messages_max == 0:
            return False
        messages, size = _extent(from_spark(start), from_spark(end))
        return messages <= self._messages_max and size <= limits.PIPELINE_SMALL_BYTES

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        for partition in self._reader.partitions(start, end):
            yield from self._reader.read(partition)


def _extent(start: SourceOffsets, end: SourceOffsets) -> tuple[int, int]:
    """The number of messages and bytes between two offsets."""
    ranges = ranges_between(start, end)
    # The range of a recreated stream starts at its beginning.
    messages = sum(each.end.seq - each.start.seq for each in ranges)
    return messages, sum(each.size for each in ranges)
