"""The proxy dialect: `/v1/proxy`, off unless the settings name servers to call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import AppendCheck, Dialect, Routes, Services
from penstock.http.endpoint import Endpoint, Need, audited, on_path, readable
from penstock.http.metrics import proxy_metrics
from penstock.http.proxy.body import Bodies
from penstock.http.proxy.recording import META
from penstock.http.proxy.recordings import Recordings
from penstock.http.proxy.resource import ABORT, PREFIX, ProxyResource
from penstock.http.proxy.upstreams import parse_upstreams

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.message import Request
    from penstock.http.openapi.model import Description


class ProxyDialect(Dialect):
    def __init__(self, services: Services) -> None:
        engine, settings = services.engine, services.settings
        upstreams = parse_upstreams(settings.proxy_upstreams, os.environ)
        self._recordings = Recordings(engine, settings, services.egress)
        self._bodies = Bodies(engine)
        self._resource = ProxyResource(engine, settings, upstreams, self._recordings, self._bodies)

    def routes(self) -> Routes:
        methods = {
            **readable(on_path(Verb.READ, self._resource.get)),
            "POST": Endpoint(self._resource.post, Need(Verb.APPEND), _action),
            "DELETE": audited("proxy.abort", on_path(Verb.APPEND, self._resource.delete)),
        }
        return Routes(prefixes={PREFIX: methods})

    def checks(self) -> Iterable[AppendCheck]:
        return (AppendCheck(META, self._recordings.check, closes=True),)

    def metrics(self) -> Iterable[Metric]:
        return proxy_metrics(self._recordings)

    def describe(self) -> Description:
        from penstock.http.proxy.operations import describe

        return describe()

    def start(self) -> None:
        # Also if the proxy is off by now: what was interrupted is not left open.
        self._recordings.start()

    def drain(self) -> None:
        self._recordings.drain()

    def close(self) -> None:
        self._bodies.close()
        self._recordings.close()


def _action(request: Request) -> str:
    """Return the name of a POST in the audit log."""
    is_abort = f"action={ABORT}".encode() in request.query.split(b"&")
    return "proxy.abort" if is_abort else "proxy.record"
