"""Lag, rate and bytes of each stream of each streaming query, from the progress that Spark reports:
for Prometheus, as a value for consoles, and for programs.

Spark 4.2 asks sources in Python for offsets alone, not for metrics of their own. But the offsets of
`durable_streams` count messages and bytes, so that two of them say how much was read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import InvalidOption
from penstock.limits import SPARK_METRIC_STREAMS_MAX
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.source.planning import ranges_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

OTHERS: Final = "(other streams)"
"""The label of the streams beyond the most that have metrics of their own."""


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a query has read of a stream since the listener was added, and what it has not."""

    messages: int = 0
    bytes: int = 0
    lag_messages: int = 0
    lag_bytes: int = 0
    messages_per_s: float = 0.0  # in the last batch
    bytes_per_s: float = 0.0


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
                    streams=_largest(streams),
                )


def _streams(
    source: Any, before: Mapping[str, StreamProgress], seconds: float
) -> dict[str, StreamProgress]:
    """The streams of a source, after a batch; none of a source that is not ours."""
    start, end = _offsets(source.startOffset), _offsets(source.endOffset)
    if end is None:
        return {}
    latest = _document(source.latestOffset)
    lag, lag_bytes = latest.get("lag") or {}, latest.get("lagBytes") or {}
    read = {}
    for each in ranges_between(start or SourceOffsets(end.kind, {}), end):
        if each.start != each.end:
            read[each.stream] = (each.end.seq - each.start.seq, each.end.byte - each.start.byte)
    streams = {}
    for name in {*end.streams, *lag}:
        messages, size = read.get(name, (0, 0))
        total = before.get(name, StreamProgress())
        streams[name] = StreamProgress(
            messages=total.messages + messages,
            bytes=total.bytes + size,
            lag_messages=lag.get(name, 0),
            lag_bytes=lag_bytes.get(name, 0),
            messages_per_s=messages / seconds,
            bytes_per_s=size / seconds,
        )
    return streams


def _document(text: Any) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, TypeError):
        return {}
    return document if isinstance(document, dict) else {}


def _offsets(text: Any) -> SourceOffsets | None:
    document = _document(text)
    if "server" not in document or not isinstance(document.get("streams"), dict):
        return None
    try:
        return from_spark(document)
    except (InvalidOption, ValueError, KeyError, AttributeError):
        return None


def _largest(streams: dict[str, StreamProgress]) -> dict[str, StreamProgress]:
    """The streams that are furthest behind, then the busiest; the rest added up."""
    if len(streams) <= SPARK_METRIC_STREAMS_MAX:
        return streams
    names = sorted(
        (name for name in streams if name != OTHERS),
        key=lambda name: (streams[name].lag_messages, streams[name].messages),
        reverse=True,
    )
    own, others = names[: SPARK_METRIC_STREAMS_MAX - 1], names[SPARK_METRIC_STREAMS_MAX - 1 :]
    rest = [streams[name] for name in others]
    if OTHERS in streams:
        earlier = streams[OTHERS]
        rest.append(StreamProgress(messages=earlier.messages, bytes=earlier.bytes))
    fields = StreamProgress.__struct_fields__
    total = {field: sum(getattr(each, field) for each in rest) for field in fields}
    return {**{name: streams[name] for name in own}, OTHERS: StreamProgress(**total)}


class SourceCollector(Collector):
    """The metrics of streaming queries for Prometheus."""

    def __init__(self, metrics: SourceMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        labels = ["query", "stream"]
        counters = {
            "messages": "Messages of the stream that the query has read.",
            "bytes": "Bytes of the stream that the query has read.",
        }
        gauges = {
            "lag_messages": "Messages of the stream that the query has not read yet.",
            "lag_bytes": "Bytes of the stream that the query has not read yet.",
            "messages_per_s": "Messages a second in the last batch.",
            "bytes_per_s": "Bytes a second in the last batch.",
        }
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: CounterMetricFamily(f"penstock_spark_{name}", text, labels=labels)
            for name, text in counters.items()
        }
        families |= {
            name: GaugeMetricFamily(f"penstock_spark_{name}", text, labels=labels)
            for name, text in gauges.items()
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
