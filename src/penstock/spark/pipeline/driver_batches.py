"""Batches that are too small for a job of Spark's: the driver reads them itself.

It calls the reader that tasks call, with the ranges that Spark would plan for them, and those
follow from the two places in Spark's own checkpoint: a batch that is run again, here or in tasks,
has the same rows in the same order. Spark is not asked for anything.
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
    """Reads what a query would, between two places of its checkpoint."""

    def __init__(self, options: SourceOptions, *, messages_max: int) -> None:
        self._reader = StreamReader(options)
        self._messages_max = messages_max

    def are(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
        """Whether what is between the two is for the driver."""
        if self._messages_max == 0:
            return False
        messages, size = _extent(from_spark(start), from_spark(end))
        return messages <= self._messages_max and size <= limits.PIPELINE_SMALL_BYTES

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        for partition in self._reader.partitions(start, end):
            yield from self._reader.read(partition)


def _extent(start: SourceOffsets, end: SourceOffsets) -> tuple[int, int]:
    """How many messages and bytes there are between two places."""
    ranges = ranges_between(start, end)
    # A stream that was made anew counts from its beginning: so do these ranges.
    messages = sum(each.end.seq - each.start.seq for each in ranges)
    return messages, sum(each.size for each in ranges)
