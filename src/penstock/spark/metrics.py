"""Lag, rate and bytes of each stream of each streaming query, from the progress that Spark reports:
for Prometheus, as a value for consoles, and for programs.

Spark 4.2 asks sources in Python for offsets alone, not for metrics of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import InvalidOption
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.stream_progress import (
    STREAM_COUNTERS,
    STREAM_GAUGES,
    StreamProgress,
    document,
    furthest_behind,
    lags_in,
    progress_after,
    read_between,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a query after its last batch; streams by name."""

    query: str
    batch: int
    time: str
    seconds: float
    streams: dict[str, StreamProgress]


class SourceMetrics(StreamingQueryListener):
    """A listener that knows the progress of every query over `durable_streams`.

    Spark calls it in a thread of its own; any thread may read it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryProgress] = {}

    def snapshot(self) -> list[QueryProgress]:
        """The progress of each active query, by name. `msgspec.json.encode` makes it JSON."""
        with self._lock:
            return sorted(self._queries.values(), key=lambda each: each.query)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.add(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        with self._lock:
            self._queries.pop(str(event.runId), None)

    def add(self, progress: StreamingQueryProgress) -> None:
        """Take in the progress of one batch."""
        run, seconds = str(progress.runId), max(progress.batchDuration, 1) / 1000
        with self._lock:
            before = self._queries[run].streams if run in self._queries else {}
            streams = dict(before)
            for source in progress.sources:
                streams.update(_streams(source, before, seconds))
            if streams:
                self._queries[run] = QueryProgress(
                    query=progress.name or str(progress.id),
                    batch=progress.batchId,
                    time=progress.timestamp,
                    seconds=seconds,
                    streams=furthest_behind(streams),
                )


def _streams(
    source: Any, before: Mapping[str, StreamProgress], seconds: float
) -> dict[str, StreamProgress]:
    """The streams of a source, after a batch; none of a source that is not ours."""
    start, end = _offsets(source.startOffset), _offsets(source.endOffset)
    if end is None:
        return {}
    lags, read = lags_in(source.latestOffset), read_between(start, end)
    return progress_after(before, end.streams, read, lags, seconds)


def _offsets(text: Any) -> SourceOffsets | None:
    offsets = document(text)
    if "server" not in offsets or not isinstance(offsets.get("streams"), dict):
        return None
    try:
        return from_spark(offsets)
    except (InvalidOption, ValueError, KeyError, AttributeError):
        return None


class SourceCollector(Collector):
    """The metrics of streaming queries for Prometheus."""

    def __init__(self, metrics: SourceMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        labels = ["query", "stream"]
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: CounterMetricFamily(f"penstock_spark_{name}", text, labels=labels)
            for name, text in STREAM_COUNTERS.items()
        }
        families |= {
            name: GaugeMetricFamily(f"penstock_spark_{name}", text, labels=labels)
            for name, text in STREAM_GAUGES.items()
        }
        seconds = GaugeMetricFamily(
            "penstock_spark_batch_seconds", "How long the last batch took.", labels=["query"]
        )
        time = GaugeMetricFamily(
            "penstock_spark_batch_timestamp_seconds",
            "When the last batch began.",
            labels=["query"],
        )
        for query in self._metrics.snapshot():
            seconds.add_metric([query.query], query.seconds)
            time.add_metric([query.query], datetime.fromisoformat(query.time).timestamp())
            for stream, progress in query.streams.items():
                for name, family in families.items():
                    family.add_metric([query.query, stream], getattr(progress, name))
        yield from families.values()
        yield seconds
        yield time


def source_metrics(spark: SparkSession, registry: CollectorRegistry | None = None) -> SourceMetrics:
    """Add a listener to a session, and its metrics to a registry of prometheus_client.

    metrics = penstock.spark.source_metrics(spark, prometheus_client.REGISTRY)
    prometheus_client.start_http_server(9100)
    """
    metrics = SourceMetrics()
    spark.streams.addListener(metrics)
    if registry is not None:
        registry.register(SourceCollector(metrics))
    return metrics
