"""Which subscriptions an append is news for: patterns by index, paths by table.

A subscription waits for a path until something is after its cursor there, and again once that is
acked. A commit only marks the stream, if anybody waits: the subscribers are notified in later turns
of the event loop, so that an append costs one lookup, however many they are.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.log.mutations import AppendMutation, CreateMutation, DeleteMutation
from penstock.protocol.globs import PatternIndex
from penstock.protocol.subscription import RESERVED
from penstock.subscriptions.model import Link, Subscription
from penstock.subscriptions.streams import Change, Streams

if TYPE_CHECKING:
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

ROUTES_MAX: Final = 100_000
"""Paths whose subscribers are cached; the index has them all."""

NOTICED_PER_TURN: Final = 200
"""Subscriptions notified in one turn of the event loop: an append can be news for very many."""

_OWN: Final = RESERVED + "/"


class Observer(Protocol):
    """Learns what commits mean for subscriptions."""

    def noticed(self, subscription: Subscription) -> None:
        """A subscription has new work."""

    def unlinked(self, subscriptions: list[Subscription], path: str) -> None:
        """The stream at `path`, which these subscriptions have links to, was deleted."""

    def created(self, path: str) -> None:
        """A stream was created at `path`."""


class Matching:
    """The subscriptions by what they listen to; tells `observer` what concerns them."""

    def __init__(self, streams: Streams, observer: Observer) -> None:
        self._streams = streams
        self._observer = observer
        self._patterns: PatternIndex[Subscription] = PatternIndex()
        self._members: dict[str, dict[Subscription, None]] = {}
        self._waiting: dict[str, dict[Subscription, None]] = {}
        self._count = 0
        self._recordings: list[set[str]] = []
        self._news: dict[str, Stream] = {}
        self._current: Stream | None = None
        self._turns: Iterator[None] | None = None
        self._closed = False
        streams.follow(self.changed_elsewhere)

    # -- who subscribes

    def add(self, subscription: Subscription) -> None:
        self._count += 1
        pattern = subscription.config.pattern
        if pattern is not None:
            self._patterns.add(pattern, subscription)
            self._waiting.clear()
        for path, link in subscription.links.items():
            if link.explicit:
                self.join(subscription, path)
        self._listen()

    def remove(self, subscription: Subscription) -> None:
        self._count -= 1
        pattern = subscription.config.pattern
        if pattern is not None:
            self._patterns.remove(pattern, subscription)
        for path, link in subscription.links.items():
            if link.explicit:
                self.leave(subscription, path)
        self._waiting.clear()
        self._listen()

    def join(self, subscription: Subscription, path: str) -> None:
        """Add the explicit link of a subscription to a path."""
        self._members.setdefault(path, {})[subscription] = None
        self._waiting.pop(path, None)

    def leave(self, subscription: Subscription, path: str) -> None:
        """Remove the explicit link of a subscription to a path."""
        members = self._members.get(path)
        if members is not None:
            members.pop(subscription, None)
            if not members:
                del self._members[path]
        self._waiting.pop(path, None)

    def record(self, paths: set[str]) -> None:
        """Add all paths that change from now on to `paths`, until `stop_recording`."""
        self._recordings.append(paths)
        self._listen()

    def stop_recording(self, paths: set[str]) -> None:
        self._recordings = [each for each in self._recordings if each is not paths]
        self._listen()

    def close(self) -> None:
        self._closed = True
        self._streams.unlisten(self.committed)

    def _listen(self) -> None:
        if self._count or self._recordings:
            self._streams.listen(self.committed)
        else:
            self._streams.unlisten(self.committed)

    def subscribers(self, path: str) -> dict[Subscription, None]:
        """Return the subscriptions whose pattern or list covers a path."""
        if path.startswith(_OWN):
            return {}
        subscribers = {
            each: None for each in self._patterns.find(path) if each.config.wake_stream != path
        }
        subscribers.update(self._members.get(path, {}))
        return subscribers

    # -- commits

    def committed(self, batch: Sequence[Mutation]) -> None:
        """Mark what a commit has changed. It runs in every commit: the usual case is one lookup."""
        waiting = self._waiting
        for mutation in batch:
            kind = type(mutation)
            if kind is AppendMutation:
                if waiting.get(mutation.stream.path, True):
                    self._mark(mutation.stream)
            elif kind is CreateMutation:
                self._created(mutation.stream)
            elif kind is DeleteMutation:
                self._ended(mutation.stream.path)
        for paths in self._recordings:
            paths.update(each.stream.path for each in batch)

    def changed_elsewhere(self, change: Change, stream: Stream) -> None:
        """Mark what a commit of another process has changed."""
        if self._closed:
            return
        if change is Change.APPENDED:
            if self._waiting.get(stream.path, True):
                self._mark(stream)
        elif change is Change.CREATED:
            self._created(stream)
        else:
            self._ended(stream.path)
        for paths in self._recordings:
            paths.add(stream.path)

    def _mark(self, stream: Stream) -> None:
        """Notify the subscribers of a stream soon; whether there are any may still be unknown."""
        self._news[stream.path] = stream
        if self._turns is None:
            self._turns = self._notify()
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        turns, self._turns = self._turns, None
        if turns is None or self._closed:
            return
        for _ in turns:
            self._turns = turns
            asyncio.get_running_loop().call_soon(self._turn)
            return

    def _notify(self) -> Iterator[None]:
        """Notify the subscribers that wait for marked streams, some in each turn."""
        count = itertools.count(1)
        while self._news:
            path = next(iter(self._news))
            stream = self._current = self._news.pop(path)
            waiting = self._waiting_for(path)
            for subscription in list(waiting):
                if self._current is not stream:
                    break  # The stream was deleted.
                if self._waiting.get(path) is not waiting:
                    self._news.setdefault(path, stream)  # Other subscribers wait now.
                    break
                self._notice(stream, waiting, subscription)
                if next(count) % NOTICED_PER_TURN == 0:
                    yield
            self._current = None
            if next(count) % NOTICED_PER_TURN == 0:
                yield

    def catch_up(self, subscription: Subscription) -> None:
        """Notify one subscription at once, so that whoever asks about it sees every commit that was
        answered before."""
        marked = list(self._news.values())
        if self._current is not None:
            marked.append(self._current)
        for stream in marked:
            self._notice(stream, self._waiting_for(stream.path), subscription)

    def look(self, subscription: Subscription, stream: Stream) -> None:
        """Notice what one subscriber of a stream has after its cursor."""
        self._notice(stream, self._waiting_for(stream.path), subscription)

    def settled(self, subscription: Subscription, path: str) -> None:
        """Let a subscription wait for a path again: everything there is acked."""
        subscription.pending.pop(path, None)
        waiting = self._waiting.get(path)
        if waiting is not None:
            waiting[subscription] = None

    def _waiting_for(self, path: str) -> dict[Subscription, None]:
        """Return the subscribers of a path that have nothing pending there."""
        waiting = self._waiting.get(path)
        if waiting is None:
            if len(self._waiting) >= ROUTES_MAX:
                self._waiting.clear()
            waiting = {each: None for each in self.subscribers(path) if path not in each.pending}
            self._waiting[path] = waiting
        return waiting

    def _notice(
        self, stream: Stream, waiting: dict[Subscription, None], subscription: Subscription
    ) -> None:
        if subscription not in waiting or stream.tail <= subscription.position(stream):
            return
        path = stream.path
        del waiting[subscription]
        subscription.pending[path] = None
        if path not in subscription.links:
            subscription.links[path] = Link()
        self._observer.noticed(subscription)

    def _created(self, stream: Stream) -> None:
        """Reset the links to a path: the new stream is another one than any before."""
        subscribers = self.subscribers(stream.path)
        for subscription in subscribers:
            subscription.pending.pop(stream.path, None)
            link = subscription.links.get(stream.path)
            if link is not None:
                subscription.links[stream.path] = Link(explicit=link.explicit)
        self._forget(stream.path)
        if subscribers:
            self._mark(stream)
        self._observer.created(stream.path)

    def _forget(self, path: str) -> None:
        self._waiting.pop(path, None)
        self._news.pop(path, None)
        if self._current is not None and self._current.path == path:
            self._current = None

    def _ended(self, path: str) -> None:
        self._forget(path)
        linked = [each for each in self.subscribers(path) if path in each.links]
        for subscription in linked:
            subscription.pending.pop(path, None)
        if linked:
            self._observer.unlinked(linked, path)
