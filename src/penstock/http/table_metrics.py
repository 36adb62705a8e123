"""What `/metrics` says of tables; read from their parts when a scrape asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from penstock.http.tables.live import TableLive
    from penstock.http.tables.resource import Tables
    from penstock.stp.server.checks import TableChecks
    from penstock.stp.server.row_cache import BlockCache


class TableCollector(Collector):
    def __init__(
        self, tables: Tables, live: TableLive, checks: TableChecks, cache: BlockCache
    ) -> None:
        self._tables = tables
        self._live = live
        self._checks = checks
        self._cache = cache

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        live, cache, checks = self._live, self._cache, self._checks
        yield _gauge("table_readers", "Streamed answers of tables.", live.readers)
        yield _counter("table_readers_dropped", "Table readers ended for being slow.", live.dropped)
        yield _counter("table_bytes_out", "Bytes of rows streamed to readers.", live.rows_bytes)
        yield _counter("table_rows_written", "Rows written to tables.", self._tables.rows_written)
        yield _counter("table_refused", "Appends refused because of a table.", checks.refused)
        yield _counter("table_resets", "Resets turned into deletes.", checks.resets)
        yield _gauge("table_cache_bytes", "Bytes of encoded rows kept.", cache.size)
        blocks = CounterMetricFamily(
            "penstock_table_blocks", "Blocks of encoded rows asked for.", labels=["cache"]
        )
        blocks.add_metric(["hit"], cache.hits)
        blocks.add_metric(["miss"], cache.misses)
        yield blocks


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", help, value=value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", help, value=value)
