"""The table dialect: streams declared and read as tables of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import AppendCheck, Dialect, Routes, Services
from penstock.http.endpoint import Endpoint, Need, on_path, readable
from penstock.http.metrics import table_metrics
from penstock.http.openapi.model import Description
from penstock.http.peers.reserved import not_server_owned
from penstock.http.tables.declare import TableDeclarations
from penstock.http.tables.live import TableLive
from penstock.http.tables.read import TableReads
from penstock.http.tables.resource import Tables, row_key
from penstock.stp.declaration import META
from penstock.stp.server.checks import TableChecks
from penstock.stp.server.live_keys import LiveKeys
from penstock.stp.server.resets import Resets
from penstock.stp.server.tables import TableDirectory

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.message import Request
    from penstock.state.server.indexer import StateIndexer


class TableDialect(Dialect):
    def __init__(self, services: Services, indexer: StateIndexer) -> None:
        engine, settings, clock = services.engine, services.settings, services.clock
        self._engine = engine
        self.directory = TableDirectory(engine, indexer, settings)
        live_keys = LiveKeys(indexer, settings)
        self._checks = TableChecks(Resets(indexer, settings), live_keys, clock=clock)
        self.live = TableLive(engine, settings, services.traffic)
        declarations = TableDeclarations(
            self.directory, clock=clock, public_url=settings.public_url
        )
        self._tables = Tables(self.directory, declarations, live_keys, settings, clock=clock)
        self._reads = TableReads(self.directory, self.live, services.compressor)

    def routes(self) -> Routes:
        table = {
            **readable(on_path(Verb.READ, self._reads.get)),
            "PUT": Endpoint(
                not_server_owned(self._engine, self._tables.put), _put_needs, _put_action
            ),
            "POST": on_path(Verb.APPEND, self._tables.post),
            "DELETE": on_path(Verb.APPEND, self._tables.delete),
        }
        return Routes(prefixes={b"/v1/table/": table})

    def describe(self) -> Description:
        from penstock.http.tables.operations import describe

        return describe()

    def checks(self) -> Iterable[AppendCheck]:
        return [AppendCheck(META, self._checks)]

    def metrics(self) -> Iterable[Metric]:
        return table_metrics(self._tables, self.live, self._checks, self.directory.cache)

    def drain(self) -> None:
        self.live.drain()


def _put_needs(request: Request) -> Need:
    """Return the need of a PUT: it writes a row if it names a key, else it declares a table."""
    return Need(Verb.CREATE if row_key(request) is None else Verb.APPEND)


def _put_action(request: Request) -> str:
    """Return the action of a PUT in the audit log: rows are no actions."""
    return "table.declare" if row_key(request) is None else ""
