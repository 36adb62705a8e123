"""The peer dialect: Notify and mirrors of other servers' tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import AppendCheck, Dialect, Routes, Services
from penstock.http.endpoint import audited, on_path, on_server, public, readable, somewhere
from penstock.http.metrics import peer_metrics
from penstock.http.openapi.model import Description
from penstock.http.peers.follow import LIST, Follow
from penstock.http.peers.notify import PREFIX, Notify
from penstock.http.peers.nurls import NurlList
from penstock.http.peers.reserved import not_server_owned
from penstock.stp.server.notify_hub import NotifyHub
from penstock.stp.server.registry import OWNER, check_writer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.message import Request, Response
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.server.tables import TableDirectory


class PeerDialect(Dialect):
    def __init__(self, services: Services, indexer: StateIndexer, tables: TableDirectory) -> None:
        engine, settings, clock = services.engine, services.settings, services.clock
        self._engine = engine
        egress = services.egress
        self.hub = NotifyHub(
            engine, indexer, settings, tables, egress, clock=clock, owns=services.owns
        )
        self._notify = Notify(self.hub, settings, egress, services.access, clock=clock)
        self._follow = Follow(self.hub, settings, egress)
        self._nurls = NurlList(self.hub)

    def routes(self) -> Routes:
        follow = {
            **readable(on_path(Verb.FOLLOW, self._follow.get)),
            "PUT": audited(
                "follow.set",
                on_path(Verb.FOLLOW, not_server_owned(self._engine, self._follow.put)),
            ),
            "DELETE": audited("follow.remove", on_path(Verb.FOLLOW, self._follow.delete)),
        }
        nurls = {
            **readable(on_server(Verb.READ, "nurls", self._nurls.get)),
            "POST": audited("nurls.send", on_server(Verb.ADMIN, "nurls", self._nurls.post)),
            "DELETE": audited("nurls.remove", on_server(Verb.ADMIN, "nurls", self._nurls.delete)),
        }
        notify = {"POST": public(self._notify.post)}
        return Routes(
            fixed={
                b"/v1/nurls": nurls,
                LIST: readable(somewhere(Verb.FOLLOW, self._follow.listing)),
            },
            prefixes={PREFIX: notify, b"/v1/follow/": follow},
        )

    def describe(self) -> Description:
        from penstock.http.peers.operations import describe

        return describe()

    def checks(self) -> Iterable[AppendCheck]:
        return [AppendCheck(OWNER, check_writer, closes=True)]

    def metrics(self) -> Iterable[Metric]:
        return peer_metrics(self.hub)

    def refusals(self) -> Iterable[Callable[[Request], Response | None]]:
        return [self._notify.refuse]

    def start(self) -> None:
        self.hub.start()

    def close(self) -> None:
        self.hub.close()
