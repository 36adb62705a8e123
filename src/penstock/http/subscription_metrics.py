"""The numbers of subscriptions, for `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from penstock.subscriptions.service import Subscriptions

_COUNTERS = {
    "wakes": ("subscription_wakes", "Wakes issued."),
    "claims": ("subscription_claims", "Wakes claimed by workers."),
    "acks": ("subscription_acks", "Cursors moved by acks."),
    "releases": ("subscription_releases", "Wakes given back."),
    "fenced": ("subscription_fenced", "Requests about a wake that was over."),
    "expired": ("subscription_leases_expired", "Leases that ran out."),
    "deliveries": ("webhook_deliveries", "Webhooks that were accepted."),
    "failures": ("webhook_failures", "Webhooks that failed."),
}


class SubscriptionCollector(Collector):
    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        everybody = self._subscriptions.all.values()
        kinds = Counter((each.config.type, each.status) for each in everybody)
        family = GaugeMetricFamily(
            "penstock_subscriptions", "Subscriptions.", labels=["type", "status"]
        )
        for kind in ("webhook", "pull-wake"):
            for status in ("active", "failed"):
                family.add_metric([kind, status], kinds[kind, status])
        yield family
        pending = sum(1 for each in everybody if each.pending)
        yield GaugeMetricFamily(
            "penstock_subscriptions_pending", "Subscriptions with work to do.", value=pending
        )
        yield GaugeMetricFamily(
            "penstock_webhooks_in_flight",
            "Webhooks being called, or waiting for their turn.",
            value=self._subscriptions.webhooks.on_their_way,
        )
        counts = self._subscriptions.waking.counts
        for key, (name, help) in _COUNTERS.items():
            yield CounterMetricFamily(f"penstock_{name}", help, value=counts[key])
