"""The Notify hub: registers listeners and follows sources, as Notify requests ask for it.

Decides by the registry and by which peers are trusted; notifying and following are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.config.setting import InvalidSetting
from penstock.errors import InvalidUrl, PenstockError, TooManyPeers
from penstock.protocol.headers import parse_stream_path
from penstock.protocol.outbound import Target, parse_url
from penstock.stp.server.mirrors import Mirrors
from penstock.stp.server.notifier import Notifier
from penstock.stp.server.peers import TABLES, Peers, mirror_path
from penstock.stp.server.registry import Listener, Registry

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.notify import Notice
    from penstock.stp.server.tables import TableDirectory

_log = logging.getLogger("penstock.stp")
NOT_A_PEER: Final = "its host is not among the peers of this server"


class NotifyHub:
    """The hub of one server. Await `ready` before using it."""

    def __init__(
        self,
        engine: Engine,
        indexer: StateIndexer,
        settings: Settings,
        tables: TableDirectory,
        egress: Egress,
        *,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._tables = tables
        self._peers = Peers(settings)
        self._public_origin = _origin(settings.public_url)
        self.registry = Registry(engine, indexer)
        self.notifier = Notifier(settings, self.registry, egress, self._peers, self._last_seqno)
        self.mirrors = Mirrors(
            engine,
            indexer,
            settings,
            tables,
            egress,
            self._peers,
            self.registry,
            clock=clock,
        )
        self._watches: dict[str, _Watch] = {}
        self._loading: asyncio.Task[None] | None = None
        self.notices = 0
        self.ignored = 0

    def start(self) -> None:
        """Resume the listeners and mirrors that are stored, if there are any."""
        if self.registry.exists:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(_log_failure)

    async def _load(self) -> None:
        await self.registry.load()
        await self.mirrors.resume()
        for listener in list(self.registry.listeners.values()):
            self._listen(listener)

    async def ready(self) -> None:
        """Wait until the stored entries are loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self.mirrors.close()
        self.notifier.close()
        for watch in list(self._watches.values()):
            self._engine.unwatch(watch.stream, watch)
        self._watches.clear()

    # -- requests

    async def notify(self, name: str, notice: Notice, base: str) -> dict[str, Any]:
        """Act on a Notify as far as its peers are trusted; return what was done.

        `base` is the URL of this server as the sender knows it.
        """
        await self.ready()
        self.notices += 1
        ignored = dict.fromkeys(notice.ignored, "no event has such a name")
        outcome: dict[str, Any] = {"ignored": ignored}
        surl = notice.surl
        own = None
        if surl is not None and self._is_own(surl, base):
            own = self._own_table(surl)
            if own is None:
                ignored["surl"] = "there is no such table here"
        elif surl is not None:
            await self._news(name, surl, base, outcome)
        for callback in notice.callbacks:
            table = own or self._table_of(name, callback.event)
            if table is None:
                ignored[callback.event] = "no table here is meant by it"
            elif not self._peers.trusts(callback.nurl):
                ignored[callback.event] = NOT_A_PEER
            elif not base and own is None:
                ignored[callback.event] = "this server does not know its own URL; set public_url"
            else:
                table_url = surl.url if own and surl else f"{base}{TABLES}{table}"
                await self._register(table, callback.event, callback.nurl, table_url)
                outcome.setdefault("told_of", {})[callback.event] = table
        self.ignored += len(ignored)
        return outcome

    async def _news(self, name: str, surl: Target, base: str, outcome: dict[str, Any]) -> None:
        """Read a SURL of another server that may have new rows, if it is or may be followed."""
        followers = self.mirrors.of(surl)
        for follower in followers:
            follower.wake()
        if followers:
            outcome["followed_by"] = [follower.follow.table for follower in followers]
        elif any(self.mirrors.has_ended(path, surl) for path in (name, mirror_path(surl))):
            # Its server still notifies this one, but an operator has ended the following.
            outcome["ignored"]["surl"] = "it is not followed any more"
        elif self._peers.trusts(surl):
            table = mirror_path(surl)
            await self.mirrors.follow(table, surl, base=base)
            outcome["followed_by"] = [table]
        else:
            outcome["ignored"]["surl"] = NOT_A_PEER

    def _is_own(self, surl: Target, base: str) -> bool:
        return surl.origin in (base, self._public_origin)

    def _own_table(self, surl: Target) -> str | None:
        """Return the path of the table of this server that a SURL names."""
        if not surl.path.startswith(TABLES):
            return None
        try:
            table = parse_stream_path(surl.path[len(TABLES) :].encode())
        except PenstockError:
            return None
        return table if self.mirrors.lookup(table) is not None else None

    def _table_of(self, name: str, event: str) -> str | None:
        """Return the table that an event at a NURL means: one below its name, or of its name."""
        for path in (f"{name}/{event}", name):
            if self.mirrors.lookup(path) is not None:
                return path
        return None

    # -- listeners

    async def _register(self, table: str, event: str, nurl: Target, surl: str) -> None:
        listener = Listener(table=table, nurl=nurl.url, surl=surl, event=event)
        before = self.registry.listeners.get(listener.key)
        if before is None:
            self._check_room(nurl)
        elif before.state == "active":
            listener = before  # Registered before: its first SURL stays.
        await self.registry.put(listener)
        self._listen(listener)

    def _check_room(self, nurl: Target) -> None:
        settings, registry = self._settings, self.registry
        if (
            len(registry.listeners) >= settings.notify_listeners_max
            or registry.listener_hosts[nurl.host] >= settings.notify_listeners_per_peer_max
        ):
            raise TooManyPeers(
                "There are as many listeners as this server allows; see notify_listeners_max and "
                "notify_listeners_per_peer_max."
            )

    def _listen(self, listener: Listener) -> None:
        table = self.mirrors.lookup(listener.table)
        if listener.state != "active" or table is None:
            return
        watch = self._watches.get(listener.table)
        if watch is None:
            watch = self._watches[listener.table] = _Watch(self, listener.table, table.stream)
            self._engine.watch(table.stream, watch)
        watch.keys.add(listener.key)
        self.notifier.notify(listener)

    def changed(self, watch: _Watch) -> None:
        """Notify all listeners of a table."""
        for key in list(watch.keys):
            listener = self.registry.listeners.get(key)
            if listener is None or listener.state != "active":
                watch.keys.discard(key)
            else:
                self.notifier.notify(listener)

    def ended(self, watch: _Watch) -> None:
        """Forget a deleted table: one that is created at its path starts from SeqNo 1."""
        self._watches.pop(watch.table, None)
        for key in watch.keys:
            self.registry.last_notified.pop(key, None)

    async def _last_seqno(self, path: str) -> int:
        return (await self._tables.find(path, touch=False).extent()).last


def _origin(public_url: str) -> str:
    if not public_url:
        return ""
    try:
        return parse_url(public_url).origin
    except InvalidUrl as error:
        raise InvalidSetting(f"public_url: {error.detail}") from None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("the registry cannot be loaded", exc_info=task.exception())


class _Watch:
    """Watches one table for all its listeners."""

    __slots__ = ("_hub", "keys", "stream", "table")

    def __init__(self, hub: NotifyHub, table: str, stream: Stream) -> None:
        self._hub = hub
        self.table = table
        self.stream = stream
        self.keys: set[str] = set()

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self._hub.changed(self)

    def ended(self) -> None:
        self._hub.ended(self)
