"""Which subscriptions an append is news for: patterns by index, paths by table.

A subscription waits for a path until something is behind its cursor there, and again once that is
acked: an append to a stream whose subscribers all know there is work costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.log.mutations import Append, Create, Delete
from penstock.protocol.globs import PatternIndex
from penstock.protocol.subscription import RESERVED
from penstock.subscriptions.model import Link, Subscription

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

ROUTES_MAX: Final = 100_000
"""Paths whose subscribers are remembered; found again through the index when forgotten."""

_OWN: Final = RESERVED + "/"


class Matching:
    """`noticed` is called when a subscription has something new to do, `unlinked` when a stream
    that it had a link to is gone, `made` when a stream comes to be."""

    def __init__(
        self,
        engine: Engine,
        *,
        noticed: Callable[[Subscription], None],
        unlinked: Callable[[Subscription, str], None],
        made: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._noticed = noticed
        self._unlinked = unlinked
        self._made = made
        self._patterns: PatternIndex[Subscription] = PatternIndex()
        self._members: dict[str, dict[Subscription, None]] = {}
        self._waiting: dict[str, dict[Subscription, None]] = {}
        self._count = 0
        self._recordings: list[set[str]] = []

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
        """The subscription has an explicit link to a path."""
        self._members.setdefault(path, {})[subscription] = None
        self._waiting.pop(path, None)

    def leave(self, subscription: Subscription, path: str) -> None:
        members = self._members.get(path)
        if members is not None:
            members.pop(subscription, None)
            if not members:
                del self._members[path]
        self._waiting.pop(path, None)

    def record(self, paths: set[str]) -> None:
        """Note all paths that move from now on, until `stop_recording`."""
        self._recordings.append(paths)
        self._listen()

    def stop_recording(self, paths: set[str]) -> None:
        self._recordings = [each for each in self._recordings if each is not paths]
        self._listen()

    def close(self) -> None:
        self._engine.listen(None)

    def _listen(self) -> None:
        wanted = self._count or self._recordings
        self._engine.listen(self.committed if wanted else None)

    def subscribers(self, path: str) -> dict[Subscription, None]:
        """Everybody whose pattern or list a path is in."""
        if path.startswith(_OWN):
            return {}
        found = {
            each: None for each in self._patterns.find(path) if each.config.wake_stream != path
        }
        found.update(self._members.get(path, {}))
        return found

    # -- what happens

    def committed(self, batch: Sequence[Mutation]) -> None:
        """The log has this: runs within every commit, so what is known already costs a lookup."""
        waiting = self._waiting
        for mutation in batch:
            kind = type(mutation)
            if kind is Append:
                assert mutation.stream is not None
                path = mutation.stream.path
                subscribers = waiting.get(path)
                if subscribers is None:
                    subscribers = self._route(path)
                if subscribers:
                    self._notice(mutation.stream, subscribers)
            elif kind is Create:
                assert mutation.stream is not None
                self._created(mutation.stream)
            elif kind is Delete:
                assert mutation.stream is not None
                self._ended(mutation.stream.path)
        for paths in self._recordings:
            paths.update(each.stream.path for each in batch if each.stream is not None)

    def look(self, subscription: Subscription, stream: Stream) -> None:
        """See whether there is something new in a stream for one subscription."""
        path = stream.path
        if path not in subscription.pending:
            self._notice(stream, {subscription: None})
            if path in subscription.pending and path in self._waiting:
                self._waiting[path].pop(subscription, None)

    def settled(self, subscription: Subscription, path: str) -> None:
        """Everything at a path is acked: the next append is news."""
        subscription.pending.pop(path, None)
        waiting = self._waiting.get(path)
        if waiting is not None:
            waiting[subscription] = None

    def _route(self, path: str) -> dict[Subscription, None]:
        if len(self._waiting) >= ROUTES_MAX:
            self._waiting.clear()
        found = {each: None for each in self.subscribers(path) if path not in each.pending}
        self._waiting[path] = found
        return found

    def _notice(self, stream: Stream, waiting: dict[Subscription, None]) -> None:
        path, tail = stream.path, stream.tail
        for subscription in list(waiting):
            position = subscription.position(stream)
            if tail <= position:
                continue
            del waiting[subscription]
            subscription.pending[path] = None
            if path not in subscription.links:
                subscription.links[path] = Link()
            self._noticed(subscription)

    def _created(self, stream: Stream) -> None:
        """Whatever was at the path before, this is another stream."""
        subscribers = self.subscribers(stream.path)
        for subscription in subscribers:
            subscription.pending.pop(stream.path, None)
            link = subscription.links.get(stream.path)
            if link is not None:
                subscription.links[stream.path] = Link(explicit=link.explicit)
        if subscribers:
            self._waiting.pop(stream.path, None)
            self._notice(stream, self._route(stream.path))
        self._made(stream.path)

    def _ended(self, path: str) -> None:
        self._waiting.pop(path, None)
        for subscription in self.subscribers(path):
            subscription.pending.pop(path, None)
            if path in subscription.links:
                self._unlinked(subscription, path)
