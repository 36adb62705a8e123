"""The tables that the records of this process's mirrors name.

A record names a table if it is a State URL, or a JSON object whose `surl` is one. Knows tables and
their rows; what becomes of a link is decided in `links`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import PenstockError, TableNotFound
from penstock.protocol.outbound import parse_url
from penstock.stp.notify import check_surl
from penstock.stp.rows import Row, RowDecoder

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.stp.server.registry import Follow
    from penstock.stp.server.tables import TableDirectory

REMEMBERED: Final = 10
"""Links that are remembered of one table, for each that may be followed."""


def link_of(record: str) -> str | None:
    """Return the State URL that a record names, if it names one."""
    text: object = record
    if record[:1] in ("{", '"'):
        try:
            value = msgspec.json.decode(record)
        except msgspec.DecodeError:
            return None
        text = value.get("surl") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text.startswith(("http://", "https://")):
        return None
    try:
        return check_surl(text, parse_url).url
    except PenstockError:
        return None


class RecordLinks:
    """The links of all mirrors here that follow them. `on_changed` is called after each change."""

    def __init__(
        self, tables: TableDirectory, settings: Settings, on_changed: Callable[[], None]
    ) -> None:
        self._tables = tables
        self._links_max = REMEMBERED * settings.follow_links_max
        self._on_changed = on_changed
        # By table: the link of each key.
        self._links: dict[str, dict[str, str]] = {}
        # By table that has still to be read: the keys that have changed since.
        self._unread: dict[str, set[str]] = {}
        self._reading = asyncio.Lock()
        self.named: dict[str, tuple[str, ...]] = {}
        """By table: the SURLs that it names, each once, in the order of their first keys."""
        self.version = 0
        """A number that grows with every change of `named`."""
        self.changed_at: dict[str, int] = {}
        """By table: the version of its last change."""

    def begin(self, follow: Follow) -> None:
        """Note the links of a mirror: those of its rows, and of all that come."""
        if follow.links > 0 and follow.table not in self._links:
            self._links[follow.table] = {}
            self._unread[follow.table] = set()
            self._update(follow.table)
            self._on_changed()

    def end(self, table: str) -> None:
        """Forget the links of a mirror that follows none any more."""
        self._unread.pop(table, None)
        if self._links.pop(table, None) is not None:
            self.version += 1
            del self.named[table], self.changed_at[table]
            self._on_changed()

    def changed(self, table: str, rows: Iterable[Row]) -> None:
        """Take in rows that were added to a mirror."""
        links = self._links.get(table)
        if links is None:
            return
        unread = self._unread.get(table)
        for row in rows:
            if unread is not None:
                unread.add(row.key)
            self._set(links, row)
        if self._update(table):
            self._on_changed()

    async def read_all(self) -> None:
        """Read the rows that mirrors had before their links were noted, after a restart for
        example: until then `named` has not all of them."""
        async with self._reading:
            while self._unread:
                await self._read(next(iter(self._unread)))

    async def _read(self, table: str) -> None:
        try:
            view = self._tables.find(table, touch=False)
        except TableNotFound:
            rows: list[Row] = []  # It has no row yet.
        else:
            decoder = RowDecoder(escape=view.table.escape)
            rows = []
            async for piece in view.active_rows(await view.active()):
                rows += [row for row in decoder.feed(piece) if link_of(row.record)]
        links, since = self._links.get(table), self._unread.pop(table, set())
        if links is None:
            return
        for row in rows:
            if row.key not in since:
                self._set(links, row)
        self._update(table)

    def _set(self, links: dict[str, str], row: Row) -> None:
        link = link_of(row.record) if row.action == "+" else None
        if link is None:
            links.pop(row.key, None)
        elif row.key in links or len(links) < self._links_max:
            links[row.key] = link

    def _update(self, table: str) -> bool:
        """Bring `named` up to date; return whether that has changed it."""
        named = tuple(dict.fromkeys(self._links[table].values()))
        if self.named.get(table) == named:
            return False
        self.version += 1
        self.named[table], self.changed_at[table] = named, self.version
        return True
