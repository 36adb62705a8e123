"""Every table of a server, found by its path, with a cached view of each.

Knows streams and their declarations; nothing of requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import StreamNotFound, TableNotFound
from penstock.stp.declaration import META, Table, decode, table_locations
from penstock.stp.server.row_cache import BlockCache
from penstock.stp.server.table_view import TableView

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

VIEWS_MAX: Final = 1024
"""Views in the cache: each has counted the rows of its table, which takes time."""


class TableDirectory:
    def __init__(self, engine: Engine, indexer: StateIndexer, settings: Settings) -> None:
        self.engine = engine
        self.indexer = indexer
        self.cache = BlockCache(settings.table_cache_bytes)
        self._views: OrderedDict[tuple[int, str], TableView] = OrderedDict()
        self._decoded: dict[bytes, dict[str, Table]] = {}
        self.on_declared: Callable[[Stream], None] | None = None
        """Called with a stream that has a new table, when that is durable."""

    def declared_new(self, stream: Stream) -> None:
        """Report a table that was declared just now."""
        if self.on_declared is not None:
            self.on_declared(stream)

    def find(self, path: str, *, touch: bool) -> TableView:
        """Return the table at a path; raise TableNotFound if none is declared there."""
        for stream_path, name in table_locations(path):
            stream = self._stream(stream_path)
            if stream is not None and META in stream.meta:
                table = self.declared(stream.meta[META]).get(name)
                if table is not None:
                    if (
                        touch
                    ):  # Only now: a read of this table is no read of the streams tried before.
                        self.engine.find(stream_path, touch=True)
                    return self._view(stream, name, table)
        raise TableNotFound(
            f"There is no table at {path!r}; declare one with PUT /v1/table/{path}."
        )

    def declared(self, value: bytes) -> dict[str, Table]:
        """Return the tables that a stream's declaration names. The result must not be changed."""
        tables = self._decoded.get(value)
        if tables is None:
            if len(self._decoded) >= VIEWS_MAX:
                self._decoded.clear()
            tables = self._decoded[value] = decode(value)
        return tables

    def of(self, stream: Stream) -> list[TableView]:
        """Return every table of a stream."""
        value = stream.meta.get(META)
        if value is None:
            return []
        tables = self.declared(value)
        return [self._view(stream, name, table) for name, table in tables.items()]

    def _stream(self, path: str) -> Stream | None:
        try:
            return self.engine.find(path, touch=False)
        except StreamNotFound:
            return None

    def _view(self, stream: Stream, name: str, table: Table) -> TableView:
        key = (stream.id, name)
        view = self._views.get(key)
        if view is None or view.stream is not stream:
            view = TableView(
                stream, name, table, engine=self.engine, indexer=self.indexer, cache=self.cache
            )
            self._views[key] = view
            while len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return view
