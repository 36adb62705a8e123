"""Traces and metrics by OpenTelemetry: collected on the event loop, sent by a thread.

The loop only puts things into a bounded queue. A collector that is slow or away costs spans, which
are counted, and never a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as WaitTimeoutError
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client.core import CounterMetricFamily

from penstock import DISTRIBUTION
from penstock.config.setting import InvalidSetting
from penstock.http.otel.spans import (
    CLIENT,
    TRACEPARENT,
    Span,
    TraceContext,
    format_traceparent,
    new_span_id,
    new_trace,
    parse_traceparent,
    spans_of,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.config.settings import Settings
    from penstock.http.exchange import Exchange
    from penstock.protocol.outbound import Target

BATCH_MAX: Final = 512
COLLECT_S: Final = 1.0
"""How long spans wait for others to be sent with."""
CLOSE_S: Final = 3.0
"""How long a stop waits for the last spans, if the collector has answered before."""
FAMILIES_S: Final = 5.0
"""How long the thread waits for the loop to collect the metrics."""

log = logging.getLogger("penstock.otel")

Item = tuple["Exchange", TraceContext] | Span


class SpanExporter(Protocol):
    """What sends; see `export.Exporter`. It blocks, and is used by one thread."""

    def send_spans(self, spans: list[Span]) -> bool: ...

    def send_metrics(self, families: Iterable[Metric]) -> bool: ...

    def close(self) -> None: ...


class Telemetry:
    """A sink of exchanges, and the tracer of requests to other servers."""

    def __init__(
        self, settings: Settings, exporter: SpanExporter, environ: dict[str, str] | None = None
    ) -> None:
        variables = dict(os.environ) if environ is None else environ
        self._percent = _percent(settings, variables)
        self._sends_metrics = variables.get("OTEL_METRICS_EXPORTER") != "none"
        self._interval_s = _interval_s(settings, variables)
        self._exporter = exporter
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._items_max = settings.otel_queue_max
        self._collect: Callable[[], Coroutine[Any, Any, list[Metric]]]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._collecting: Future[list[Metric]] | None = None
        self._last: list[Metric] | None = None
        self._is_well = True
        self._thread = threading.Thread(target=self._run, name="penstock-otel", daemon=True)
        self.sent = 0
        self.dropped = 0

    # -- on the event loop

    def start(self, collect: Callable[[], Coroutine[Any, Any, list[Metric]]]) -> None:
        """Begin to send; `collect` returns the metrics, and runs on the event loop."""
        self._collect = collect
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Send what is left, with the metrics that `collect` returns now."""
        if not self._thread.is_alive():
            return
        if self._sends_metrics:
            try:
                self._last = list(collect())
            except Exception:
                log.exception("The last metrics could not be collected.")
                self._last = []
        if self._collecting is not None:
            self._collecting.cancel()  # the thread would wait for this loop
        self._items.put(None)
        self._thread.join(CLOSE_S if self._is_well else 0.1)
        if self._thread.is_alive():
            self._exporter.close()

    def __call__(self, exchange: Exchange) -> None:
        """Put a request that has ended into the queue, if it is sampled."""
        context = parse_traceparent(exchange.request.headers.get(TRACEPARENT))
        if context is None:
            context = new_trace(is_sampled=self._is_sampled())
        if context.is_sampled:
            exchange.request.body = b""
            self._put((exchange, context))

    def begin(self, method: str, target: Target) -> ClientCall:
        """Begin the span of a request to another server."""
        context = new_trace(is_sampled=self._is_sampled())
        return ClientCall(context, method, target, self._put if context.is_sampled else None)

    def metrics(self) -> Iterator[Metric]:
        for name, help, value in (
            ("penstock_otel_spans", "Spans sent by OTLP.", self.sent),
            ("penstock_otel_dropped", "Spans that were not sent.", self.dropped),
        ):
            yield CounterMetricFamily(name, help, value=value)

    def _is_sampled(self) -> bool:
        return 100 * random.random() < self._percent

    def _put(self, item: Item) -> None:
        if self._items.qsize() >= self._items_max:
            self.dropped += 1
        else:
            self._items.put(item)

    # -- on the thread

    def _run(self) -> None:
        due_s = time.monotonic() + self._interval_s
        has_ended = False
        while not has_ended:
            batch, has_ended = self._batch(max(due_s - time.monotonic(), 0.0))
            if batch:
                self._send_spans(batch)
            if self._sends_metrics and (has_ended or time.monotonic() >= due_s):
                due_s = time.monotonic() + self._interval_s
                self._send_metrics()

    def _batch(self, wait_s: float) -> tuple[list[Item], bool]:
        """Return the items of the next moment, and whether they are the last."""
        items: list[Item] = []
        end_s = time.monotonic() + min(wait_s, COLLECT_S)
        while len(items) < BATCH_MAX:
            try:
                item = self._items.get(timeout=max(end_s - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if item is None:
                return items, True
            items.append(item)
        return items, False

    def _send_spans(self, items: list[Item]) -> None:
        spans: list[Span] = []
        for item in items:
            spans += [item] if isinstance(item, Span) else spans_of(*item)
        if self._attempt(lambda: self._exporter.send_spans(spans)):
            self.sent += len(spans)
        else:
            self.dropped += len(spans)

    def _send_metrics(self) -> None:
        metrics = self._collected() if self._last is None else self._last
        if metrics is not None:
            families = metrics
            self._attempt(lambda: self._exporter.send_metrics(families))

    def _collected(self) -> list[Metric] | None:
        """Let the loop collect the metrics; None if it could not."""
        assert self._loop is not None
        work = self._collect()
        try:
            collecting = self._collecting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            return None
        if self._last is not None:
            collecting.cancel()  # the loop waits for this thread
        try:
            return collecting.result(FAMILIES_S)
        except (CancelledError, WaitTimeoutError):
            collecting.cancel()  # the loop ends, or is busy: the next time is soon
        except Exception:
            log.exception("The metrics could not be collected.")
        return None

    def _attempt(self, send: Callable[[], bool]) -> bool:
        try:
            self._is_well = send()
        except Exception as error:  # noqa: BLE001 - whatever an exporter does, the thread goes on
            self._is_well = False
            log.warning("Telemetry was not sent: %r", error)
        return self._is_well


class ClientCall:
    """The span of one request to another server. `header` goes with the request."""

    __slots__ = ("_context", "_method", "_put", "_span_id", "_started_ns", "_target")

    def __init__(
        self,
        context: TraceContext,
        method: str,
        target: Target,
        put: Callable[[Item], None] | None,
    ) -> None:
        self._context = context
        self._span_id = new_span_id()
        self._method = method
        self._target = target
        self._put = put
        self._started_ns = time.time_ns()

    @property
    def header(self) -> str:
        context = self._context
        return format_traceparent(context.trace_id, self._span_id, is_sampled=context.is_sampled)

    def end(self, status: int, error: str = "") -> None:
        """End the span; a status of 0 means that there was no response."""
        if self._put is None:
            return
        attributes: dict[str, str | int] = {
            "http.request.method": self._method,
            "url.scheme": self._target.scheme,
            "server.address": self._target.host,
            "server.port": self._target.port,
        }
        if status:
            attributes["http.response.status_code"] = status
        context = self._context
        self._put(
            Span(
                self._method,
                CLIENT,
                context.trace_id,
                self._span_id,
                context.parent_id,
                self._started_ns,
                time.time_ns(),
                attributes,
                error or (str(status) if status >= 400 else ""),
            )
        )


def open_telemetry(settings: Settings) -> Telemetry | None:
    """Return the telemetry that the settings ask for; None if they ask for none."""
    if not (settings.otel or settings.otel_endpoint):
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if settings.otel_endpoint and not settings.otel_endpoint.startswith(("http://", "https://")):
        raise InvalidSetting(
            "Setting otel_endpoint must be the base URL of a collector, such as "
            "http://localhost:4318."
        )
    try:
        from penstock.http.otel.export import Exporter
    except ImportError:
        raise InvalidSetting(
            "Setting otel needs the OpenTelemetry SDK and its OTLP exporter: pip install "
            f"'{DISTRIBUTION}[otel]'."
        ) from None
    return Telemetry(settings, Exporter(settings.otel_endpoint))


def _percent(settings: Settings, environ: dict[str, str]) -> float:
    """Return the share of traces that are kept, in percent: the setting wins unless it is 100."""
    if environ.get("OTEL_TRACES_EXPORTER") == "none":
        return 0.0
    if settings.otel_sample_percent != 100:
        return settings.otel_sample_percent
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler == "traceidratio":
        return 100 * _number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0)
    return 100.0


def _interval_s(settings: Settings, environ: dict[str, str]) -> float:
    if "OTEL_METRIC_EXPORT_INTERVAL" in environ:
        return _number(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
    return settings.otel_metrics_interval_s


def _number(environ: dict[str, str], name: str, default: float) -> float:
    try:
        return float(environ[name])
    except (KeyError, ValueError):
        return default
