"""The life of a wake: issued when there is work, told, claimed or delivered, acked, expired.

Every change is written to the book in the step that makes it; nothing is told to a worker before
that is durable. Time comes from a clock that is passed in, and `tick` acts on it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.errors import PenstockError, ServerError
from penstock.log.requests import Append
from penstock.protocol.subscription import WEBHOOK, StreamView
from penstock.subscriptions.model import IDLE, Link, Subscription, Wake, view
from penstock.subscriptions.store import Book, link_row, wake_row

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.subscriptions.matching import Matching

KEEP_AGAIN_S: Final = 1.0
"""Time until something is written again that the log could not take."""

ISSUED_PER_TURN: Final = 200
"""Wakes issued before everybody else has a turn: an append can be news for very many."""

_JSON: Final = "application/json"
_log = logging.getLogger("penstock.subscriptions")


class Acked(NamedTuple):
    """A position of a stream up to which everything is processed."""

    path: str
    stream: int
    position: int


class Waking:
    """`deliver` is called with a webhook's subscription when its wake may be sent; `withdraw` when
    it must not be any more, and says whether it was on its way."""

    def __init__(self, engine: Engine, settings: Settings, book: Book, *, clock: Clock) -> None:
        self._engine = engine
        self._snapshot_max = settings.subscription_snapshot_max
        self._book = book
        self._clock = clock
        self.matching: Matching
        self.deliver: Callable[[Subscription], None]
        self.withdraw: Callable[[Subscription], bool]
        self.everybody: Callable[[], Iterable[Subscription]]
        self._due: dict[Subscription, None] = {}
        self._untold: dict[str, dict[Subscription, None]] = {}
        self._deadlines: list[tuple[int, int, Subscription]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.counts: Counter[str] = Counter()

    # -- issuing

    def due(self, subscription: Subscription) -> None:
        """There is work: wake it, unless it is awake. Together with others of the same turn."""
        if subscription.is_idle and not self._closed:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._issue)
            self._due[subscription] = None

    def _issue(self) -> None:
        due = list(itertools.islice(self._due, ISSUED_PER_TURN))
        for subscription in due:
            del self._due[subscription]
        if self._due:
            asyncio.get_running_loop().call_soon(self._issue)
        woken = [each for each in due if each.is_idle and each.pending and not each.deleted]
        if not woken or self._closed:
            return
        for subscription in woken:
            self.next_wake(subscription)
        # Before the rows that say so: a crash in between tells it again.
        self.tell([each for each in woken if each.config.type != WEBHOOK])
        kept = self.keep(woken)
        for subscription in woken:
            if subscription.config.type == WEBHOOK:
                kept.add_done_callback(_after(self.deliver, subscription))

    def next_wake(self, subscription: Subscription) -> None:
        before = subscription.wake
        wake_id = f"w_{secrets.token_urlsafe(12)}"
        # What failed before is remembered: another failure waits longer still.
        subscription.wake = Wake(before.generation + 1, wake_id, attempts=before.attempts)
        self.counts["wakes"] += 1

    def tell(self, subscriptions: Iterable[Subscription]) -> None:
        """Write the wake events of pull-wake subscriptions, as soon as there is a stream for them.

        Those of one stream are one append: an event can wake very many."""
        by_path: dict[str, list[Subscription]] = {}
        for subscription in subscriptions:
            assert subscription.config.wake_stream is not None
            by_path.setdefault(subscription.config.wake_stream, []).append(subscription)
        for path, woken in by_path.items():
            self._tell(path, woken)

    def _tell(self, path: str, woken: list[Subscription]) -> None:
        now_ms = self._clock.now_us() // 1000
        events = [
            {
                "type": "wake",
                "subscription_id": subscription.id,
                "stream": next(iter(subscription.pending), ""),
                "generation": subscription.wake.generation,
                "ts": now_ms,
            }
            for subscription in woken
        ]
        request = Append(msgspec.json.encode(events), _JSON, False, None, None, None)
        try:
            written = self._engine.append(path, request)
        except PenstockError as error:
            if path not in self._untold:
                _log.warning("cannot write the wakes of %s: %s", woken[0].id, error.detail)
            self._untold.setdefault(path, {}).update(dict.fromkeys(woken))
            if isinstance(error, ServerError):
                self._later(lambda: self.made(path))
            return
        written.add_done_callback(lambda done: self._told(woken, path, done))
        for subscription in woken:
            subscription.wake = replace(subscription.wake, told=True)

    def _told(self, woken: list[Subscription], path: str, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is not None:
            for subscription in woken:
                subscription.wake = replace(subscription.wake, told=False)
            self._untold.setdefault(path, {}).update(dict.fromkeys(woken))
            self._later(lambda: self.made(path))

    def made(self, path: str) -> None:
        """A stream came to be: perhaps one that wakes were waiting for."""
        untold = [
            each
            for each in self._untold.pop(path, {})
            if self._is_unclaimed(each) and not each.wake.told
        ]
        for index in range(0, len(untold), ISSUED_PER_TURN):
            told = untold[index : index + ISSUED_PER_TURN]
            self._tell(path, told)
            self.keep(told)

    def _is_unclaimed(self, subscription: Subscription) -> bool:
        wake = subscription.wake
        return bool(wake.wake_id) and not wake.holder and not subscription.deleted

    # -- keeping

    def keep(
        self, subscriptions: list[Subscription], paths: Iterable[str] = ()
    ) -> asyncio.Future[None]:
        """Write the wakes as they are now, and the links to `paths`; done when that is durable,
        however long it takes."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keep(subscriptions, tuple(paths), kept)
        for subscription in subscriptions:
            self.arm(subscription)
        return kept

    def _keep(
        self, subscriptions: list[Subscription], paths: tuple[str, ...], kept: asyncio.Future[None]
    ) -> None:
        alive = [each for each in subscriptions if not each.deleted]
        if not alive:
            kept.cancel()
            return
        rows = [link_row(each, path) for each in alive for path in paths]
        written = self._book.write(rows + [wake_row(each) for each in alive])

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None:
                if not kept.done():
                    kept.set_result(None)
                self._book.rewrite_if_long(self.everybody())
            elif not self._closed:
                _log.warning("cannot keep the wakes of subscriptions: %s", error)
                self._later(lambda: self._keep(alive, paths, kept))

        written.add_done_callback(done)

    async def write(self, subscription: Subscription, paths: Iterable[str]) -> None:
        """Make cursors and the wake durable before somebody is told so."""
        rows = [link_row(subscription, path) for path in paths]
        self.arm(subscription)
        await self._book.write([*rows, wake_row(subscription)])
        self._book.rewrite_if_long(self.everybody())

    def _later(self, call: Callable[[], None]) -> None:
        if not self._closed:
            asyncio.get_running_loop().call_later(
                KEEP_AGAIN_S, lambda: None if self._closed else call()
            )

    # -- cursors

    def ack(self, subscription: Subscription, acks: Iterable[Acked]) -> list[str]:
        """Advance cursors; the paths of those that have moved."""
        moved = []
        for ack in acks:
            link = subscription.links.get(ack.path)
            stream = self.find(ack.path)
            if link is None or stream is None or stream.id != ack.stream:
                continue  # gone since
            if link.stream != ack.stream or ack.position > link.position:
                subscription.links[ack.path] = Link(ack.stream, ack.position, link.explicit)
                moved.append(ack.path)
            if stream.tail <= subscription.position(stream):
                self.matching.settled(subscription, ack.path)
        self.counts["acks"] += len(moved)
        return moved

    def rest(self, subscription: Subscription) -> bool:
        """The wake is over; whether another one follows at once."""
        subscription.wake = replace(IDLE, generation=subscription.wake.generation)
        self.matching.catch_up(subscription)
        if subscription.pending:
            self.due(subscription)
        return bool(subscription.pending)

    def snapshot(self, subscription: Subscription) -> list[StreamView]:
        """The streams of a wake: those with work first, and not more than fit."""
        self.matching.catch_up(subscription)
        paths = dict(itertools.islice(subscription.pending.items(), self._snapshot_max))
        for path in subscription.links:
            if len(paths) >= self._snapshot_max:
                break
            paths[path] = None
        token = self._engine.token
        return [view(subscription, path, self.find(path), token) for path in paths]

    def find(self, path: str) -> Stream | None:
        try:
            return self._engine.find(path, touch=False)
        except PenstockError:
            return None  # it may be gone but for its forks

    # -- time

    def lease(self, subscription: Subscription) -> int:
        """The end of a lease that begins now."""
        return self._clock.now_us() + subscription.config.lease_ttl_ms * 1000

    def extend(self, subscription: Subscription) -> None:
        """Somebody is at work: the lease begins anew, and what failed before is forgotten."""
        lease_us = self.lease(subscription)
        subscription.wake = replace(
            subscription.wake, attempts=0, retry_us=0, lease_us=lease_us, told=True
        )

    def arm(self, subscription: Subscription) -> None:
        """See to it that the wake's deadline is looked at when it comes."""
        deadline = subscription.wake.deadline_us
        if deadline and not subscription.deleted and not self._closed:
            heapq.heappush(self._deadlines, (deadline, next(self._order), subscription))
            if self._timer is None or self._deadlines[0][0] == deadline:
                self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines and not self._closed:
            wait_s = (self._deadlines[0][0] - self._clock.now_us()) / 1_000_000
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.001), self.tick)

    def tick(self) -> None:
        """Act on every deadline that has passed."""
        if not self._deadlines:
            return
        now = self._clock.now_us()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, subscription = heapq.heappop(self._deadlines)
            if subscription.wake.deadline_us == deadline and not subscription.deleted:
                self._expired(subscription)
        self._set_timer()

    def _expired(self, subscription: Subscription) -> None:
        wake = subscription.wake
        if wake.retry_us:
            subscription.wake = replace(wake, retry_us=0)
            if wake.wake_id:
                self.deliver(subscription)
            elif subscription.pending:
                self.due(subscription)
            else:
                self.rest(subscription)
                self.keep([subscription])
            return
        self.counts["expired"] += 1
        if subscription.config.type == WEBHOOK and self.withdraw(subscription):
            return  # it did not answer in time, which is a failure and waits as one
        if not self.rest(subscription):
            self.keep([subscription])

    def resume(self, subscription: Subscription) -> None:
        """Take up a wake that was there before the last stop."""
        wake = subscription.wake
        self.arm(subscription)
        if wake.wake_id and subscription.config.type == WEBHOOK:
            if not wake.told and not wake.retry_us:
                # Perhaps once more: the answer was not heard, and its lease is over with the call.
                subscription.wake = replace(wake, lease_us=0)
                self.deliver(subscription)
        elif wake.wake_id and not wake.holder and not wake.told:
            self.tell([subscription])
            self.keep([subscription])

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def _after(
    deliver: Callable[[Subscription], None], subscription: Subscription
) -> Callable[[asyncio.Future[None]], None]:
    def call(kept: asyncio.Future[None]) -> None:
        if not kept.cancelled() and not subscription.deleted:
            deliver(subscription)

    return call
