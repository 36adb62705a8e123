"""The state dialect: schemas, materialised state, the index of state streams, and compaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import AppendCheck, Dialect, Routes, Services
from penstock.http.endpoint import audited, on_path, readable, somewhere
from penstock.http.metrics import state_metrics
from penstock.http.openapi.model import Description
from penstock.http.peers.reserved import is_owned, not_reserved, not_server_owned
from penstock.http.state.schema import LIST, Schema
from penstock.http.state.state import State
from penstock.state.declaration import META, Checks
from penstock.state.server.compaction import Compactor
from penstock.state.server.costly_checks import CostlyChecks
from penstock.state.server.expirer import Expirer
from penstock.state.server.indexer import StateIndexer

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class StateDialect(Dialect):
    def __init__(self, services: Services) -> None:
        engine, settings = services.engine, services.settings
        self.indexer = StateIndexer(engine, settings)
        self.compactor = Compactor(engine, self.indexer, settings, spares=is_owned)
        self._engine = engine
        self.expirer = Expirer(engine, self.indexer, clock=services.clock, spares=is_owned)
        self.indexer.on_deadline = self.expirer.notice
        self._costly = CostlyChecks(settings)
        self._checks = Checks(self.indexer.accepted, self._costly.judge, clock=services.clock)
        self._schema = Schema(engine, self.indexer, services.compressor)
        self._state = State(engine, self.indexer, services.compressor, settings)

    def routes(self) -> Routes:
        schema = {
            **readable(on_path(Verb.READ, self._schema.get)),
            "PUT": audited(
                "schema.set",
                on_path(Verb.ADMIN, not_server_owned(self._engine, self._schema.put)),
            ),
            "DELETE": audited(
                "schema.remove", on_path(Verb.ADMIN, not_reserved(self._schema.delete))
            ),
        }
        state = readable(on_path(Verb.READ, self._state.get))
        return Routes(
            fixed={LIST: readable(somewhere(Verb.LIST, self._schema.listing))},
            prefixes={b"/v1/schema/": schema, b"/v1/state/": state},
        )

    def describe(self) -> Description:
        from penstock.http.state.operations import describe

        return describe()

    def checks(self) -> Iterable[AppendCheck]:
        return [AppendCheck(META, self._checks)]

    def metrics(self) -> Iterable[Metric]:
        return state_metrics(self.indexer, self._checks, self._costly, self.expirer)

    def start(self) -> None:
        self._engine.retention.compact = self.compactor.consider
        self.indexer.start()

    def close(self) -> None:
        self.expirer.close()
        self._costly.close()
        self.indexer.close()
