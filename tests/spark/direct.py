"""The source's readers driven as Spark drives them, without Spark: offsets go through JSON,
partitions and readers through pickle.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from penstock.spark.source.datasource import DurableStreamsSource
from penstock.spark.source.readers import BatchReader, StreamReader

Row = dict[str, Any]


def source(url: str, streams: str, **options: Any) -> DurableStreamsSource:
    values = {"url": url, "streams": streams, "maxAttempts": "3", **options}
    return DurableStreamsSource({name: str(value) for name, value in values.items()})


def plan(
    url: str, streams: str, filters: Iterable[Filter] = (), **options: Any
) -> tuple[BatchReader, list[InputPartition], list[Filter]]:
    planned = source(url, streams, **options)
    reader = planned.reader(planned.schema())
    assert isinstance(reader, BatchReader)
    refused = list(reader.pushFilters(list(filters)))
    return reader, reader.partitions(), refused


def run(reader: Any, partitions: Iterable[InputPartition]) -> list[Row]:
    rows: list[Row] = []
    for partition in partitions:
        task, part = pickle.loads(pickle.dumps((reader, partition)))
        for batch in task.read(part):
            rows += batch.to_pylist()
    return rows


def read(url: str, streams: str, filters: Iterable[Filter] = (), **options: Any) -> list[Row]:
    """All rows of a batch read."""
    reader, partitions, _ = plan(url, streams, filters, **options)
    return run(reader, partitions)


class Query:
    """A streaming query: its offset survives, its reader does not."""

    def __init__(self, url: str, streams: str, **options: Any) -> None:
        self._arguments = (url, streams, options)
        self.restart()
        self.offset = self._through_json(self.reader.initialOffset())
        self.batches: list[tuple[Any, Any]] = []

    def restart(self) -> None:
        url, streams, options = self._arguments
        stream = source(url, streams, **options)
        reader = stream.streamReader(stream.schema())
        assert isinstance(reader, StreamReader)
        self.reader = reader

    def change(self, streams: str, **options: Any) -> None:
        """Go on with other settings from the same checkpoint."""
        url, _, before = self._arguments
        self._arguments = (url, streams, {**before, **options})
        self.restart()

    def step(self, limit: ReadLimit | None = None) -> list[Row]:
        """The rows of the next batch; none if there is nothing new."""
        limit = limit or self.reader.getDefaultReadLimit()
        end = self._through_json(self.reader.latestOffset(self.offset, limit))
        if end == self.offset:
            return []
        start, self.offset = self.offset, end
        self.batches.append((start, end))
        return self.rows(start, end)

    def rows(self, start: Any, end: Any) -> list[Row]:
        return run(self.reader, self.reader.partitions(start, end))

    def drain(self) -> list[list[Row]]:
        batches = []
        while rows := self.step():
            batches.append(rows)
        return batches

    def everything(self) -> list[Row]:
        return self.step(ReadAllAvailable())

    def _through_json(self, offset: dict[str, Any]) -> Any:
        return json.loads(json.dumps(offset))
