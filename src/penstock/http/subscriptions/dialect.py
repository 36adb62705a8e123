"""The subscription dialect: subscriptions, their workers, and the keys that webhooks carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.http.dialect import Dialect, Routes, Services, readable
from penstock.http.metrics import subscription_metrics
from penstock.http.subscriptions.resource import LIST, PREFIX, SubscriptionResource, is_public
from penstock.http.subscriptions.webhook_keys import JWKS, ROTATE, WebhookKeys
from penstock.subscriptions.service import Subscriptions

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.message import Request


class SubscriptionDialect(Dialect):
    def __init__(self, services: Services) -> None:
        settings = services.settings
        self.service = Subscriptions(
            services.engine, settings, services.egress, clock=services.clock
        )
        self._resource = SubscriptionResource(self.service, settings)
        self._keys = WebhookKeys(self.service)

    def routes(self) -> Routes:
        return Routes(
            fixed={
                LIST: readable(self._resource.listing),
                JWKS: readable(self._keys.jwks),
                ROTATE: {"POST": self._keys.rotate},
            },
            prefixes={
                PREFIX: {
                    **readable(self._resource.get),
                    "PUT": self._resource.put,
                    "POST": self._resource.post,
                    "DELETE": self._resource.delete,
                },
            },
        )

    def metrics(self) -> Iterable[Metric]:
        return subscription_metrics(self.service)

    def public(self) -> Iterable[Callable[[Request], bool]]:
        return [is_public]

    def start(self) -> None:
        self.service.start()

    def close(self) -> None:
        self.service.close()
