"""`/metrics`: the plain counters of every part of the server in Prometheus' text format.

Nothing is counted here; everything is read when a scrape asks for it.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

from penstock import __version__
from penstock.http.headers import NO_STORE
from penstock.http.message import Request, Response
from penstock.http.route_stats import BYTES, SECONDS

if TYPE_CHECKING:
    from penstock.access.audit import AuditLog
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.http.access_log import AccessLog
    from penstock.http.proxy.recordings import Recordings
    from penstock.http.route_stats import RouteStats
    from penstock.http.tables.live import TableLive
    from penstock.http.tables.resource import Tables
    from penstock.http.traffic import Traffic
    from penstock.http.watchdog import LoopWatchdog
    from penstock.log.backup.jobs import Backups
    from penstock.log.engine import Engine
    from penstock.log.scrub import Scrubs
    from penstock.log.stats import Histogram, TierStats
    from penstock.state.declaration import Checks
    from penstock.state.server.costly_checks import CostlyChecks
    from penstock.state.server.expirer import Expirer
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.server.checks import TableChecks
    from penstock.stp.server.notify_hub import NotifyHub
    from penstock.stp.server.row_cache import BlockCache
    from penstock.subscriptions.service import Subscriptions

Source = Callable[[], Iterable[Metric]]

_SUBSCRIPTION_COUNTERS = {
    "wakes": ("subscription_wakes", "Wakes issued."),
    "claims": ("subscription_claims", "Wakes claimed by workers."),
    "acks": ("subscription_acks", "Cursors moved by acks."),
    "releases": ("subscription_releases", "Wakes given back."),
    "fenced": ("subscription_fenced", "Requests about a wake that was over."),
    "expired": ("subscription_leases_expired", "Leases that ran out."),
    "deliveries": ("webhook_deliveries", "Webhooks that were accepted."),
    "failures": ("webhook_failures", "Webhooks that failed."),
}


class Metrics:
    """The resource: the metrics of all sources, and those of the process."""

    __slots__ = ("_registry", "_sources")

    def __init__(self, sources: Iterable[Source]) -> None:
        # A registry of our own: an application that mounts the server may have its own too.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._sources = _Sources(sources)
        self._registry.register(self._sources)

    def add(self, source: Source) -> None:
        self._sources.add(source)

    def collect(self) -> Iterator[Metric]:
        return self._sources.collect()

    def all(self) -> list[Metric]:
        """Return the metrics of all sources, and those of the process."""
        return list(self._registry.collect())

    async def get(self, path: str, request: Request) -> Response:
        # Counters belong to the event loop; their text, which is most of the work, does not.
        return text_response(await asyncio.to_thread(render, self.all()))


def text_response(text: bytes) -> Response:
    return Response(200, [(b"content-type", CONTENT_TYPE_LATEST.encode()), NO_STORE], text)


def render(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in the text format."""
    return generate_latest(_Collected(list(metrics)))


