"""One process, or one shard, as a part of a server: its App, and everything between it and the
others. What decides about ownership brings its owners."""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.http.elsewhere import Elsewhere
from penstock.http.forwarding.all_streams import AllStreams
from penstock.http.forwarding.changes import ChangeFeeds
from penstock.http.forwarding.control import Control
from penstock.http.forwarding.credentials import SharedCredentials
from penstock.http.forwarding.gather import Gatherer
from penstock.http.forwarding.homes import Homes
from penstock.http.forwarding.listed import ListedElsewhere
from penstock.http.forwarding.listing_feed import ListingFeeds
from penstock.http.forwarding.many import MergedLive
from penstock.http.forwarding.path_links import PathLinks
from penstock.http.forwarding.peers import Peers
from penstock.http.forwarding.quota_share import SharedQuotas
from penstock.http.forwarding.routed_app import PeerApp, RoutedApp
from penstock.http.forwarding.shared_links import SharedLinks
from penstock.http.forwarding.shares import Shares
from penstock.http.forwarding.tails import Tails

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.app import App
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.log.engine import Engine
    from penstock.log.system_stream import Event


class Part:
    """What one part knows of the others. `first` is the one that keeps what there is once, None for
    this one. `attach` makes it a part of the server."""

    def __init__(
        self, settings: Settings, owners: Owners, forwarder: Forwarder, first: Peer | None
    ) -> None:
        self._settings = settings
        self.owners = owners
        self.forwarder = forwarder
        self._first = first
        self._control = Control()
        self._peers = Peers(owners, forwarder)

    def elsewhere(self, engine: Engine) -> Elsewhere:
        """Return what the App of this part has to know of the others."""
        self._streams = AllStreams(
            engine, self.owners, self.forwarder, self._peers, first=self._first
        )
        listed = ListedElsewhere(self.owners, self.forwarder)
        return Elsewhere(self._streams, self._owns, self.owners.name, listed)

    def _owns(self, path: str) -> bool:
        return self.owners.owner(path) is None

    async def attach(self, app: App) -> None:
        """Stand before an App: `public` answers clients, `private` the other parts."""
        settings, owners, forwarder = self._settings, self.owners, self.forwarder
        control, peers = self._control, self._peers
        links = PathLinks(app.engine)
        await links.load()
        homes = self._homes = Homes(
            app.engine, links, peers, forwarder, control, path_bytes_max=settings.path_bytes_max
        )
        self._streams.locate = homes.locate
        ChangeFeeds(app.engine, control)
        self._listings = ListingFeeds(app.engine, control)
        self._tails = Tails(app.engine, app.streams.reads, settings, app.traffic, control)
        self._quotas = SharedQuotas(app.engine, owners, peers, control, self._first)
        self._credentials = SharedCredentials(app.tokens, peers, control, self._first)
        self._shared_links = SharedLinks(
            app.engine, app.hub, homes, owners, peers, control, self._first
        )
        if self._first is not None:
            app.audit.send = self._send_audit
        control.add("audit", app.audit.take)
        control.add("subscription-secret", partial(_secret, app))
        control.add("table", partial(_has_table, app))
        gatherer = Gatherer(owners, forwarder)
        shares = Shares(
            owners,
            gatherer,
            MergedLive(owners, forwarder, app.readers, settings, homes.locate),
            first=lambda: self._first,
            on_changed=self._credentials.push,
            caught_up=self._streams.caught_up,
            has_table=partial(self._has_table, app),
        )
        self.public = RoutedApp(app, owners, forwarder, homes, gatherer, shares)
        self.private = PeerApp(app, owners, forwarder.hops, homes, control, shares)

    async def join(self) -> None:
        """Learn what other parts store; before clients are served."""
        await self._credentials.fetch()
        await self._quotas.join()
        self._homes.start()
        self._shared_links.start()

    def drain(self) -> None:
        """Let other parts follow the streams elsewhere."""
        self._listings.close()
        self._tails.drain()

    def close(self) -> None:
        self.drain()
        self._shared_links.close()
        self._quotas.close()
        self._homes.close()
        self._streams.close()
        self.forwarder.close()

    async def _has_table(self, app: App, name: str, path: str) -> bool:
        peer = self.owners.peer(name)
        if peer is None:
            return await _has_table(app, path)
        return bool(await self._peers.ask(peer, "table", path))

    def _send_audit(self, events: list[Event]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._audit_elsewhere(events))

    async def _audit_elsewhere(self, events: list[Event]) -> None:
        assert self._first is not None
        await self._peers.ask(self._first, "audit", events)


async def _secret(app: App, question: Any) -> str:
    """Return the key of the tokens of subscriptions, which all parts share."""
    store = app.subscriptions.store
    await store.ensure()
    return b2a_base64(store.secret, newline=False).decode()


async def _has_table(app: App, path: str) -> bool:
    """Whether a table is declared at a path here."""
    try:
        app.tables.find(path, touch=False)
    except PenstockError:
        return False
    return True
