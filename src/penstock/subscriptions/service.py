"""Subscriptions as a resource: created, read, changed, deleted, and resumed after a stop.

Changes memory and queues the rows in one step; a change that cannot be written is undone. Knows no
HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import (
    EgressRefused,
    InvalidSubscription,
    InvalidUrl,
    NotOwner,
    PublicUrlNotSet,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    WebhookRefused,
)
from penstock.protocol.globs import literal_prefix
from penstock.protocol.headers import format_expires_at, is_json
from penstock.protocol.offsets import Offset
from penstock.protocol.subscription import RESERVED, WEBHOOK, Config
from penstock.protocol.wakes import Delete, Wake, token_generation
from penstock.subscriptions.keys import Key, Keys
from penstock.subscriptions.model import Link, Row, Subscription, view
from penstock.subscriptions.slices import in_slices
from penstock.subscriptions.store import SubscriptionStore, end_row, link_row
from penstock.subscriptions.streams import LocalStreams, Streams
from penstock.subscriptions.wakes import Wakes
from penstock.subscriptions.webhooks import PREFIX
from penstock.subscriptions.workers import Workers, no_token

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.stream import StreamInfo

PAGE: Final = 500
"""Streams looked at in one turn of the event loop."""

COVER_AGAIN_S: Final = 0.5
"""Time between two attempts to reach all processes that have streams."""

NOBODY: Final = "nobody"
"""The scope of a token that no subscription has."""

BASES_SHOWN_MAX: Final = 5
"""URLs that one line of the log names."""

_log = logging.getLogger("penstock.subscriptions")


class Subscriptions:
    """The subscriptions of one server. Await `ready` before using it."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        egress: Egress,
        *,
        clock: Clock,
        streams: Streams | None = None,
    ) -> None:
        streams = streams or LocalStreams(engine)
        self._streams = streams
        self._settings = settings
        self._egress = egress
        self._clock = clock
        self.store = SubscriptionStore(engine, settings, streams)
        self.keys = Keys(self.store, settings, clock=clock)
        self.wakes = Wakes(streams, settings, self.store, self.keys, egress, clock=clock)
        self.workers = Workers(streams, self.store, self.wakes)
        self.matching = self.wakes.matching
        self.webhooks = self.wakes.webhooks
        self._busy: dict[str, asyncio.Future[Any]] = {}
        self._loading: asyncio.Task[None] | None = None
        self._scans: set[asyncio.Task[None]] = set()

    @property
    def all(self) -> dict[str, Subscription]:
        """The subscriptions by their id."""
        return self.store.all

    # -- start and end

    def start(self) -> None:
        """Resume the subscriptions that are stored, if there are any."""
        if self.store.exists:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(_log_failure)

    async def _load(self) -> None:
        await self.store.load()
        for subscription in self.all.values():
            self.matching.add(subscription)
        self._warn_of_hosts()
        # In the background: it may look at every stream of the server.
        self._begin_scan(list(self.all.values()))

    @property
    def _knows_its_url(self) -> bool:
        """Whether callback URLs need not rest on the Host of a request; in development they may."""
        return bool(self._settings.public_url) or self._settings.development

    def _warn_of_hosts(self) -> None:
        """Log the webhooks of earlier versions, whose callback URL is the Host of their creator."""
        if self._knows_its_url:
            return
        bases = sorted({each.row.base for each in self.all.values() if each.config.webhook_url})
        if bases:
            _log.warning(
                "webhooks are called with callback URLs at %s, as the Host of a request said; set "
                "public_url to the URL of this server",
                ", ".join(bases[:BASES_SHOWN_MAX]),
            )

    def _begin_scan(self, subscriptions: list[Subscription]) -> None:
        scan = asyncio.get_running_loop().create_task(self._scan(subscriptions))
        self._scans.add(scan)
        scan.add_done_callback(self._scans.discard)
        scan.add_done_callback(_log_failure)

    async def _scan(self, subscriptions: list[Subscription]) -> None:
        """Notice what was appended and not acked while nobody listened; then resume the wakes."""
        wakes = [(each, each.wake) for each in subscriptions]
        await self._cover_all(subscriptions)
        for subscription in subscriptions:
            async for path, link in in_slices(list(subscription.links.items())):
                if link.explicit:
                    await self._streams.fetch(path)
                    self.wakes.look(subscription, path)
        for prefix in _prefixes(subscriptions):
            async for page in self._pages(prefix):
                for info in page:
                    self._look_at(info)
                await asyncio.sleep(0)
        for subscription, wake in wakes:
            # Only those that have not changed meanwhile: a new wake needs no help.
            if subscription.wake is wake and not subscription.deleted:
                self.wakes.resume(subscription)

    async def _cover_all(self, subscriptions: list[Subscription]) -> None:
        """Know the streams of stored subscriptions, as soon as those who have them are there."""
        while True:
            try:
                for subscription in subscriptions:
                    await self._cover(subscription.config, subscription.links)
            except NotOwner:
                await asyncio.sleep(COVER_AGAIN_S)
            else:
                return

    async def _cover(self, config: Config, paths: Iterable[str]) -> None:
        """Know all streams that a subscription is about, also those of other processes."""
        pattern, wakes = config.pattern, config.wake_stream
        await self._streams.cover(
            () if pattern is None else (pattern,), (*paths, *(() if wakes is None else (wakes,)))
        )

    def _look_at(self, info: StreamInfo) -> None:
        for subscription in self.matching.subscribers(info.path):
            link = subscription.links.get(info.path)
            position = link.position if link is not None and link.stream == info.id else 0
            if info.tail > position:
                self.wakes.look(subscription, info.path)

    async def ready(self) -> None:
        """Wait until the stored subscriptions are loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    async def scanned(self) -> None:
        """Wait until everything is noticed that was appended while nobody listened."""
        await self.ready()
        if self._scans:
            await asyncio.wait(self._scans)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        for scan in self._scans:
            scan.cancel()
        self.wakes.close()
        self.store.close()

    # -- the resource

    async def put(self, id: str, config: Config, base: str) -> tuple[Subscription, bool]:
        """Create a subscription unless it exists; return it, and whether it is new.

        `base` is the URL of this server as the client knows it.
        """
        await self._cover(config, config.streams)
        await self._settled(id)
        existing = self.all.get(id)
        if existing is not None:
            if existing.config.hash != config.hash:
                raise SubscriptionExists(
                    f"The subscription {id!r} exists with another configuration; delete it first, "
                    "or use another id."
                )
            await self.store.caught_up()
            return existing, False
        self._check(config)
        busy = self._busy[id] = asyncio.get_running_loop().create_future()
        try:
            return await self._create(
                Row(id=id, config=config, created_us=self._clock.now_us(), base=base)
            ), True
        finally:
            del self._busy[id]
            busy.set_result(None)

    async def _settled(self, id: str) -> None:
        """Wait while a subscription is being created or deleted."""
        await self.ready()
        while id in self._busy:
            await asyncio.wait([self._busy[id]])

    def _check(self, config: Config) -> None:
        if len(self.all) + len(self._busy) >= self._settings.subscriptions_max:
            raise TooManySubscriptions(
                "There are as many subscriptions as subscriptions_max allows; delete one first."
            )
        if config.webhook_url is not None:
            try:
                self._egress.check(config.webhook_url)
            except (EgressRefused, InvalidUrl) as error:
                raise WebhookRefused(error.detail) from None
            if not self._knows_its_url:
                raise PublicUrlNotSet(
                    "The receiver of a webhook needs the URL of this server to call it back, and "
                    "the Host of a request can be forged. Set public_url (--public-url), or use a "
                    "pull-wake subscription."
                )
        if config.wake_stream is not None:
            stream = self.wakes.find(config.wake_stream)
            if stream is not None and not is_json(stream.config.content_type):
                raise InvalidSubscription(
                    f"{config.wake_stream!r} is a stream of {stream.config.content_type}; wakes "
                    "need a stream of application/json."
                )

    async def _create(self, row: Row) -> Subscription:
        await self.store.ensure()
        if row.config.type == WEBHOOK:
            await self.keys.renew()
        subscription = Subscription(row)
        changed: set[str] = set()
        self.matching.record(changed)
        try:
            if row.config.pattern is not None:
                await self._link_existing(subscription, row.config.pattern)
            tails = await self._tails(row.config.streams)
            for path in row.config.streams:
                _link(subscription, path, tails)
            with self.store.drafting():
                rows = await self.store.draft(subscription)
                # In one step from here: no append is missed, and none before is replayed.
                self.all[row.id] = subscription
                self.matching.add(subscription)
                written = self.store.write(rows, undo=lambda: self._drop(subscription))
        finally:
            self.matching.stop_recording(changed)
        for path in changed:
            if subscription in self.matching.subscribers(path):
                self.wakes.look(subscription, path)
        await written
        return subscription

    async def _link_existing(self, subscription: Subscription, pattern: str) -> None:
        async for page in self._pages(literal_prefix(pattern)):
            for info in page:
                if subscription.matches(info.path) and not info.path.startswith(f"{RESERVED}/"):
                    subscription.links[info.path] = Link(info.id, info.tail)
            if len(subscription.links) > self._settings.subscription_streams_max:
                raise TooManySubscriptions(
                    f"{pattern!r} matches more streams than subscription_streams_max allows; use a "
                    "narrower pattern."
                )
            await asyncio.sleep(0)

    async def _pages(self, prefix: str) -> AsyncIterator[list[StreamInfo]]:
        after = ""
        while page := await self._streams.list_streams(prefix, after, PAGE):
            yield page
            after = page[-1].path

    async def _tails(self, paths: Iterable[str]) -> dict[str, Link]:
        """Return explicit links to the streams that exist at these paths, at their tails."""
        tails: dict[str, Link] = {}
        async for path in in_slices(paths):
            await self._streams.fetch(path)
            stream = self.wakes.find(path)
            if stream is not None:
                tails[path] = Link(stream.id, stream.tail, True)
        return tails

    async def rotate_key(self) -> Key:
        """Replace the key that webhooks are signed with; return the next one."""
        await self.ready()
        await self.store.ensure()
        return await self.keys.rotate()

    async def get(self, id: str) -> Subscription:
        await self._settled(id)
        subscription = self.all.get(id)
        if subscription is None:
            raise not_subscribed(id)
        return subscription

    async def get_by_token(self, id: str, token: str) -> Subscription:
        """Return the subscription that a token of a wake is for.

        Without such a token nobody learns anything, not even whether there is a subscription.
        """
        await self._settled(id)
        subscription = self.all.get(id)
        # Compared in either case: the time that it takes must not tell either.
        scope = NOBODY if subscription is None else subscription.scope
        generation = token_generation(self.store.secret, scope, token)
        if subscription is None or generation is None:
            raise no_token()
        return subscription

    async def delete(self, id: str) -> None:
        await self._settled(id)
        subscription = self.all.get(id)
        if subscription is None:
            return
        wake = subscription.wake
        self._drop(subscription)
        written = self.store.write(
            [end_row(subscription)], undo=lambda: self._revive(subscription, wake)
        )
        if not written.done():
            # Until then nobody can tell whether the subscription is there.
            self._busy[id] = written
            written.add_done_callback(lambda done: self._deleted(id, done))
        await asyncio.shield(written)

    def _deleted(self, id: str, written: asyncio.Future[Any]) -> None:
        del self._busy[id]
        if not written.cancelled():
            written.exception()  # Whoever asked for it may have gone.

    def _drop(self, subscription: Subscription) -> None:
        del self.all[subscription.id]
        self.matching.remove(subscription)
        self.wakes.advance(subscription, Delete())
        subscription.deleted = True

    def _revive(self, subscription: Subscription, wake: Wake) -> None:
        """Take back a deletion that could not be written."""
        subscription.deleted = False
        self.all[subscription.id] = subscription
        self.matching.add(subscription)
        self.wakes.restore(subscription, wake)
        self._begin_scan([subscription])

    # -- membership

    async def add_members(self, id: str, paths: Collection[str]) -> None:
        """Link streams explicitly, at their tails."""
        subscription = await self.get(id)
        if subscription.config.wake_stream in paths:
            raise InvalidSubscription("A subscription cannot be woken by its own wake stream.")
        await self._streams.cover((), paths)
        changed: set[str] = set()
        self.matching.record(changed)
        try:
            tails = await self._tails(paths)
            # Again: that took time. In one step from here.
            subscription = await self.get(id)
            # What its pattern covers already has a cursor, which a tail would move over messages.
            self.matching.catch_up(subscription)
            before = self._join(subscription, paths, tails)
        finally:
            self.matching.stop_recording(changed)
        for path in changed.intersection(before):
            self.wakes.look(subscription, path)
        await self._write_links(subscription, before)

    def _join(
        self, subscription: Subscription, paths: Collection[str], tails: Mapping[str, Link]
    ) -> dict[str, Link | None]:
        """Link the paths that are not linked explicitly; return the links that they had before."""
        links = subscription.links
        before = {
            path: links.get(path) for path in paths if path not in links or not links[path].explicit
        }
        streams_max = self._settings.subscription_streams_max
        if len(links) + sum(link is None for link in before.values()) > streams_max:
            raise TooManySubscriptions(
                f"{subscription.id!r} would have more streams than subscription_streams_max "
                f"allows ({streams_max}); use another subscription for some of them."
            )
        for path in before:
            _link(subscription, path, tails)
            self.matching.join(subscription, path)
        return before

    async def remove_member(self, id: str, *paths: str) -> None:
        """Remove the explicit link to the first of these paths that has one."""
        subscription = await self.get(id)
        links = subscription.links
        path = next((each for each in paths if each in links and links[each].explicit), None)
        if path is None:
            await self.store.caught_up()
            return
        existing = links[path]
        self.matching.leave(subscription, path)
        if subscription.matches(path):
            links[path] = Link(existing.stream, existing.position)
        else:
            del links[path]
            subscription.pending.pop(path, None)
        await self._write_links(subscription, {path: existing})

    async def _write_links(
        self, subscription: Subscription, before: Mapping[str, Link | None]
    ) -> None:
        """Write the links that have changed; put back those of `before` if that fails."""
        if not before:
            await self.store.caught_up()
            return
        after = {path: subscription.links.get(path) for path in before}

        def undo() -> None:
            for path, link in before.items():
                if subscription.links.get(path) is after[path]:
                    self._restore_link(subscription, path, link)

        rows = [link_row(subscription, path) for path in before]
        await self.store.write(rows, undo=undo)

    def _restore_link(self, subscription: Subscription, path: str, link: Link | None) -> None:
        self.matching.leave(subscription, path)
        subscription.restore_link(path, link)
        if link is None:
            subscription.pending.pop(path, None)
            return
        if link.explicit and not subscription.deleted:
            self.matching.join(subscription, path)
        self.wakes.look(subscription, path)

    # -- documents

    async def show(self, subscription: Subscription, base: str) -> dict[str, Any]:
        """Return the document of a subscription; `base` is this server's URL for the reader."""
        self.matching.catch_up(subscription)
        # Encoded in slices: it may have very many streams.
        streams: list[bytes] = []
        async for path, link in in_slices(list(subscription.links.items())):
            entry = {
                "path": path,
                "link_type": "explicit" if link.explicit else "glob",
                "acked_offset": self._acked_offset(subscription, path, link),
            }
            streams.append(msgspec.json.encode(entry))
        listing = msgspec.Raw(b"[%b]" % b",".join(streams))
        return self._describe(subscription, base, listing)

    def summary(self, subscription: Subscription, base: str) -> dict[str, Any]:
        """Return the document of a subscription with the number of its streams."""
        self.matching.catch_up(subscription)
        return self._describe(subscription, base, len(subscription.links))

    def _describe(
        self, subscription: Subscription, base: str, streams: msgspec.Raw | int
    ) -> dict[str, Any]:
        return describe(subscription, self.keys.active, base or subscription.row.base, streams)

    def _acked_offset(self, subscription: Subscription, path: str, link: Link) -> str:
        if link.stream and not self._streams.restore_generation:
            # Without the stream: it may be one of very many, and not in memory.
            return Offset(link.stream, link.position).token
        stream = self.wakes.find(path)
        return view(subscription, path, stream, self._streams.token).acked_offset