class _Collected(Collector):
    """Metrics as they were at one time."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Sources(Collector):
    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def add(self, source: Source) -> None:
        self._sources = (*self._sources, source)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            yield from source()


# The sources, one for each part of the server.


def request_metrics(traffic: Traffic, table_readers: int) -> Iterator[Metric]:
    yield _labelled(
        CounterMetricFamily,
        "requests",
        "Requests answered.",
        ("method", "status"),
        [
            ((method, f"{status}xx"), value)
            for method, row in traffic.requests.items()
            for status, value in enumerate(row)
            if value
        ],
    )
    errors = [((code,), value) for code, value in sorted(traffic.errors.items())]
    yield _labelled(CounterMetricFamily, "errors", "Error answers by code.", ("code",), errors)
    yield _labelled(
        GaugeMetricFamily,
        "live_readers",
        "Readers waiting for new data.",
        ("mode",),
        [
            (("long-poll",), traffic.long_polls),
            (("sse",), traffic.sse_readers),
            (("table",), table_readers),
        ],
    )
    yield from connection_metrics(traffic)
    yield _counter("reads", "Reads of streams that were answered.", traffic.reads)
    yield _counter("sse_events", "Data events written to SSE readers.", traffic.events)
    yield _counter("sse_dropped", "SSE readers ended for being slow.", traffic.sse_dropped)
    yield _counter("bytes_out", "Stream bytes sent to readers.", traffic.bytes_out)


def connection_metrics(traffic: Traffic) -> Iterator[Metric]:
    yield _gauge("connections", "Open connections; over ASGI, requests.", traffic.connections())


def route_metrics(routes: Iterable[RouteStats]) -> Iterator[Metric]:
    labels = ("method", "route", "status")
    seconds = HistogramMetricFamily(
        "penstock_request_seconds",
        "Time from a request to the start of its response.",
        labels=labels,
    )
    received = HistogramMetricFamily(
        "penstock_request_bytes", "Size of the bodies of requests.", labels=labels
    )
    sent = HistogramMetricFamily(
        "penstock_response_bytes",
        "Size of the bodies of responses that are not live.",
        labels=labels,
    )
    for stats in routes:
        for status, cell in enumerate(stats.cells):
            if cell is None:
                continue
            values = (stats.method, stats.route, f"{status}xx")
            seconds.add_metric(values, _buckets(SECONDS, cell.seconds), cell.seconds_total)
            sizes = _buckets(BYTES, cell.by_size(cell.received))
            received.add_metric(values, sizes, cell.received_bytes)
            sizes = _buckets(BYTES, cell.by_size(cell.sent))
            sent.add_metric(values, sizes, cell.sent_bytes)
    yield from (seconds, received, sent)


def build_metrics(settings: Settings, *, is_ready: bool) -> Iterator[Metric]:
    yield _gauge("ready", "1 if /readyz says so, else 0.", int(is_ready))
    labels = {
        "version": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "store": "memory" if settings.memory else "disk",
        "durability": settings.durability,
    }
    yield _labelled(
        GaugeMetricFamily,
        "build_info",
        "1, with what runs here as labels.",
        tuple(labels),
        [(tuple(labels.values()), 1)],
    )


def access_log_metrics(access_log: AccessLog) -> Iterator[Metric]:
    yield _counter(
        "access_log_dropped", "Lines of the access log that were not written.", access_log.dropped
    )


def loop_metrics(watchdog: LoopWatchdog) -> Iterator[Metric]:
    yield _histogram(
        "loop_lag_seconds", "How late the event loop was, sampled.", watchdog.lag_seconds
    )
    yield _gauge("loop_lag_max_seconds", "The longest lag since the start.", watchdog.lag_max_s)
    yield _counter("loop_stalls", "Lags of more than loop_stall_ms.", watchdog.stalls)


def log_metrics(engine: Engine) -> Iterator[Metric]:
    stats = engine.stats
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
    streams, size = stats.totals or (None, None)
    yield _gauge("streams", "Streams, those of the server itself included.", streams)
    yield _gauge("stored_bytes", "Bytes that streams and their forks hold.", size)


def store_metrics(engine: Engine) -> Iterator[Metric]:
    stats = engine.store.stats
    yield _histogram("commit_batch_size", "Mutations a commit.", stats.commit_records)
    yield _histogram("commit_seconds", "Time of a commit, sync included.", stats.commit_seconds)
    yield _histogram("fsync_seconds", "Time of a journal sync.", stats.sync_seconds)
    yield _gauge("disk_free_bytes", "Free bytes of the data folder.", stats.disk_free_bytes)
    yield _counter("commit_failures", "Commits that failed.", stats.commit_failures)
    yield _gauge("journal_bytes", "Journal bytes on disk.", stats.journal_bytes)
    yield _counter("journal_written_bytes", "Bytes journaled.", stats.journal_bytes_written)
    yield _counter(
        "journal_cut_bytes", "Bytes that the start cut off the journal.", stats.journal_cut_bytes
    )
    yield _counter(
        "journal_files_set_aside",
        "Journal files that the start set aside.",
        stats.journal_files_set_aside,
    )
    yield _counter("checkpoints", "Checkpoints made.", stats.checkpoints)
    yield _counter("checkpoint_failures", "Checkpoints that failed.", stats.checkpoint_failures)
    yield _histogram("checkpoint_seconds", "Time of a checkpoint.", stats.checkpoint_seconds)
    yield _counter("catalog_repairs", "Catalogs whose indexes were rebuilt.", stats.catalog_repairs)
    yield _gauge(
        "tail_bytes", "Bytes of open streams that no segment file holds.", stats.memory_bytes
    )


def tier_metrics(engine: Engine) -> Iterator[Metric]:
    """The metrics of tiered storage; none while it is off."""
    stats = engine.store.stats.tier
    if stats is not None:
        yield from tier_stats_metrics(stats)


def tier_stats_metrics(stats: TierStats) -> Iterator[Metric]:
    yield _labelled(
        GaugeMetricFamily,
        "tier_segment_bytes",
        "Bytes of segments, as of the last search for segments to move.",
        ("place",),
        [(("local",), stats.local_bytes), (("cold",), stats.cold_bytes)],
    )
    yield _gauge("tier_cold_segments", "Segments in the object store.", stats.cold_segments)
    yield _counter("tier_uploads", "Segments moved to the object store.", stats.uploads)
    yield _counter("tier_uploaded_bytes", "Bytes of the moved segments.", stats.upload_bytes)
    yield _counter("tier_upload_failures", "Moves that failed.", stats.upload_failures)
    yield _counter("tier_removals", "Objects removed.", stats.removals)
    yield _counter("tier_removal_failures", "Removals that failed.", stats.removal_failures)
    yield _counter("tier_fetches", "Reads from the object store.", stats.fetches)
    yield _counter("tier_fetched_bytes", "Bytes read from the object store.", stats.fetched_bytes)
    yield _counter("tier_fetch_failures", "Reads that failed.", stats.fetch_failures)
    yield _counter(
        "tier_damaged_objects", "Reads of missing or damaged objects.", stats.damaged_objects
    )
    yield _gauge("tier_cache_bytes", "Bytes in the cache of cold data.", stats.cache_bytes)
    yield _labelled(
        CounterMetricFamily,
        "tier_pieces",
        "Pieces of cold segments asked for.",
        ("cache",),
        [(("hit",), stats.cache_hits), (("miss",), stats.cache_misses)],
    )


def state_metrics(
    indexer: StateIndexer, checks: Checks, costly: CostlyChecks, expirer: Expirer
) -> Iterator[Metric]:
    streams, lag_bytes = indexer.lag()
    yield _gauge("state_lag_streams", "State streams not indexed up to their tail.", streams)
    yield _gauge("state_lag_bytes", "Bytes of state streams not indexed yet.", lag_bytes)
    yield _counter("state_indexed_bytes", "Bytes of state streams indexed.", indexer.indexed_bytes)
    yield _counter("state_skipped", "Messages skipped: no state events.", indexer.skipped)
    yield _counter("state_refused", "Appends refused by a declaration.", checks.refused)
    yield _counter("state_warnings", "Invalid events let in by mode warn.", checks.warnings)
    yield _counter("state_expired", "Entities deleted because they expired.", expirer.expired)
    yield _counter("state_checks_ended", "Checks of events that took too long.", costly.ended)


def table_metrics(
    tables: Tables, live: TableLive, checks: TableChecks, cache: BlockCache
) -> Iterator[Metric]:
    yield _gauge("table_readers", "Streamed answers of tables.", live.readers)
    yield _counter("table_readers_dropped", "Table readers ended for being slow.", live.dropped)
    yield _counter("table_bytes_out", "Bytes of rows streamed to readers.", live.rows_bytes)
    yield _counter("table_rows_written", "Rows written to tables.", tables.rows_written)
    yield _counter("table_refused", "Appends refused because of a table.", checks.refused)
    yield _counter("table_resets", "Resets turned into deletes.", checks.resets)
    yield _gauge("table_keys", "Keys of tables held in memory.", tables.live_keys.keys)
    yield _counter(
        "table_keys_unknown",
        "Rows written as updates because the index was too slow.",
        tables.live_keys.unknown,
    )
    yield _gauge("table_cache_bytes", "Bytes of encoded rows kept.", cache.size)
    yield _labelled(
        CounterMetricFamily,
        "table_blocks",
        "Blocks of encoded rows asked for.",
        ("cache",),
        [(("hit",), cache.hits), (("miss",), cache.misses)],
    )


def peer_metrics(hub: NotifyHub) -> Iterator[Metric]:
    notifier = hub.notifier
    yield _counter("stp_notices", "Notify POSTs accepted.", hub.notices)
    yield _counter("stp_notices_ignored", "URLs in Notify POSTs nothing came of.", hub.ignored)
    yield _counter("stp_notifies", "Notify POSTs that a peer has accepted.", notifier.sent)
    yield _counter("stp_notify_failures", "Notify POSTs that failed.", notifier.failed)
    yield _counter("stp_notify_given_up", "NURLs given up after failures.", notifier.given_up)
    yield _gauge(
        "stp_notifies_pending", "NURLs being told, or to be tried again.", notifier.pending
    )
    listeners = Counter[str](listener.state for listener in hub.registry.listeners.values())
    yield _by_state(
        "stp_listeners",
        "NURLs that are told of changes, or wait for a table.",
        listeners + Counter(waiting=len(hub.registry.waiting)),
        ("active", "given-up", "waiting"),
    )
    followers = hub.mirrors.followers.values()
    yield _by_state(
        "stp_follows",
        "Tables of other servers that are followed.",
        Counter(follower.status.state for follower in followers),
        ("starting", "following", "failing", "ended"),
    )
    totals = hub.mirrors.totals()
    yield _counter("stp_follow_rows", "Rows of sources that changed a mirror.", totals.appended)
    yield _counter("stp_follow_unchanged", "Rows that changed nothing.", totals.unchanged)
    yield _counter("stp_follow_conflicts", "Rows that contradict earlier ones.", totals.conflicts)
    yield _counter("stp_follow_requests", "Requests for rows of sources.", totals.requests)


def egress_metrics(egress: Egress) -> Iterator[Metric]:
    yield _counter("egress_requests", "Requests made to other servers.", egress.requests)
    yield _counter("egress_failures", "Requests to other servers that failed.", egress.failures)
    yield _counter("egress_refused", "Requests to addresses that are refused.", egress.refused)


def audit_metrics(audit: AuditLog) -> Iterator[Metric]:
    yield _counter("audit_events", "Events written to the audit log.", audit.written)
    yield _counter("audit_events_lost", "Audit events that were not written.", audit.lost)


def maintenance_metrics(backups: Backups, scrubs: Scrubs) -> Iterator[Metric]:
    yield _counter("backups", "Backups that were completed.", backups.finished)
    yield _counter("backup_failures", "Backups that failed.", backups.failed)
    yield _gauge(
        "backup_last_success_timestamp_seconds",
        "When the last backup since the start was completed; 0 if there was none.",
        (backups.last_success_us or 0) / 1_000_000,
    )
    yield _counter("scrub_bytes", "Bytes of segments that scrubs have checked.", scrubs.bytes_total)
    yield _counter("scrub_errors", "Problems that scrubs have found.", scrubs.errors_total)
    yield _gauge(
        "scrub_last_finished_timestamp_seconds",
        "When the last scrub since the start ended; 0 if there was none.",
        (scrubs.last_finished_us or 0) / 1_000_000,
    )


def proxy_metrics(recordings: Recordings) -> Iterator[Metric]:
    yield _gauge(
        "proxy_calls", "Calls of upstreams that are being recorded.", recordings.running_count
    )
    yield _labelled(
        CounterMetricFamily,
        "proxy_recordings",
        "Recorded responses by how they ended.",
        ("state",),
        [((state,), recordings.ended[state]) for state in recordings.endings],
    )


def subscription_metrics(service: Subscriptions) -> Iterator[Metric]:
    subscriptions = service.all.values()
    counts = Counter((each.config.type, each.status) for each in subscriptions)
    yield _labelled(
        GaugeMetricFamily,
        "subscriptions",
        "Subscriptions.",
        ("type", "status"),
        [
            ((type, status), counts[type, status])
            for type in ("webhook", "pull-wake")
            for status in ("active", "failed")
        ],
    )
    pending = sum(1 for each in subscriptions if each.pending)
    yield _gauge("subscriptions_pending", "Subscriptions with work to do.", pending)
    yield _gauge(
        "webhooks_in_flight",
        "Webhooks being called, or waiting for their turn.",
        service.webhooks.in_flight,
    )
    for key, (name, help) in _SUBSCRIPTION_COUNTERS.items():
        yield _counter(name, help, service.wakes.counts[key])


# The shapes of a metric.


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", help, value=value)


def _gauge(name: str, help: str, value: float | None) -> Metric:
    """Return a gauge; one whose value is not known has no sample."""
    return GaugeMetricFamily(f"penstock_{name}", help, value=value)


def _labelled(
    family: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    help: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    metric = family(f"penstock_{name}", help, labels=labels)
    for label_values, value in values:
        metric.add_metric(label_values, value)
    return metric


def _by_state(name: str, help: str, counts: Counter[str], states: tuple[str, ...]) -> Metric:
    values = [((state,), counts[state]) for state in states]
    return _labelled(GaugeMetricFamily, name, help, ("state",), values)


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    buckets = _buckets(histogram.bounds, histogram.counts)
    return HistogramMetricFamily(
        f"penstock_{name}", help, buckets=buckets, sum_value=histogram.total
    )


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    names = [*(f"{bound:.9g}" for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
