"""What the Spark source is measured against: sources that have their batches ready, make a row at a
time, or read nothing at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import LongType, StructField, StructType

from penstock import Client
from penstock.spark.arrow_columns import RAW_ARROW, STATE_ARROW
from penstock.spark.columns import RAW, STATE
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.source.readers import BatchReader, Ranges
from penstock.state import ChangeEvent, insert, parse

STREAM = "bench"
KEYS = 100_000
PARTITIONS = 4


class Prebuilt(DataSource):
    """As many rows as the stream has, of the same columns and sizes, without reading anything."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return RAW if self.options["mode"] == "raw" else STATE

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PrebuiltReader(self.options["mode"], int(self.options["events"]))


class _PrebuiltReader(DataSourceReader):
    def __init__(self, mode: str, events: int) -> None:
        self._mode, self._events = mode, events

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._events // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _prebuilt(self._mode)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


@functools.cache
def _prebuilt(mode: str, count: int = 40_000) -> pa.RecordBatch:
    """What the source makes of one answer."""
    offset = "0000000000000001_0000000000000000"
    event = event_of(12345)
    numbers = list(range(count))
    columns: list[list[Any]] = [[STREAM] * count, [1] * count, numbers, numbers, [offset] * count]
    schema = RAW_ARROW if mode == "raw" else STATE_ARROW
    if mode == "raw":
        columns.append([event.to_json()] * count)
    else:
        value = (event.raw_value or b"").decode()
        texts = ["change", event.type, event.key, event.operation, value, None, None]
        columns += [[text] * count for text in (*texts, event.timestamp, None, None, None)]
    arrays = [pa.array(each, schema.field(index).type) for index, each in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class RowByRow(DataSource):
    """The same source, but with a tuple for each message."""

    @classmethod
    def name(cls) -> str:
        return "row_by_row"

    def schema(self) -> StructType:
        return RAW if self.options.get("mode") == "raw" else STATE

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowReader(source_options(dict(self.options)))


class _RowReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return BatchReader(self._options).partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Ranges)
        with Client(self._options.url) as client:
            for each in partition.value:
                stream = client.stream(each.stream)
                seq, position = each.start.seq, each.start.byte
                batches = stream.iter_batches(
                    each.start.offset, until=each.end.offset, decode=False
                )
                for batch in batches:
                    for message in batch.data[1:-1].split(b",\n"):
                        end = position + len(message) + 2
                        offset = f"{each.end.offset[:16]}_{end:016d}"
                        where = (each.stream, 1, position, seq, offset)
                        yield (*where, *self._rest(message))
                        seq, position = seq + 1, end

    def _rest(self, message: bytes) -> tuple[Any, ...]:
        if self._options.mode == "raw":
            return (message,)
        event = parse(message, strict_timestamp=False)
        assert isinstance(event, ChangeEvent)
        value = event.raw_value
        return (
            "change",
            event.type,
            event.key,
            event.operation,
            None if value is None else value.decode(),
            None,
            event.txid,
            event.timestamp,
            None,
            None,
            None,
        )


class Nothing(DataSource):
    """A streaming source with one row a batch, made up: the floor of a micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return _NothingReader()


class _NothingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"n": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": pa.array([partition.value], pa.int64())})


def event_of(number: int) -> ChangeEvent:
    key = number % KEYS
    return insert(
        "user",
        f"user:{key}",
        {"id": key, "name": f"name {number}", "city": "Oslo", "active": True},
        timestamp="2025-01-15T10:30:00Z",
    )
