"""All subscriptions, in memory and as a state stream that the server alone reads and writes.

Every row is the whole of what it describes, so that a row written twice is harmless and the stream
can be rewritten from memory at any time. Rows are queued in the step that changes memory: a crash
leaves a state of the past, and a write that fails is undone in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.log.requests import Appended
from penstock.log.rewriter import Rewriter
from penstock.log.system_stream import Event, SystemStream, Undo
from penstock.protocol.wakes import Wake
from penstock.subscriptions.model import Link, Row, Subscription
from penstock.subscriptions.streams import LocalStreams, Streams

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PATH: Final = "__ds/subscriptions"
SECRET: Final = "subscription-secret"  # noqa: S105 - the name of a value, not the value
LINKS_PER_APPEND: Final = 500
"""Links of a draft in one append, so that other appends have their turn."""

SUBSCRIPTION: Final = "subscription"
WAKE: Final = "wake"
LINK: Final = "link"
DRAFT: Final = "draft"


class Draft(msgspec.Struct, frozen=True):
    """Some links of a subscription whose own row has not been written yet: it may never be."""

    created_us: int
    links: dict[str, Link]


class SubscriptionStore:
    """`all` has the subscriptions by their id; `secret` is the key of their tokens."""

    def __init__(self, engine: Engine, settings: Settings, streams: Streams | None = None) -> None:
        self._streams = streams or LocalStreams(engine)
        self._stream = SystemStream(engine, PATH, prepare=self._prepare)
        self.rewriter = Rewriter(
            engine, self._stream, self._rows, log_bytes=settings.subscription_log_bytes
        )
        self._drafts = 0
        self.all: dict[str, Subscription] = {}
        self.secret = b""

    @property
    def exists(self) -> bool:
        return self._stream.exists

    @property
    def undone(self) -> int:
        """The number of changes that could not be written and were undone."""
        return self._stream.undone

    # -- reading

    async def load(self) -> None:
        """Read all subscriptions back after a start."""
        stream = self._stream.find()
        self.secret = stream.meta.get(SECRET, b"")
        self.rewriter.loaded()
        subscriptions: dict[str, Subscription] = {}
        drafts: dict[str, Draft] = {}
        async for events in self._stream.pieces():
            for event in events:
                _apply(subscriptions, drafts, event)
        self.all = subscriptions

    def meta(self, name: str) -> bytes | None:
        return self._stream.meta(name)

    # -- writing

    async def ensure(self) -> None:
        """Create the stream unless it is there."""
        await self._stream.ensure()

    async def _prepare(self, stream: Stream) -> None:
        secret = stream.meta.get(SECRET, b"")
        if not secret:
            secret = await self._streams.secret() or secrets.token_bytes(32)
            # Durable before it is used: after a restart nobody could tell its tokens from others.
            await self._stream.set_meta(SECRET, secret)
        self.secret = secret

    def set_meta(self, name: str, value: bytes) -> asyncio.Future[None]:
        return self._stream.set_meta(name, value)

    def write(self, events: list[Event], *, undo: Undo | None = None) -> asyncio.Future[Appended]:
        """Queue rows; the future is done when they are durable, or have failed and are undone."""
        return self._stream.write(events, undo=undo)

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """Keep the stream from being rewritten between drafts and the row that they belong to."""
        self._drafts += 1
        try:
            yield
        finally:
            self._drafts -= 1

    async def draft(self, subscription: Subscription) -> list[Event]:
        """Return the rows that create a subscription, all at once.

        If it has very many links they are written here, some at a time: they count when the rows
        are written.
        """
        if len(subscription.links) <= LINKS_PER_APPEND:
            return rows_of(subscription)
        links = iter(list(subscription.links.items()))
        while some := dict(itertools.islice(links, LINKS_PER_APPEND)):
            draft = Draft(created_us=subscription.row.created_us, links=some)
            await self.write([_row(DRAFT, subscription.id, draft)])
        return [subscription_row(subscription), wake_row(subscription)]

    async def caught_up(self) -> None:
        """Wait until memory, as it is now, is what a crash would leave; raise if it is undone."""
        await self._stream.caught_up()

    def rewrite_if_long(self) -> None:
        """Start the stream again with the current rows, if most of it is history."""
        if not self._drafts:
            self.rewriter.rewrite_if_long()

    def _rows(self) -> Iterator[Event]:
        # The list is made here and not in the task, which starts later: whoever is not in it is
        # written behind the start of the rewrite.
        return _current_rows(list(self.all.values()))

    def close(self) -> None:
        self.rewriter.close()


# -- rows


def subscription_row(subscription: Subscription) -> Event:
    return _row(SUBSCRIPTION, subscription.id, subscription.row)


def wake_row(subscription: Subscription) -> Event:
    return _row(WAKE, subscription.id, subscription.wake)


def link_row(subscription: Subscription, path: str) -> Event:
    """Return the row of a link. Paths have no spaces, so that the key can be split again."""
    return _row(LINK, f"{path} {subscription.id}", subscription.links.get(path))


def end_row(subscription: Subscription) -> Event:
    """Return the row that deletes a subscription with its links and its wake."""
    return _row(SUBSCRIPTION, subscription.id, None)


def rows_of(subscription: Subscription) -> list[Event]:
    """Return all rows of a subscription."""
    return list(_current_rows([subscription]))


def _current_rows(subscriptions: list[Subscription]) -> Iterator[Event]:
    """Yield all rows, each as it is when it is asked for."""
    for subscription in subscriptions:
        if not subscription.deleted:
            yield subscription_row(subscription)
            yield wake_row(subscription)
        for path in list(subscription.links):
            if not subscription.deleted:
                yield link_row(subscription, path)


def _row(kind: str, key: str, value: msgspec.Struct | None) -> Event:
    event: Event = {"type": kind, "key": key, "headers": {"operation": "upsert"}}
    if value is None:
        event["headers"] = {"operation": "delete"}
    else:
        event["value"] = value
    return event


def _apply(subscriptions: dict[str, Subscription], drafts: dict[str, Draft], event: Event) -> None:
    kind, key, value = event["type"], event["key"], event.get("value")
    if kind == DRAFT:
        draft = msgspec.convert(value, Draft)
        if key in drafts and drafts[key].created_us == draft.created_us:
            drafts[key].links.update(draft.links)
        else:
            drafts[key] = draft
        return
    if kind == SUBSCRIPTION:
        if value is None:
            subscriptions.pop(key, None)
            return
        row = msgspec.convert(value, Row)
        existing = subscriptions.get(key)
        if existing is not None and existing.row.created_us == row.created_us:
            existing.row = row
        else:
            subscriptions[key] = Subscription(row)
            links = drafts.pop(key, None)
            if links is not None and links.created_us == row.created_us:
                subscriptions[key].links.update(links.links)
        return
    path, _, id = key.partition(" ") if kind == LINK else ("", "", key)
    subscription = subscriptions.get(id)
    if subscription is None:
        return  # The subscription was deleted while this row was queued.
    if kind == WAKE:
        subscription.wake = msgspec.convert(value, Wake)
    elif value is None:
        subscription.links.pop(path, None)
    else:
        subscription.links[path] = msgspec.convert(value, Link)
