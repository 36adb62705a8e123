"""Everything that can be asked about subscriptions: made, read, changed, deleted, and what was
there before the last stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.errors import (
    EgressRefused,
    InvalidSubscription,
    InvalidUrl,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    WebhookRefused,
)
from penstock.protocol.globs import literal_prefix
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import Offset
from penstock.protocol.subscription import WEBHOOK, Config
from penstock.subscriptions.keys import Key, Keys
from penstock.subscriptions.matching import Matching
from penstock.subscriptions.model import Link, Row, Subscription, view
from penstock.subscriptions.showing import shown
from penstock.subscriptions.store import Book, end_row, link_row, rows_of, subscription_row
from penstock.subscriptions.wakes import Waking
from penstock.subscriptions.webhooks import PREFIX, Webhooks
from penstock.subscriptions.workers import Workers

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.stream import StreamInfo

PAGE: Final = 500
"""Streams looked at before everybody else has a turn."""

_log = logging.getLogger("penstock.subscriptions")


class Subscriptions:
    """One a server. `ready` before anything is asked of it."""

    def __init__(self, engine: Engine, settings: Settings, egress: Egress, *, clock: Clock) -> None:
        self._engine = engine
        self._settings = settings
        self._egress = egress
        self._clock = clock
        self.book = Book(engine, settings)
        self.keys = Keys(self.book, settings, clock=clock)
        self.waking = Waking(engine, settings, self.book, clock=clock)
        self.webhooks = Webhooks(settings, egress, self.book, self.keys, self.waking, clock=clock)
        self.workers = Workers(engine, self.book, self.waking, self.webhooks)
        self.matching = Matching(
            engine,
            noticed=self.waking.due,
            unlinked=self._unlinked,
            made=self.waking.made,
        )
        self.waking.matching = self.matching
        self.waking.deliver = self.webhooks.deliver
        self.waking.withdraw = self.webhooks.withdraw
        self.waking.everybody = lambda: self.all.values()
        self.all: dict[str, Subscription] = {}
        self._busy: dict[str, asyncio.Future[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    # -- start and end

    def start(self) -> None:
        """Take up what was there before the last stop, if anything was."""
        if self.book.exists:
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_say_why)

    async def _start(self) -> None:
        self.all = await self.book.load()
        for subscription in self.all.values():
            self.matching.add(subscription)
        # In the background: it may be a look at every stream there is.
        self._looking = asyncio.get_running_loop().create_task(self._look())
        self._looking.add_done_callback(_say_why)

    async def _look(self) -> None:
        """Find what was appended and not acked before the last stop; then go on waking."""
        subscriptions = list(self.all.values())
        wakes = [(each, each.wake) for each in subscriptions]
        for subscription in subscriptions:
            for path, link in list(subscription.links.items()):
                stream = self.waking.find(path) if link.explicit else None
                if stream is not None:
                    self.matching.look(subscription, stream)
        for prefix in _prefixes(subscriptions):
            for page in self._pages(prefix):
                for info in page:
                    self._look_at(info)
                await asyncio.sleep(0)
        for subscription, wake in wakes:
            # Only what nobody has touched meanwhile: new wakes see to themselves.
            if subscription.wake is wake and not subscription.deleted:
                self.waking.resume(subscription)

    def _look_at(self, info: StreamInfo) -> None:
        for subscription in self.matching.subscribers(info.path):
            link = subscription.links.get(info.path)
            position = link.position if link is not None and link.stream == info.id else 0
            if info.tail > position:
                stream = self.waking.find(info.path)
                if stream is not None:
                    self.matching.look(subscription, stream)

    async def ready(self) -> None:
        """Wait until what was there before is known."""
        if self._starting is not None:
            await asyncio.shield(self._starting)

    def close(self) -> None:
        for task in (self._starting, self._looking):
            if task is not None:
                task.cancel()
        self.matching.close()
        self.waking.close()
        self.webhooks.close()
        self.book.close()

    # -- the resource

    async def put(self, id: str, config: Config, base: str) -> tuple[Subscription, bool]:
        """The subscription, and whether it is new."""
        await self.ready()
        while id in self._busy:
            await asyncio.shield(self._busy[id])
        known = self.all.get(id)
        if known is not None:
            if known.config.hash != config.hash:
                raise SubscriptionExists(
                    f"The subscription {id!r} is there and differs; delete it first, or use "
                    "another id."
                )
            if base and base != known.row.base:
                # The server has moved: wakes name it as it is known now.
                known.row = replace(known.row, base=base)
                await self.book.write([subscription_row(known)])
            return known, False
        self._check(config)
        busy = self._busy[id] = asyncio.get_running_loop().create_future()
        try:
            return await self._create(
                Row(id=id, config=config, created_us=self._clock.now_us(), base=base)
            ), True
        finally:
            del self._busy[id]
            busy.set_result(None)

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
        if config.wake_stream is not None:
            stream = self.waking.find(config.wake_stream)
            if stream is not None and not is_json(stream.config.content_type):
                raise InvalidSubscription(
                    f"{config.wake_stream!r} is a stream of {stream.config.content_type}; wakes "
                    "are JSON."
                )

    async def _create(self, row: Row) -> Subscription:
        await self.book.made()
        if row.config.type == WEBHOOK:
            await self.keys.renew()
        subscription = Subscription(row)
        moved: set[str] = set()
        self.matching.record(moved)
        try:
            if row.config.pattern is not None:
                await self._link_existing(subscription, row.config.pattern)
            for path in row.config.streams:
                self._link(subscription, path)
            # In one step from here: no append is missed, and none before is replayed.
            self.all[row.id] = subscription
            self.matching.add(subscription)
            kept = self.book.write(rows_of(subscription))
        finally:
            self.matching.stop_recording(moved)
        for path in moved:
            if subscription in self.matching.subscribers(path):
                stream = self.waking.find(path)
                if stream is not None:
                    self.matching.look(subscription, stream)
        try:
            await kept
        except BaseException:
            self._drop(subscription)
            raise
        return subscription

    async def _link_existing(self, subscription: Subscription, pattern: str) -> None:
        for page in self._pages(literal_prefix(pattern)):
            for info in page:
                if subscription.matches(info.path) and not info.path.startswith("__ds/"):
                    subscription.links[info.path] = Link(info.id, info.tail)
            if len(subscription.links) > self._settings.subscription_streams_max:
                raise TooManySubscriptions(
                    f"{pattern!r} stands for more streams than subscription_streams_max allows."
                )
            await asyncio.sleep(0)

    def _pages(self, prefix: str) -> Iterator[list[StreamInfo]]:
        after = ""
        while page := self._engine.list_streams(prefix, after, PAGE):
            yield page
            after = page[-1].path

    def _link(self, subscription: Subscription, path: str) -> None:
        """Link a stream explicitly, at its tail; a cursor that is there already stays."""
        known = subscription.links.get(path)
        stream = self.waking.find(path)
        if known is not None:
            link = Link(known.stream, known.position, True)
        elif stream is not None:
            link = Link(stream.id, stream.tail, True)
        else:
            link = Link(explicit=True)
        subscription.links[path] = link

    async def rotate_key(self) -> Key:
        """Replace the key that webhooks are signed with, by the one that signs now or soon."""
        await self.ready()
        await self.book.made()
        return await self.keys.rotate()

    async def get(self, id: str) -> Subscription:
        await self.ready()
        found = self.all.get(id)
        if found is None:
            raise SubscriptionNotFound(
                f"There is no subscription {id!r}; PUT one to {PREFIX}subscriptions/{id}."
            )
        return found

    async def delete(self, id: str) -> None:
        await self.ready()
        while id in self._busy:
            await asyncio.shield(self._busy[id])
        subscription = self.all.get(id)
        if subscription is not None:
            row = end_row(subscription)
            self._drop(subscription)
            await self.book.write([row])

    def _drop(self, subscription: Subscription) -> None:
        subscription.deleted = True
        if self.all.get(subscription.id) is subscription:
            del self.all[subscription.id]
            self.matching.remove(subscription)
        self.webhooks.forget(subscription)

    # -- membership

    async def add_members(self, id: str, paths: Iterable[str]) -> None:
        subscription = await self.get(id)
        for path in paths:
            if path == subscription.config.wake_stream:
                raise InvalidSubscription("A subscription cannot be woken by its own wake stream.")
        changed = []
        for path in paths:
            known = subscription.links.get(path)
            if known is None or not known.explicit:
                self._link(subscription, path)
                self.matching.join(subscription, path)
                changed.append(path)
        if changed:
            await self.book.write([link_row(subscription, path) for path in changed])

    async def remove_member(self, id: str, *paths: str) -> None:
        """Take back the explicit link to the first of these paths that has one."""
        subscription = await self.get(id)
        links = subscription.links
        path = next((each for each in paths if each in links and links[each].explicit), None)
        if path is None:
            return
        known = links[path]
        self.matching.leave(subscription, path)
        if subscription.matches(path):
            subscription.links[path] = Link(known.stream, known.position)
        else:
            del subscription.links[path]
            subscription.pending.pop(path, None)
        await self.book.write([link_row(subscription, path)])

    def _unlinked(self, subscriptions: list[Subscription], path: str) -> None:
        """A stream is gone: one of the same name is another, and begins anew."""
        for subscription in subscriptions:
            if subscription.links[path].explicit:
                subscription.links[path] = Link(explicit=True)
            else:
                del subscription.links[path]
        self._keep_links(subscriptions, path)

    def _keep_links(self, subscriptions: list[Subscription], path: str) -> None:
        """Some a turn: a link to what is gone does no harm, as it names it by its number."""
        self.waking.keep(subscriptions[:PAGE], [path])
        if len(subscriptions) > PAGE:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._keep_links, subscriptions[PAGE:], path)

    def show(self, subscription: Subscription, base: str, *, links: bool = True) -> dict[str, Any]:
        """What readers see of it; `base` is this server as the reader knows it."""
        self.matching.catch_up(subscription)
        found = {
            path: self._acked(subscription, path, link)
            for path, link in subscription.links.items()
            if links
        }
        return shown(subscription, self.keys.active, base or subscription.row.base, found)

    def _acked(self, subscription: Subscription, path: str, link: Link) -> str:
        if link.stream:
            # Spelled without the stream: it may be one of very many, and not in memory.
            return Offset(link.stream, link.position).token
        stream = self.waking.find(path)
        return view(subscription, path, stream, self._engine.token).acked_offset


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("subscriptions are not taken up", exc_info=task.exception())


def _prefixes(subscriptions: Iterable[Subscription]) -> list[str]:
    """Starts of paths that together cover all patterns, none within another."""
    patterns = {each.config.pattern for each in subscriptions} - {None}
    found: list[str] = []
    for prefix in sorted(literal_prefix(pattern) for pattern in patterns if pattern is not None):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found
