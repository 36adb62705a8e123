"""Which subscriptions an append is news for: patterns by index, paths by table.

A subscription waits for a path until something is behind its cursor there, and again once that is
acked. A commit only marks the stream, if anybody waits: subscribers are told in turns afterwards,
so that an append costs a lookup, however many they are.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.log.mutations import AppendMutation, CreateMutation, DeleteMutation
from penstock.protocol.globs import PatternIndex
from penstock.protocol.subscription import RESERVED
from penstock.subscriptions.model import Link, Subscription

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.stream import Stream

ROUTES_MAX: Final = 100_000
"""Paths whose subscribers are remembered; found again through the index when forgotten."""

TOLD_PER_TURN: Final = 200
"""Subscriptions told before everybody else has a turn: an append can be news for very many."""

_OWN: Final = RESERVED + "/"


class Matching:
    """`noticed` is called when a subscription has something new to do, `unlinked` with those that
    had a link to a stream that is gone, `made` when a stream comes to be."""

    def __init__(
        self,
        engine: Engine,
        *,
        noticed: Callable[[Subscription], None],
        unlinked: Callable[[list[Subscription], str], None],
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
        self._news: dict[str, Stream] = {}
        self._telling: Stream | None = None
        self._turns: Iterator[None] | None = None
        self._closed = False

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
        self._closed = True
        self._engine.unlisten(self.committed)

    def _listen(self) -> None:
        if self._count or self._recordings:
            self._engine.listen(self.committed)
        else:
            self._engine.unlisten(self.committed)

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
            if kind is AppendMutation:
                assert mutation.stream is not None
                if waiting.get(mutation.stream.path, True):
                    self._mark(mutation.stream)
            elif kind is CreateMutation:
                assert mutation.stream is not None
                self._created(mutation.stream)
            elif kind is DeleteMutation:
                assert mutation.stream is not None
                self._ended(mutation.stream.path)
        for paths in self._recordings:
            paths.update(each.stream.path for each in batch if each.stream is not None)

    def _mark(self, stream: Stream) -> None:
        """There is news for somebody who waits, or perhaps: nobody has looked for subscribers."""
        self._news[stream.path] = stream
        if self._turns is None:
            self._turns = self._tell()
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        turns, self._turns = self._turns, None
        if turns is None or self._closed:
            return
        for _ in turns:
            self._turns = turns
            asyncio.get_running_loop().call_soon(self._turn)
            return

    def _tell(self) -> Iterator[None]:
        """Tell whoever waits for what is marked, a few a turn."""
        count = itertools.count(1)
        while self._news:
            path = next(iter(self._news))
            stream = self._telling = self._news.pop(path)
            waiting = self._waiting_for(path)
            for subscription in list(waiting):
                if self._telling is not stream:
                    break  # it is gone
                if self._waiting.get(path) is not waiting:
                    self._news.setdefault(path, stream)  # others wait now
                    break
                self._notice(stream, waiting, subscription)
                if next(count) % TOLD_PER_TURN == 0:
                    yield
            self._telling = None
            if next(count) % TOLD_PER_TURN == 0:
                yield

    def catch_up(self, subscription: Subscription) -> None:
        """Tell one subscription at once: whoever asks for it knows of what was answered before."""
        marked = list(self._news.values())
        if self._telling is not None:
            marked.append(self._telling)
        for stream in marked:
            self._notice(stream, self._waiting_for(stream.path), subscription)

    def look(self, subscription: Subscription, stream: Stream) -> None:
        """See whether there is something new in a stream for one of its subscribers."""
        self._notice(stream, self._waiting_for(stream.path), subscription)

    def settled(self, subscription: Subscription, path: str) -> None:
        """Everything at a path is acked: the next append is news."""
        subscription.pending.pop(path, None)
        waiting = self._waiting.get(path)
        if waiting is not None:
            waiting[subscription] = None

    def _waiting_for(self, path: str) -> dict[Subscription, None]:
        """The subscribers of a path that know of nothing new there."""
        found = self._waiting.get(path)
        if found is None:
            if len(self._waiting) >= ROUTES_MAX:
                self._waiting.clear()
            found = {each: None for each in self.subscribers(path) if path not in each.pending}
            self._waiting[path] = found
        return found

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
        self._noticed(subscription)

    def _created(self, stream: Stream) -> None:
        """Whatever was at the path before, this is another stream."""
        subscribers = self.subscribers(stream.path)
        for subscription in subscribers:
            subscription.pending.pop(stream.path, None)
            link = subscription.links.get(stream.path)
            if link is not None:
                subscription.links[stream.path] = Link(explicit=link.explicit)
        self._forget(stream.path)
        if subscribers:
            self._mark(stream)
        self._made(stream.path)

    def _forget(self, path: str) -> None:
        self._waiting.pop(path, None)
        self._news.pop(path, None)
        if self._telling is not None and self._telling.path == path:
            self._telling = None

    def _ended(self, path: str) -> None:
        self._forget(path)
        linked = [each for each in self.subscribers(path) if path in each.links]
        for subscription in linked:
            subscription.pending.pop(path, None)
        if linked:
            self._unlinked(linked, path)
