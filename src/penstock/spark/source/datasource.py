"""`format("durable_streams")`: streams as DataFrames, in batches or live.

spark.readStream.format("durable_streams").option("url", "http://127.0.0.1:4437")
     .option("streams", "shop/**").load()

docs/spark.md lists the options. Implements Spark's interfaces; planning and reading are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidOption, StreamNotFound
from penstock.spark.columns import RAW, STATE
from penstock.spark.offsets import Kind, SourceOffsets, from_spark
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.server import Server, Tail
from penstock.spark.source.driver import NO_LIMITS, Driver, Limits, lag
from penstock.spark.source.filters import Filters
from penstock.spark.source.planning import Range, partitions_of
from penstock.spark.source.reader import RangeReader


class Ranges(InputPartition):
    """The ranges of one task, and the kind of server, which only the driver asks for."""

    def __init__(self, kind: Kind, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.kind = kind


class DurableStreamsSource(DataSource):
    """The data source that `penstock.spark.register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        return "durable_streams"

    def schema(self) -> StructType:
        return RAW if source_options(self.options).mode == "raw" else STATE

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(source_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        options = source_options(self.options)
        if options.ending != "latest":
            raise InvalidOption(
                "Option endingOffsets is for batch reads: a streaming query has no end."
            )
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.datasource import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.spark.sink.datasource import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


def server_of(options: SourceOptions) -> Server:
    return Server(options.url, options.token, options.attempts_max)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters = Filters(options.types)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        yield from self._filters.push(filters)

    def partitions(self) -> list[InputPartition]:
        server = server_of(self._options)
        driver = Driver(server, self._options)
        tails = driver.tails()
        missing = driver.missing(tails)
        if missing:
            raise StreamNotFound(
                f"There is no stream {missing[0]} on {self._options.url}. Create it, or check the "
                "option streams."
            )
        selected = {name: tail for name, tail in tails.items() if self._filters.may_match(name)}
        start = driver.starting(tails).select(self._filters.may_match)
        end = driver.ending(start, driver.advance(start, selected, NO_LIMITS), selected)
        partitions: list[InputPartition] = []
        for planned in partitions_of(server, start, end, self._options):
            ranges = [each for each in planned if self._may_match(driver.kind, each)]
            if ranges:
                partitions.append(Ranges(driver.kind, ranges))
        return partitions

    def _may_match(self, kind: Kind, each: Range) -> bool:
        if kind == "other" or each.reset is not None:
            return True
        return self._filters.may_match_bytes(each.start.byte, each.end.byte)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._filters, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._server = server_of(options)
        self._driver = Driver(self._server, options)
        self._target: dict[str, Tail] | None = None
        self._tails: dict[str, Tail] = {}
        self._end: SourceOffsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._driver.starting(self._driver.tails()).to_spark()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._driver.tails()

    # The name is Spark's.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._tails = self._driver.tails() if self._target is None else self._target
        self._end = self._driver.advance(from_spark(start), self._tails, self._limits(limit))
        return self._end.to_spark()

    def _limits(self, limit: ReadLimit) -> Limits:
        """Spark passes one limit; the other option still applies."""
        match limit:
            case ReadMaxRows(max_rows=most):
                return Limits(most, self._options.bytes_max)
            case ReadMaxBytes(max_bytes=most):
                return Limits(self._options.messages_max, most)
            case _:
                return NO_LIMITS

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The tails and the lag of the streams, for the progress of the query."""
        if self._end is None:
            return None
        positions = {name: tail.position for name, tail in self._tails.items()}
        tails = SourceOffsets(self._driver.kind, positions)
        report = {**tails.to_spark(), "lag": lag(self._end, self._tails)}
        if self._driver.unselected:
            report["unselected"] = self._driver.unselected
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = from_spark(end)
        planned = partitions_of(self._server, from_spark(start), until, self._options)
        return [Ranges(until.kind, ranges) for ranges in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, Filters(self._options.types), partition)


def _read(
    options: SourceOptions, filters: Filters, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Ranges):
        return iter(())  # Spark's own partition of a plan without any
    return RangeReader(server_of(options), partition.kind, options, filters).read(partition.value)