def not_subscribed(id: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(
        f"There is no subscription {id!r}; PUT one to {PREFIX}subscriptions/{id}."
    )


def describe(
    subscription: Subscription, key: Key | None, base: str, streams: msgspec.Raw | int
) -> dict[str, Any]:
    """Return a subscription as the protocol describes it.

    `key` signs its webhooks; `streams` are its links as JSON, or their number. The members after
    `description` are an extension of the protocol.
    """
    config, wake = subscription.config, subscription.wake
    webhook = None
    if config.webhook_url is not None:
        signing = {
            "alg": "ed25519",
            "kid": None if key is None else key.kid,
            "jwks_url": f"{base}{PREFIX}jwks.json",
        }
        webhook = {"url": config.webhook_url, "signing": signing}
    return {
        "id": subscription.id,
        "subscription_id": subscription.id,
        "type": config.type,
        "pattern": config.pattern,
        "streams": streams,
        "webhook": webhook,
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": format_expires_at(subscription.row.created_us),
        "status": subscription.status,
        "description": config.description,
        "generation": wake.generation,
        "holder": wake.holder or None,
        "pending": len(subscription.pending),
        "attempts": wake.attempts,
        "next_attempt_at": format_expires_at(wake.retry_us) if wake.retry_us else None,
    }


def _link(subscription: Subscription, path: str, tails: Mapping[str, Link]) -> None:
    """Link a stream explicitly, at its tail; a cursor that exists stays."""
    existing = subscription.links.get(path)
    if existing is None:
        subscription.links[path] = tails.get(path, Link(explicit=True))
    else:
        subscription.links[path] = Link(existing.stream, existing.position, True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("subscriptions cannot be resumed", exc_info=task.exception())


def _prefixes(subscriptions: Iterable[Subscription]) -> list[str]:
    """Return starts of paths that together cover all patterns, none within another."""
    patterns = {each.config.pattern for each in subscriptions} - {None}
    prefixes: list[str] = []
    for prefix in sorted(literal_prefix(pattern) for pattern in patterns if pattern is not None):
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    return prefixes
