"""The subscription dialect: subscriptions, their workers, and the keys that webhooks carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.endpoint import (
    PUBLIC,
    Endpoint,
    Need,
    audited,
    on_server,
    public,
    readable,
    somewhere,
)
from penstock.http.metrics import subscription_metrics
from penstock.http.openapi.model import Description
from penstock.http.subscriptions.resource import (
    BELOW,
    LIST,
    PREFIX,
    SubscriptionResource,
    has_own_token,
)
from penstock.http.subscriptions.webhook_keys import JWKS, ROTATE, WebhookKeys
from penstock.subscriptions.service import Subscriptions

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.message import Request


class SubscriptionDialect(Dialect):
    def __init__(self, services: Services) -> None:
        settings = services.settings
        self.service = Subscriptions(
            services.engine,
            settings,
            services.egress,
            clock=services.clock,
            streams=services.streams,
        )
        self._resource = SubscriptionResource(self.service, settings)
        self._keys = WebhookKeys(self.service)

    def routes(self) -> Routes:
        return Routes(
            fixed={
                LIST: readable(somewhere(Verb.SUBSCRIBE, self._resource.listing)),
                JWKS: readable(public(self._keys.jwks)),
                ROTATE: {
                    "POST": audited("keys.rotate", on_server(Verb.ADMIN, "keys", self._keys.rotate))
                },
            },
            prefixes={
                PREFIX: {
                    **readable(somewhere(Verb.SUBSCRIBE, self._resource.get)),
                    "PUT": audited(
                        "subscription.set", somewhere(Verb.SUBSCRIBE, self._resource.put)
                    ),
                    "POST": Endpoint(self._resource.post, _post_needs, _post_action),
                    "DELETE": audited(
                        "subscription.remove", somewhere(Verb.SUBSCRIBE, self._resource.delete)
                    ),
                },
            },
            below={PREFIX: BELOW},
        )

    def describe(self) -> Description:
        from penstock.http.subscriptions.operations import describe

        return describe()

    def metrics(self) -> Iterable[Metric]:
        return subscription_metrics(self.service)

    def start(self) -> None:
        self.service.start()

    def close(self) -> None:
        self.service.close()


def _post_needs(request: Request) -> Need:
    """Return the need of a POST: workers have tokens of their own."""
    return PUBLIC if has_own_token(request) else Need(Verb.SUBSCRIBE, somewhere=True)


def _post_action(request: Request) -> str:
    """Return the action of a POST in the audit log: what workers do is none."""
    return "subscription.add" if request.path.endswith(b"/streams") else ""
