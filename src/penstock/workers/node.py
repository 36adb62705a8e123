"""One worker as a part of the server, and the connections that it hands to its siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.http.forwarding.forwarder import Forwarder
from penstock.http.forwarding.hop import Hops
from penstock.http.forwarding.part import Part
from penstock.workers.handover import Giver
from penstock.workers.owners import HashOwners, connections_socket

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.app import App
    from penstock.workers.orders import Orders


class WorkerNode(Part):
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        owners = HashOwners(orders.index, orders.settings.workers, orders.sockets)
        forwarder = Forwarder(owners, Hops(orders.secret))
        super().__init__(orders.settings, owners, forwarder, owners.first())
        self.giver = Giver(self._connections_of)

    async def attach(self, app: App) -> None:
        app.add_metrics(self._metrics)
        await super().attach(app)

    def close(self) -> None:
        super().close()
        self.giver.close()

    def _connections_of(self, name: str) -> str:
        return connections_socket(self._orders.sockets, int(name.rpartition("-")[2]))

    def _metrics(self) -> list[Metric]:
        return [
            GaugeMetricFamily("penstock_workers", "Processes that serve together.", value=1),
            CounterMetricFamily(
                "penstock_worker_restarts",
                "Workers that were started again after they had ended.",
                value=self._orders.restarts,
            ),
            CounterMetricFamily(
                "penstock_forwarded_requests",
                "Requests sent to another worker.",
                value=self.forwarder.relayed,
            ),
            CounterMetricFamily(
                "penstock_handovers",
                "Connections handed to another worker.",
                value=self.giver.given,
            ),
        ]
