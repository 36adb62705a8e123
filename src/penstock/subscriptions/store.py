"""What is kept of subscriptions: a state stream that the server alone reads and writes.

Every row is the whole of what it describes, so that a row written twice is harmless and the stream
can be rewritten from memory at any time. Rows are written in the same step as memory changes: a
crash leaves a moment of the past.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import PenstockError, StreamNotFound
from penstock.log import retention
from penstock.log.requests import Append, Appended
from penstock.protocol.json_mode import unframe
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.retention import FOREVER
from penstock.subscriptions.model import Link, Row, Subscription, Wake

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PATH: Final = "__ds/subscriptions"
SECRET: Final = "subscription-secret"  # noqa: S105 - the name of a value, not the value
PIECE_BYTES: Final = 256 * 1024
ROWS_PER_APPEND: Final = 500
"""Rows written anew before everybody else has a turn."""

SUBSCRIPTION: Final = "subscription"
WAKE: Final = "wake"
LINK: Final = "link"

_JSON: Final = "application/json"
_log = logging.getLogger("penstock.subscriptions")

Event = dict[str, Any]


class Book:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._log_bytes = settings.subscription_log_bytes
        self._rewritten_at = 0
        self._rewritten_bytes = 0
        self._making: asyncio.Future[None] | None = None
        self._rewriting: asyncio.Task[None] | None = None
        self._last: asyncio.Future[Appended] | None = None
        self.secret = b""

    @property
    def exists(self) -> bool:
        try:
            self._engine.find(PATH, touch=False)
        except StreamNotFound:
            return False
        return True

    # -- reading

    async def load(self) -> dict[str, Subscription]:
        """Everything that was there before."""
        engine = self._engine
        stream = engine.find(PATH, touch=False)
        self.secret = stream.meta.get(SECRET, b"")
        found: dict[str, Subscription] = {}
        start = self._rewritten_at = stream.earliest
        while start < stream.tail:
            end = await engine.plan(stream, start, max_bytes=PIECE_BYTES)
            wire = engine.read_now(stream, start, end)
            if wire is None:
                wire = await engine.read(stream, start, end)
            for event in msgspec.json.decode(unframe(wire), type=list[Event]):
                _apply(found, event)
            start = end
        return found

    def meta(self, name: str) -> bytes | None:
        try:
            return self._engine.find(PATH, touch=False).meta.get(name)
        except StreamNotFound:
            return None

    # -- writing

    async def made(self) -> None:
        """The stream, made when it is first needed."""
        if self._making is None or (self._making.done() and self._making.exception()):
            self._making = asyncio.ensure_future(self._make())
        await asyncio.shield(self._making)

    async def _make(self) -> None:
        engine = self._engine
        await engine.create(PATH, StreamConfig(_JSON, None, None), b"", closed=False)
        # A rule of retention for all streams must not take the cursors.
        await engine.set_meta(PATH, retention.META, retention.encode(FOREVER))
        if not self.secret:
            self.secret = engine.find(PATH, touch=False).meta.get(SECRET, b"")
        if not self.secret:
            self.secret = secrets.token_bytes(32)
            await engine.set_meta(PATH, SECRET, self.secret)

    def set_meta(self, name: str, value: bytes) -> asyncio.Future[None]:
        return self._engine.set_meta(PATH, name, value)

    def write(self, events: list[Event]) -> asyncio.Future[Appended]:
        """Queue rows; done when they are durable. What is queued behind is durable later."""
        body = msgspec.json.encode(events)
        request = Append(body, _JSON, False, None, None, None)
        try:
            self._last = self._engine.append(PATH, request)
            # Whoever waits may be cancelled; what is queued is written all the same.
            return asyncio.shield(self._last)
        except PenstockError as error:
            failed: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def caught_up(self) -> None:
        """Wait for what is queued now: then memory, as it is now, is what a crash would leave."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    def rewrite_if_long(self, subscriptions: Iterable[Subscription]) -> None:
        """Begin the stream anew with what there is now, if it is mostly history."""
        if self._rewriting is not None and not self._rewriting.done():
            return
        stream = self._engine.find(PATH, touch=False)
        start = self._engine.pending(stream).tail
        if start - self._rewritten_at > max(self._log_bytes, 2 * self._rewritten_bytes):
            # Here and not in the task, which begins later: whoever is not among these is written
            # behind `start`. So is what changes meanwhile; of two rows the later one holds.
            rows = _rows_anew(list(subscriptions))
            self._rewriting = asyncio.ensure_future(self._rewrite(stream, start, rows))

    async def _rewrite(self, stream: Stream, start: int, rows: Iterator[Event]) -> None:
        offset = self._engine.token(stream, start)
        try:
            while some := list(itertools.islice(rows, ROWS_PER_APPEND)):
                await self.write(some)
            self._rewritten_at = start
            self._rewritten_bytes = stream.tail - start
            await self._engine.trim(PATH, offset)
        except PenstockError as error:
            _log.warning("cannot shorten what is kept of subscriptions: %s", error.detail)

    def close(self) -> None:
        if self._rewriting is not None:
            self._rewriting.cancel()


# -- rows


def subscription_row(subscription: Subscription) -> Event:
    return _row(SUBSCRIPTION, subscription.id, subscription.row)


def wake_row(subscription: Subscription) -> Event:
    return _row(WAKE, subscription.id, subscription.wake)


def link_row(subscription: Subscription, path: str) -> Event:
    """Paths have no spaces, so that the key can be taken apart again."""
    return _row(LINK, f"{path} {subscription.id}", subscription.links.get(path))


def end_row(subscription: Subscription) -> Event:
    return _row(SUBSCRIPTION, subscription.id, None)


def rows_of(subscription: Subscription) -> list[Event]:
    return [
        subscription_row(subscription),
        wake_row(subscription),
        *(link_row(subscription, path) for path in subscription.links),
    ]


def _rows_anew(subscriptions: list[Subscription]) -> Iterator[Event]:
    """Each row as it is when it is asked for."""
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


def _apply(found: dict[str, Subscription], event: Event) -> None:
    kind, key, value = event["type"], event["key"], event.get("value")
    if kind == SUBSCRIPTION:
        if value is None:
            found.pop(key, None)
            return
        row = msgspec.convert(value, Row)
        known = found.get(key)
        if known is not None and known.row.created_us == row.created_us:
            known.row = row
        else:
            found[key] = Subscription(row)
        return
    path, _, name = key.partition(" ") if kind == LINK else ("", "", key)
    subscription = found.get(name)
    if subscription is None:
        return  # its end is in the log behind a row that was on its way
    if kind == WAKE:
        subscription.wake = msgspec.convert(value, Wake)
    elif value is None:
        subscription.links.pop(path, None)
    else:
        subscription.links[path] = msgspec.convert(value, Link)
