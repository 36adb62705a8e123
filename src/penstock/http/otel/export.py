"""Spans and metrics as values of the OpenTelemetry SDK, sent by its OTLP exporters.

Imported only when OpenTelemetry is on: the SDK is an extra. Blocks; a thread calls it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from penstock import __version__
from penstock.http.otel.spans import CLIENT, INTERNAL, SERVER, Span

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_KINDS: Final = {
    SERVER: SpanKind.SERVER,
    CLIENT: SpanKind.CLIENT,
    INTERNAL: SpanKind.INTERNAL,
}
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class Exporter:
    """Sends to `endpoint`, the base URL of a collector; empty means what OTEL_* variables say."""

    def __init__(self, endpoint: str) -> None:
        base = endpoint.rstrip("/")
        self._spans = OTLPSpanExporter(f"{base}/v1/traces" if base else None)
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics" if base else None)
        self._scope = InstrumentationScope("penstock", __version__)
        self._resource = Resource.create(_resource())
        self._started_ns = time.time_ns()

    def send_spans(self, spans: Sequence[Span]) -> bool:
        """Send spans; return whether they were taken."""
        result = self._spans.export([self._span(span) for span in spans])
        return result is SpanExportResult.SUCCESS

    def send_metrics(self, families: Iterable[Family]) -> bool:
        """Send metrics as they are now; return whether they were taken."""
        now_ns = time.time_ns()
        metrics = [metric for each in families if (metric := self._metric(each, now_ns))]
        scoped = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scoped], "")])
        return self._metrics.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """Give up what is being sent."""
        for exporter in (self._spans, self._metrics):
            exporter.shutdown()

    def _span(self, span: Span) -> ReadableSpan:
        def context(span_id: int, *, is_remote: bool) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(span.trace_id, span_id, is_remote=is_remote, trace_flags=flags)

        parent = context(span.parent_id, is_remote=span.kind == SERVER) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context(span.span_id, is_remote=False),
            parent,
            self._resource,
            {**span.attributes, **({"error.type": span.error} if span.error else {})},
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=span.started_ns,
            end_time=span.ended_ns,
            instrumentation_scope=self._scope,
        )

    def _metric(self, family: Family, now_ns: int) -> Metric | None:
        data: Any
        if family.type == "histogram":
            data = Histogram(self._histogram(family, now_ns), _CUMULATIVE)
        else:
            points = [
                NumberDataPoint(sample.labels, self._started_ns, now_ns, sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            is_sum = family.type == "counter"
            data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
        return Metric(family.name, family.documentation, "", data) if data.data_points else None

    def _histogram(self, family: Family, now_ns: int) -> list[HistogramDataPoint]:
        """Return the points of a histogram, whose buckets Prometheus counts up."""
        series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            values = series.setdefault(tuple(sorted(labels.items())), {})
            suffix = sample.name.removeprefix(family.name)
            values[sample.labels["le"] if suffix == "_bucket" else suffix] = sample.value
        points = []
        for key, values in series.items():
            bounds = [name for name in values if name not in ("+Inf", "_count", "_sum")]
            upto = [0, *(int(values[name]) for name in (*bounds, "+Inf"))]
            points.append(
                HistogramDataPoint(
                    dict(key),
                    self._started_ns,
                    now_ns,
                    count=upto[-1],
                    sum=values["_sum"],
                    bucket_counts=[after - before for before, after in zip(upto, upto[1:])],  # noqa: B905, RUF007 - one is shorter
                    explicit_bounds=[float(name) for name in bounds],
                    min=None,  # type: ignore[arg-type]  # not known; OTLP can leave it out
                    max=None,  # type: ignore[arg-type]  # likewise
                )
            )
        return points


def _resource() -> dict[str, str]:
    """Return what is sent with everything, beside what OTEL_RESOURCE_ATTRIBUTES says."""
    attributes = {"service.version": __version__}
    is_named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not is_named and not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "penstock"
    return attributes
