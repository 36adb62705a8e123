"""The Notify hub: registers listeners and follows sources, as Notify requests ask for it.

Decides by the registry and by which peers are trusted; notifying and following are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.config.setting import InvalidSetting
from penstock.errors import InvalidUrl, PenstockError, TooManyPeers
from penstock.protocol.headers import parse_stream_path
from penstock.protocol.outbound import Target, parse_url, shown_url
from penstock.stp.server.mirrors import Mirrors
from penstock.stp.server.notifier import Notifier
from penstock.stp.server.nurls import Nurls
from penstock.stp.server.peers import TABLES, Peers, mirror_path
from penstock.stp.server.registry import (
    FOLLOWED,
    PART_PATH,
    PATH,
    Listener,
    Registry,
    Waiting,
)

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
        owns: Callable[[str], bool] | None = None,
    ) -> None:
        self._engine = engine
        self._owns = owns
        self._settings = settings
        self._clock = clock
        self._tables = tables
        tables.on_declared = self._declared
        self._peers = Peers(settings)
        self._public_origin = _origin(settings.public_url)
        self.registry = Registry(engine, indexer, path=PATH if owns is None else PART_PATH)
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
            public_origin=self._public_origin,
            is_alone=owns is None,
        )
        self.nurls = Nurls(self.registry, self.mirrors, self.notifier, clock=clock)
        self._watches: dict[str, _Watch] = {}
        self._loading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
        await self._fulfil(list(self.registry.waiting.values()))

    async def ready(self) -> None:
        """Wait until the stored entries are loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def owns(self, path: str) -> bool:
        """Whether a table at a path would be in this process."""
        return self._owns is None or self._owns(path)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        for task in self._tasks:
            task.cancel()
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
        await self._forget_expired()
        self.notices += 1
        ignored = dict.fromkeys(notice.ignored, "no event has such a name")
        outcome: dict[str, Any] = {"ignored": ignored}
        surl, is_own = notice.surl, False
        own = None
        if surl is not None and self._is_own(surl, base):
            is_own, own = True, _own_path(surl)
            if own is None or self.mirrors.lookup(own) is None:
                ignored["surl"] = "there is no such table here"
        elif surl is not None:
            await self._news(name, notice, base, outcome)
        source = None if is_own else surl
        for callback in notice.callbacks:
            if callback.event == FOLLOWED and source is not None:
                continue  # `_news` has answered it.
            if not self._peers.trusts(callback.nurl):
                ignored[callback.event] = NOT_A_PEER
            elif is_own and own is None:
                ignored[callback.event] = "no table here is meant by it"
            elif not base and not is_own:
                ignored[callback.event] = "this server does not know its own URL; set public_url"
            else:
                waiting = Waiting(
                    name=name,
                    event=callback.event,
                    nurl=callback.nurl.url,
                    expires_us=self._expires_us(),
                    tables=(own,) if own else (f"{name}/{callback.event}", name),
                    source=source.url if source else "",
                    surl=surl.url if is_own and surl else "",
                    base=base,
                )
                await self._advertised(waiting, outcome)
        self.ignored += len(ignored)
        return outcome

    async def _news(self, name: str, notice: Notice, base: str, outcome: dict[str, Any]) -> None:
        """Read a SURL of another server that may have new rows, if it is or may be followed; tell
        the NURLs that ask for it that it is followed."""
        surl = notice.surl
        assert surl is not None
        ignored = outcome["ignored"]
        asking = [each for each in notice.callbacks if each.event == FOLLOWED]
        if asking and not all(self._peers.trusts(each.nurl) for each in asking):
            ignored[FOLLOWED] = NOT_A_PEER
            asking = [each for each in asking if self._peers.trusts(each.nurl)]
        nurls = tuple(each.nurl.url for each in asking)
        tables = [follower.follow.table for follower in self.mirrors.of(surl)]
        if not tables:
            if any(self.mirrors.has_ended(path, surl) for path in (name, mirror_path(surl))):
                # Its server still notifies this one, but an operator has ended the following.
                ignored["surl"] = "it is not followed any more"
            elif not self._peers.trusts(surl):
                ignored["surl"] = NOT_A_PEER
            elif not self._settings.notify_follow:
                ignored["surl"] = "an operator decides which tables are followed here"
            elif not self.owns(mirror_path(surl)):
                ignored["surl"] = "another worker of this server follows it"
            else:
                tables = [mirror_path(surl)]
        for table in tables:
            await self.mirrors.follow(table, surl, base=base, followed=nurls)
        if tables:
            outcome["followed_by"] = tables
        for nurl in nurls:
            outcome.setdefault("told_of" if tables else "waiting", {})[FOLLOWED] = surl.url
            if not tables:
                waiting = Waiting(
                    name=name,
                    event=FOLLOWED,
                    nurl=nurl,
                    expires_us=self._expires_us(),
                    source=surl.url,
                )
                await self._wait(waiting)

    # -- NURLs that wait for a table

    async def _advertised(self, waiting: Waiting, outcome: dict[str, Any]) -> None:
        """Register a NURL for the table that it means, or let it wait for that table."""
        table = next((path for path in waiting.tables if self.mirrors.lookup(path)), None)
        if table is None:
            await self._wait(waiting)
            outcome.setdefault("waiting", {})[waiting.event] = list(waiting.tables)
            return
        await self._register(waiting, table)
        outcome.setdefault("told_of", {})[waiting.event] = table

    async def _wait(self, waiting: Waiting) -> None:
        """Store a NURL until its table appears; a repeat begins its time again."""
        settings, registry = self._settings, self.registry
        host = waiting.host
        if waiting.key not in registry.waiting and (
            len(registry.waiting) >= settings.notify_waiting_max
            or registry.waiting_hosts[host] >= settings.notify_waiting_per_peer_max
        ):
            raise TooManyPeers(
                "As many NURLs wait for tables as this server allows; see notify_waiting_max and "
                "notify_waiting_per_peer_max."
            )
        await registry.put(waiting)
        # The table may have been declared meanwhile.
        await self._fulfil([waiting])

    def _declared(self, stream: Stream) -> None:
        """Notify listeners of a table that is there again, and register those that waited."""
        paths = {view.path for view in self._tables.of(stream)}
        for listener in list(self.registry.listeners.values()):
            if listener.table in paths:
                self._listen(listener)
        waiting = [
            each for each in self.registry.waiting.values() if not paths.isdisjoint(each.tables)
        ]
        if waiting:
            task = asyncio.get_running_loop().create_task(self._fulfil(waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(_log_failure)

    async def _fulfil(self, waiting: list[Waiting]) -> None:
        """Register the NURLs whose table is there now. A crash between the two writes leaves an
        entry that the next start registers again, which changes nothing."""
        now_us = self._clock.now_us()
        for each in waiting:
            table = next((path for path in each.tables if self.mirrors.lookup(path)), None)
            if table is None or each.expires_us <= now_us:
                continue
            try:
                await self._register(each, table)
            except TooManyPeers as error:
                nurl = shown_url(each.nurl)
                _log.warning("%s cannot be notified of %s: %s", nurl, table, error.detail)
            else:
                await self.registry.remove(each)

    async def _forget_expired(self) -> None:
        now_us = self._clock.now_us()
        for each in list(self.registry.waiting.values()):
            if each.expires_us <= now_us:
                await self.registry.remove(each)

    def _expires_us(self) -> int:
        return self._clock.now_us() + int(self._settings.notify_waiting_s * 1_000_000)

    def _is_own(self, surl: Target, base: str) -> bool:
        return surl.origin in (base, self._public_origin)

    # -- listeners

    async def _register(self, waiting: Waiting, table: str) -> None:
        """Make a NURL a listener of a table."""
        listener = Listener(
            table=table,
            nurl=waiting.nurl,
            surl=waiting.surl or f"{waiting.base}{TABLES}{table}",
            event=waiting.event,
            source=waiting.source,
        )
        before = self.registry.listeners.get(listener.key)
        if before is None:
            self._check_room(waiting.host)
        elif before.state == "active":
            listener = before  # Registered before: its first SURL stays.
        await self.registry.put(listener)
        self._listen(listener)

    def _check_room(self, host: str) -> None:
        settings, registry = self._settings, self.registry
        if (
            len(registry.listeners) >= settings.notify_listeners_max
            or registry.listener_hosts[host] >= settings.notify_listeners_per_peer_max
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


def _own_path(surl: Target) -> str | None:
    """Return the path of the table of this server that a SURL names, there or not."""
    if not surl.path.startswith(TABLES):
        return None
    try:
        return parse_stream_path(surl.path[len(TABLES) :].encode())
    except PenstockError:
        return None


def _origin(public_url: str) -> str:
    if not public_url:
        return ""
    try:
        return parse_url(public_url).origin
    except InvalidUrl as error:
        raise InvalidSetting(f"public_url: {error.detail}") from None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("the registry cannot be read or written", exc_info=task.exception())


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
