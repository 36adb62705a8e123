"""The numbers of Notify, following and outbound requests, for `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from penstock.stp.server.notify_hub import Hub


class HubCollector(Collector):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        yield from _metrics(self._hub)


def _metrics(hub: Hub) -> Iterator[Metric]:
    teller, egress = hub.teller, hub.egress
    yield _counter("stp_notices", "Notify POSTs accepted.", hub.notices)
    yield _counter("stp_notices_ignored", "URLs in Notify POSTs nothing came of.", hub.ignored)
    yield _counter("stp_notifies", "Notify POSTs that a peer has accepted.", teller.sent)
    yield _counter("stp_notify_failures", "Notify POSTs that failed.", teller.failed)
    yield _counter("stp_notify_given_up", "NURLs given up after failures.", teller.given_up)
    yield _gauge("stp_notifies_pending", "NURLs being told, or to be tried again.", teller.pending)
    yield _by_state(
        "stp_listeners",
        "NURLs that are told of changes.",
        Counter(listener.state for listener in hub.registry.listeners.values()),
        ("active", "given-up"),
    )
    statuses = [follower.status for follower in hub.followings.followers.values()]
    yield _by_state(
        "stp_follows",
        "Tables of other servers that are followed.",
        Counter(status.state for status in statuses),
        ("starting", "following", "failing", "ended"),
    )
    totals = hub.followings.totals()
    yield _counter("stp_follow_rows", "Rows of sources that changed a mirror.", totals.appended)
    yield _counter("stp_follow_unchanged", "Rows that changed nothing.", totals.unchanged)
    yield _counter("stp_follow_conflicts", "Rows that contradict earlier ones.", totals.conflicts)
    yield _counter("stp_follow_requests", "Requests for rows of sources.", totals.requests)
    yield _counter("egress_requests", "Requests made to other servers.", egress.requests)
    yield _counter("egress_failures", "Requests to other servers that failed.", egress.failures)
    yield _counter("egress_refused", "Requests to addresses that are refused.", egress.refused)


def _by_state(name: str, help: str, counts: Counter[str], states: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(f"penstock_{name}", help, labels=["state"])
    for state in states:
        family.add_metric([state], counts[state])
    return family


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", help, value=value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_{name}", help, value=value)
