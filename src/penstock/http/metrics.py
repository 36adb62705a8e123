"""`/metrics`: the plain counters of engine, store and HTTP layer in Prometheus' text format.

Nothing is counted here; everything is read when a scrape asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from penstock.http.headers import NO_STORE
from penstock.http.message import Request, Response

if TYPE_CHECKING:
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stats import Histogram
    from penstock.state.declaration import Checks
    from penstock.state.server.indexer import StateIndexer


class Metrics:
    __slots__ = ("_registry",)

    def __init__(
        self, engine: Engine, traffic: Traffic, keeper: StateIndexer, checks: Checks
    ) -> None:
        # A registry of our own: an application that mounts the server may have its own too.
        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(engine, traffic, keeper, checks))
        ProcessCollector(registry=self._registry)

    def add(self, collector: Collector) -> None:
        """Let a part of the server tell its own numbers."""
        self._registry.register(collector)

    def get(self, path: str, request: Request) -> Response:
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode()), NO_STORE]
        return Response(200, headers, generate_latest(self._registry))


class ServerCollector(Collector):
    def __init__(
        self, engine: Engine, traffic: Traffic, keeper: StateIndexer, checks: Checks
    ) -> None:
        self._engine = engine
        self._traffic = traffic
        self._keeper = keeper
        self._checks = checks

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._log()
        yield from self._store()
        yield from self._state()

    def _requests(self) -> Iterator[Metric]:
        traffic = self._traffic
        requests = CounterMetricFamily(
            "penstock_requests", "Requests answered.", labels=["method", "status"]
        )
        for method, row in traffic.requests.items():
            for status, value in enumerate(row):
                if value:
                    requests.add_metric([method, f"{status}xx"], value)
        yield requests
        errors = CounterMetricFamily("penstock_errors", "Error answers by code.", labels=["code"])
        for code, value in sorted(traffic.errors.items()):
            errors.add_metric([code], value)
        yield errors
        readers = GaugeMetricFamily(
            "penstock_live_readers", "Readers waiting for new data.", labels=["mode"]
        )
        readers.add_metric(["long-poll"], traffic.long_polls)
        readers.add_metric(["sse"], traffic.sse_readers)
        yield readers
        yield _counter("sse_events", "Data events written to SSE readers.", traffic.events)
        yield _counter("sse_dropped", "SSE readers ended for being slow.", traffic.sse_dropped)
        yield _counter("bytes_out", "Stream bytes sent to readers.", traffic.bytes_out)

    def _log(self) -> Iterator[Metric]:
        stats = self._engine.stats
        yield _counter("appends", "Appends accepted.", stats.appends)
        yield _counter("append_messages", "Messages appended.", stats.append_messages)
        yield _counter("bytes_in", "Bytes appended, as stored.", stats.append_bytes)
        yield _counter("duplicates", "Appends a producer had sent before.", stats.duplicates)
        yield _counter("creates", "Streams created.", stats.creates)
        yield _counter("forks", "Streams created as forks.", stats.forks)
        yield _counter("trims", "Times that a stream lost its beginning.", stats.trims)
        yield _counter("compactions", "Snapshots put in place of history.", stats.compactions)
        yield _counter(
            "compacted_bytes", "Bytes that snapshots took the place of.", stats.compacted_bytes
        )
        yield _counter("deletes", "Streams deleted.", stats.deletes)
        yield _counter("expired", "Streams removed by TTL or expiry.", stats.expired)
        yield _gauge("open_streams", "Streams held in memory.", stats.active_streams)

    def _store(self) -> Iterator[Metric]:
        stats = self._engine.store.stats
        yield _histogram("commit_batch_size", "Mutations a commit.", stats.commit_records)
        yield _histogram("commit_seconds", "Time of a commit, sync included.", stats.commit_seconds)
        yield _histogram("fsync_seconds", "Time of a journal sync.", stats.sync_seconds)
        yield _counter("commit_failures", "Commits that failed.", stats.commit_failures)
        yield _gauge("journal_bytes", "Journal bytes on disk.", stats.journal_bytes)
        yield _counter("journal_written_bytes", "Bytes journaled.", stats.journal_bytes_written)
        yield _counter("checkpoints", "Checkpoints made.", stats.checkpoints)
        yield _counter("checkpoint_failures", "Checkpoints that failed.", stats.checkpoint_failures)
        yield _histogram("checkpoint_seconds", "Time of a checkpoint.", stats.checkpoint_seconds)
        yield _gauge(
            "tail_bytes", "Bytes of open streams that no segment file holds.", stats.memory_bytes
        )

    def _state(self) -> Iterator[Metric]:
        keeper, checks = self._keeper, self._checks
        streams, behind = keeper.lag()
        yield _gauge("state_lag_streams", "State streams not indexed up to their tail.", streams)
        yield _gauge("state_lag_bytes", "Bytes of state streams not indexed yet.", behind)
        yield _counter(
            "state_indexed_bytes", "Bytes of state streams indexed.", keeper.indexed_bytes
        )
        yield _counter("state_skipped", "Messages skipped: no state events.", keeper.skipped)
        yield _counter("state_refused", "Appends refused by a declaration.", checks.refused)
        yield _counter("state_warnings", "Invalid events let in by mode warn.", checks.warnings)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", help, value=value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", help, value=value)


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(
        f"penstock_{name}", help, buckets=buckets, sum_value=histogram.total
    )
