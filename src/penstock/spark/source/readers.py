"""The readers of `format("durable_streams")`, as Spark calls them. Planning and reading are
elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
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

from penstock.errors import StreamNotFound
from penstock.spark.offsets import Kind, SourceOffsets, from_spark
from penstock.spark.options import SourceOptions
from penstock.spark.server import Server, Tail
from penstock.spark.source.driver import NO_LIMITS, Driver, Limits, lag, lag_bytes, pending
from penstock.spark.source.filters import Filters
from penstock.spark.source.planning import Range, partitions_of

if TYPE_CHECKING:
    import pyarrow as pa

Columns = tuple[str, ...] | None


class Ranges(InputPartition):
    """The ranges of one task, and the kind of server, which only the driver asks for."""

    def __init__(self, kind: Kind, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.kind = kind


def server_of(options: SourceOptions) -> Server:
    return Server(
        options.url,
        options.token,
        options.attempts_max,
        retry_interval_s=options.retry_interval_s,
        timeout_s=options.timeout_s,
    )


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, columns: Columns = None) -> None:
        self._options = options
        self._columns = columns
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
        return _read(self._options, self._filters, partition, self._columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, columns: Columns = None) -> None:
        self._options = options
        self._columns = columns
        self._advanced_s = time.monotonic()  # when the last batch was planned
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
        before = from_spark(start)
        if self._waits_for_more(before):
            self._end = before
            return start
        self._end = self._driver.advance(before, self._tails, self._limits(limit))
        if self._end != before:
            self._advanced_s = time.monotonic()
        return self._end.to_spark()

    def _waits_for_more(self, start: SourceOffsets) -> bool:
        """Whether there is less than a batch should have at least, and time to wait for it."""
        least = self._options.messages_min
        if least is None or self._target is not None or pending(start, self._tails) >= least:
            return False
        return time.monotonic() - self._advanced_s < self._options.delay_max_s

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
        if self._driver.kind == "penstock":
            report["lagBytes"] = lag_bytes(self._end, self._tails)
        if self._driver.unselected:
            report["unselected"] = self._driver.unselected
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until = from_spark(end)
        planned = partitions_of(self._server, from_spark(start), until, self._options)
        return [Ranges(until.kind, ranges) for ranges in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, Filters(self._options.types), partition, self._columns)


def _read(
    options: SourceOptions, filters: Filters, partition: InputPartition, columns: Columns
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Ranges):
        return  # Spark's own partition of a plan without any
    # Only tasks need Arrow's functions and pandas, which take a while to load.
    from penstock.spark.source.reader import RangeReader

    reader = RangeReader(server_of(options), partition.kind, options, filters)
    for batch in reader.read(partition.value):
        yield batch if columns is None else batch.select(columns)
