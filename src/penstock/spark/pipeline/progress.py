"""The progress of a pipeline, computed after each batch: as a line of text and as metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import InvalidPipeline
from penstock.spark.offsets import SourceOffsets
from penstock.spark.stream_progress import (
    STREAM_COUNTERS,
    STREAM_GAUGES,
    Lags,
    StreamProgress,
    furthest_behind,
    progress_after,
    read_between,
)

_WINDOW_S: Final = 10.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a pipeline after a batch."""

    batches: int  # of this run
    batch: int  # of the warehouse
    events: int  # of this run
    events_total: int
    events_per_s: float
    invalid_total: int
    published: int
    lag: int
    seconds: float  # duration of the last batch
    folds: int
    unkeyed: int = 0  # rows of published results without a key
    violations: dict[str, int] = {}  # by expectation, as types.TYPE.NAME and publish.NAME.NAME
    troubles: int = 0  # published results that are not up to date
    drifts: int = 0  # types whose declaration on the server has changed since the start
    streams: dict[str, StreamProgress] = {}

    def line(self) -> str:
        violated = sum(self.violations.values())
        return (
            f"batch {self.batch:,}  {self.events_total:,} events  {self.events_per_s:,.0f}/s  "
            f"lag {self.lag:,}  dead letters {self.invalid_total:,}"
            + (f"  published {self.published:,}" if self.published else "")
            + (f"  rows without key {self.unkeyed:,}" if self.unkeyed else "")
            + (f"  expectations violated {violated:,}" if violated else "")
            + (f"  results behind {self.troubles:,}" if self.troubles else "")
            + f"  last batch {self.seconds:.2f} s"
        )


class Meter:
    """Counts what a run does. Only the run writes it; any thread may read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[tuple[float, int]] = []
        self.folds = 0
        self.published = 0
        self.unkeyed = self.troubles = self.drifts = 0
        self.violations: dict[str, int] = {}
        self._streams: dict[str, StreamProgress] = {}
        self.last = Progress(
            batches=0,
            batch=0,
            events=0,
            events_total=0,
            events_per_s=0.0,
            invalid_total=0,
            published=0,
            lag=0,
            seconds=0.0,
            folds=0,
        )

    def streams(self, start: SourceOffsets, end: SourceOffsets, lags: Lags, seconds: float) -> None:
        """Count what a batch has read of each stream. `lags` are from before the batch: Spark
        reports the progress of a batch after it."""
        read = read_between(start, end)
        after = progress_after(self._streams, end.streams, read, lags.less(read), seconds)
        self._streams = furthest_behind(after)

    def batch(
        self, *, number: int, events: int, total: int, invalid: int, seconds: float
    ) -> Progress:
        """Count a finished batch, and return the progress."""
        now = time.monotonic()
        with self._lock:
            self._recent = [each for each in self._recent if each[0] > now - _WINDOW_S]
            self._recent.append((now, events))
            first = self._recent[0][0] if len(self._recent) > 1 else now
            passed_s = max(now - first, seconds, 1e-3)
            self.last = Progress(
                batches=self.last.batches + 1,
                batch=number,
                events=self.last.events + events,
                events_total=total,
                events_per_s=sum(count for _, count in self._recent) / passed_s,
                invalid_total=invalid,
                published=self.published,
                lag=sum(each.lag_messages for each in self._streams.values()),
                seconds=seconds,
                folds=self.folds,
                unkeyed=self.unkeyed,
                violations=self.violations,
                troubles=self.troubles,
                drifts=self.drifts,
                streams=self._streams,
            )
            return self.last


class PipelineCollector(Collector):
    """The metrics of a pipeline for Prometheus."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        last = self._meter.last
        counters = {
            "batches": (last.batches, "Batches that this run has committed."),
            "events": (last.events, "Events that this run has committed."),
            "folds": (last.folds, "State tables that this run has rewritten."),
            "published": (last.published, "Messages that this run has published."),
        }
        for name, (value, help_text) in counters.items():
            yield CounterMetricFamily(f"penstock_pipeline_{name}", help_text, value=value)
        gauges: dict[str, tuple[float, str]] = {
            "batch": (last.batch, "The last batch in the warehouse."),
            "warehouse_events": (last.events_total, "Events in the warehouse."),
            "dead_letters": (last.invalid_total, "Invalid events in the warehouse."),
            "lag_messages": (last.lag, "Messages that are in the streams and not yet read."),
            "batch_seconds": (last.seconds, "How long the last batch took."),
            "unkeyed_rows": (last.unkeyed, "Rows of published results that have no key."),
            "failing_results": (last.troubles, "Published results that are not up to date."),
            "drifted_types": (last.drifts, "Types that the server now declares differently."),
        }
        for name, (level, help_text) in gauges.items():
            yield GaugeMetricFamily(f"penstock_pipeline_{name}", help_text, value=level)
        violations = GaugeMetricFamily(
            "penstock_pipeline_expectation_violations",
            "Rows that violate an expectation: of all events, or of a current result.",
            labels=["expectation"],
        )
        for expectation, count in last.violations.items():
            violations.add_metric([expectation], count)
        yield violations
        yield from _of_streams(last.streams)


def _of_streams(streams: dict[str, StreamProgress]) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
        name: CounterMetricFamily(f"penstock_pipeline_stream_{name}", text, labels=["stream"])
        for name, text in STREAM_COUNTERS.items()
    }
    families |= {
        name: GaugeMetricFamily(f"penstock_pipeline_stream_{name}", text, labels=["stream"])
        for name, text in STREAM_GAUGES.items()
    }
    for stream, progress in streams.items():
        for name, family in families.items():
            family.add_metric([stream], getattr(progress, name))
    yield from families.values()


@contextmanager
def serving_metrics(meter: Meter, host: str, port: int) -> Iterator[str]:
    """A context in which the metrics are served; its value is their address, as port 0 is any."""
    registry = CollectorRegistry()
    registry.register(PipelineCollector(meter))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InvalidPipeline(
            f"Metrics cannot be served at pipeline.metrics_host {host}, pipeline.metrics_port "
            f"{port}: {(error.strerror or str(error)).lower()}."
        ) from None
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
