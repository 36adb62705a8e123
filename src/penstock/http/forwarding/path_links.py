"""Streams that do not live with the owner of their path: forks, which live with their source.

The owner of a path, its home, has a durable link to the peer where the stream lives, and that peer
has a guest entry. A link guards uniqueness alone: it says where the stream is if there is one, and
the stream's own record decides whether there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock.log.system_stream import Event, SystemStream

if TYPE_CHECKING:
    from penstock.log.engine import Engine

PATH: Final = "__ds/links"
LINK: Final = "link"
GUEST: Final = "guest"
REWRITE_ROWS: Final = 1000
"""Rows of history, beyond twice the current ones, after which the stream begins anew."""


class PathLinks:
    """The links and guests of one process. Await `load` before the first request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream = SystemStream(engine, PATH)
        self.links: dict[str, str] = {}
        """Paths at home here whose stream lives with a peer, by its name."""
        self.guests: dict[str, str] = {}
        """Paths at home with a peer, by its name, whose stream lives here."""
        self._rows = 0
        self._writing: dict[tuple[str, str], str | None] = {}  # rows that are not known as durable
        self._busy: dict[str, asyncio.Future[None]] = {}

    async def load(self) -> None:
        if not self._stream.exists:
            return
        async for events in self._stream.pieces():
            for event in events:
                self._rows += 1
                table = self._table(event["type"])
                if event.get("value") is None:
                    table.pop(event["key"], None)
                else:
                    table[event["key"]] = event["value"]

    def _table(self, kind: str) -> dict[str, str]:
        return self.links if kind == LINK else self.guests

    def is_moving(self, path: str) -> bool:
        """Whether it is being decided where the stream of a path lives."""
        return path in self._busy

    @asynccontextmanager
    async def deciding(self, path: str) -> AsyncIterator[None]:
        """Decide alone where the stream of a path lives: others wait."""
        while path in self._busy:
            await asyncio.wait([self._busy[path]])
        busy = self._busy[path] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._busy[path]
            busy.set_result(None)

    async def set(self, kind: str, path: str, peer: str | None) -> None:
        """Set a link or a guest durably; None removes it. In memory it counts, or no longer counts,
        once that is durable."""
        table = self._table(kind)
        if table.get(path) == peer:
            return
        await self._stream.ensure()
        row: Event = {"type": kind, "key": path, "headers": {"operation": "upsert"}}
        if peer is None:
            row["headers"] = {"operation": "delete"}
        else:
            row["value"] = peer
        self._writing[kind, path] = peer
        try:
            await self._stream.write([row])
        finally:
            self._writing.pop((kind, path), None)
        if peer is None:
            table.pop(path, None)
        else:
            table[path] = peer
        self._rows += 1
        if self._rows > REWRITE_ROWS + 2 * (len(self.links) + len(self.guests)):
            await self._rewrite()

    async def _rewrite(self) -> None:
        """Begin the stream anew with the current rows, and those on their way: these are before the
        new ones, and durable if the new ones are."""
        stream = self._stream.find()
        tables = {LINK: dict(self.links), GUEST: dict(self.guests)}
        for (kind, path), peer in self._writing.items():
            if peer is None:
                tables[kind].pop(path, None)
            else:
                tables[kind][path] = peer
        offset = self._engine.token(stream, self._engine.pending(stream).tail)
        rows: list[Event] = [
            {"type": kind, "key": path, "value": peer, "headers": {"operation": "upsert"}}
            for kind, table in tables.items()
            for path, peer in table.items()
        ]
        self._rows = len(rows)
        if rows:
            await self._stream.write(rows)
        await self._engine.trim(PATH, offset)
