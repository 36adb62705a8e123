"""Carries out what `protocol.wakes` decides: issues wakes, announces them, stores them, keeps time.

Every change of a wake is queued for the store in the step that makes it, and nobody outside learns
of a wake before it is durable. Time comes from a clock that is passed in, and `tick` acts on it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError, ServerError
from penstock.log.lineage import is_generation
from penstock.log.requests import Append
from penstock.protocol.subscription import StreamView
from penstock.protocol.wakes import (
    Announced,
    AnnounceFailed,
    Deadline,
    Effect,
    Event,
    Extend,
    Finish,
    Issue,
    News,
    Phase,
    Resume,
    Step,
    Wake,
    decide,
    mint_token,
)
from penstock.subscriptions.matching import Matching
from penstock.subscriptions.model import AckedPosition, Link, Subscription, view
from penstock.subscriptions.store import SubscriptionStore, link_row, wake_row
from penstock.subscriptions.webhooks import Webhooks

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.stream import Stream
    from penstock.log.system_stream import Undo
    from penstock.subscriptions.keys import Keys
    from penstock.subscriptions.streams import Streams

SAVE_AGAIN_S: Final = 1.0
"""Time until something is written again that the log could not take."""

ISSUED_PER_TURN: Final = 200
"""Wakes issued in one turn of the event loop: an append can be news for very many."""

LINKS_PER_TURN: Final = 500
"""Links to a deleted stream that are written in one turn."""

_JSON: Final = "application/json"
_log = logging.getLogger("penstock.subscriptions")


class _Move(NamedTuple):
    """A link before and after an ack."""

    before: Link
    after: Link


class Wakes:
    """The wakes of all subscriptions. Owns what tells it of news and what calls webhooks."""

    def __init__(
        self,
        streams: Streams,
        settings: Settings,
        store: SubscriptionStore,
        keys: Keys,
        egress: Egress,
        *,
        clock: Clock,
    ) -> None:
        self._streams = streams
        self._snapshot_max = settings.subscription_snapshot_max
        self._store = store
        self._clock = clock
        self.matching = Matching(streams, self)
        self.webhooks = Webhooks(settings, egress, keys, self, clock=clock)
        self._due: dict[Subscription, None] = {}
        self._unannounced: dict[str, dict[Subscription, None]] = {}
        self._deadlines: list[tuple[int, int, Subscription]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.counts: Counter[str] = Counter()

    # -- steps

    def advance(self, subscription: Subscription, event: Event) -> Step:
        """Take a step of which nobody waits to hear; it is written until it is durable."""
        step = self._step(subscription, event)
        if step.effects:
            self._carry_out({subscription: step.effects})
        return step

    def commit(
        self, subscription: Subscription, event: Event, acks: Iterable[AckedPosition] = ()
    ) -> tuple[Step, asyncio.Future[Any]]:
        """Take a step that a worker asks for, with its acks.

        The future is done when the step is durable, and the worker is answered after that. If the
        step cannot be written, memory is put back and the error is raised there. A step that is
        refused has nothing to wait for. The next wake is issued when the step is durable: it would
        take the place of the one that a worker has if the step failed.
        """
        before = subscription.wake
        moves = self._ack(subscription, acks)
        self.matching.catch_up(subscription)
        step = self._step(subscription, event)
        undo = self._undo(subscription, before, step.wake, moves)
        if step.refusal is not None:
            if moves:
                undo()
            self._carry_out({subscription: step.effects})
            nothing = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return step, nothing
        rows = [link_row(subscription, path) for path in moves]
        subscription.unsettled += 1
        written = self._store.write([*rows, wake_row(subscription)], undo=undo)
        written.add_done_callback(partial(self._settled, subscription, len(moves)))
        # A worker that goes away cancels its own future only.
        return step, asyncio.shield(written)

    def _settled(self, subscription: Subscription, acks: int, written: asyncio.Future[Any]) -> None:
        subscription.unsettled -= 1
        if not written.cancelled() and written.exception() is None:
            self.counts["acks"] += acks
            self._store.rewrite_if_long()
        if not subscription.unsettled and not subscription.deleted:
            self.advance(subscription, News())

    def restore(self, subscription: Subscription, wake: Wake) -> None:
        """Put a wake back after a change that could not be written."""
        self._set(subscription, wake)

    def _step(self, subscription: Subscription, event: Event) -> Step:
        before = subscription.wake
        has_work = bool(subscription.pending)
        step = decide(before, event, kind=subscription.config.type, has_work=has_work)
        self._set(subscription, step.wake)
        if step.wake.generation != before.generation:
            self.counts["wakes"] += 1
        for effect in step.effects:
            if effect is Effect.ISSUE_SOON:
                self._issue_soon(subscription)
            elif effect is Effect.CANCEL_CALL:
                self.webhooks.cancel(subscription)
        return step

    def _set(self, subscription: Subscription, wake: Wake) -> None:
        before, subscription.wake = subscription.wake, wake
        if wake.deadline_us != before.deadline_us:
            self._arm(subscription)

    def _carry_out(self, effects: Mapping[Subscription, tuple[Effect, ...]]) -> None:
        # Before the wakes are stored: a crash in between announces them again.
        self._announce([each for each in effects if Effect.ANNOUNCE in effects[each]])
        stored = [each for each in effects if Effect.STORE in effects[each]]
        saved = self.save(stored) if stored else None
        for subscription, some in effects.items():
            if Effect.CALL not in some:
                continue
            if saved is not None and Effect.STORE in some:
                saved.add_done_callback(partial(self._call, subscription))
            else:
                self.webhooks.call(subscription)

    def _call(self, subscription: Subscription, saved: asyncio.Future[None]) -> None:
        # It may be over, or being called by now, if it took long to be stored.
        is_due = subscription.wake.phase is Phase.ISSUED and not subscription.deleted
        if is_due and not saved.cancelled():
            self.webhooks.call(subscription)

    def _undo(
        self, subscription: Subscription, before: Wake, after: Wake, moves: dict[str, _Move]
    ) -> Undo:
        def undo() -> None:
            # A later step that is being written stands: its wake is newer than both.
            if subscription.wake is after:
                self._set(subscription, before)
            for path, move in moves.items():
                if subscription.links.get(path) is move.after:
                    subscription.restore_link(path, move.before)
                    self.look(subscription, path)

        return undo

    # -- issuing

    def noticed(self, subscription: Subscription) -> None:
        """Wake a subscription that has work, unless it is awake."""
        self.advance(subscription, News())

    def _issue_soon(self, subscription: Subscription) -> None:
        """Issue the next wake in a later turn, together with those of others."""
        if not self._closed:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._issue)
            self._due[subscription] = None

    def _issue(self) -> None:
        due = list(itertools.islice(self._due, ISSUED_PER_TURN))
        for subscription in due:
            del self._due[subscription]
        if self._due:
            asyncio.get_running_loop().call_soon(self._issue)
        if self._closed:
            return
        effects: dict[Subscription, tuple[Effect, ...]] = {}
        for subscription in due:
            if not subscription.deleted and not subscription.unsettled:
                step = self._step(subscription, Issue(new_wake_id()))
                if step.effects:
                    effects[subscription] = step.effects
        self._carry_out(effects)

    def token(self, subscription: Subscription, generation: int) -> str:
        """Return the bearer token of a wake."""
        return mint_token(self._store.secret, subscription.scope, generation)

    # -- announcing

    def _announce(self, subscriptions: Iterable[Subscription]) -> None:
        """Write the wake events of pull-wake subscriptions, as soon as there is a stream for them.

        Those of one stream are one append: an event can wake very many.
        """
        by_path: dict[str, list[Subscription]] = {}
        for subscription in subscriptions:
            assert subscription.config.wake_stream is not None
            by_path.setdefault(subscription.config.wake_stream, []).append(subscription)
        for path, group in by_path.items():
            self._announce_at(path, group)

    def _announce_at(self, path: str, subscriptions: list[Subscription]) -> None:
        now_ms = self._clock.now_us() // 1000
        events = [
            {
                "type": "wake",
                "subscription_id": subscription.id,
                "stream": next(iter(subscription.pending), ""),
                "generation": subscription.wake.generation,
                "ts": now_ms,
            }
            for subscription in subscriptions
        ]
        request = Append(msgspec.json.encode(events), _JSON, False, None, None, None)
        try:
            appended = self._streams.append(path, request)
        except PenstockError as error:
            if path not in self._unannounced:
                _log.warning("cannot write the wakes of %s: %s", subscriptions[0].id, error.detail)
            self._unannounced.setdefault(path, {}).update(dict.fromkeys(subscriptions))
            if isinstance(error, ServerError):
                self._later(lambda: self.created(path))
            return
        generations = {each: each.wake.generation for each in subscriptions}
        appended.add_done_callback(partial(self._check_announced, generations, path))
        for subscription, generation in generations.items():
            self._step(subscription, Announced(generation))

    def _check_announced(
        self, generations: dict[Subscription, int], path: str, appended: asyncio.Future[Any]
    ) -> None:
        if not appended.cancelled() and appended.exception() is not None:
            for subscription, generation in generations.items():
                self._step(subscription, AnnounceFailed(generation))
            self._unannounced.setdefault(path, {}).update(dict.fromkeys(generations))
            self._later(lambda: self.created(path))

    def created(self, path: str) -> None:
        """Announce the wakes that have waited for the stream at `path` to be created."""
        waiting = [
            each
            for each in self._unannounced.pop(path, {})
            if each.wake.phase is Phase.ISSUED and not each.wake.announced and not each.deleted
        ]
        for index in range(0, len(waiting), ISSUED_PER_TURN):
            some = waiting[index : index + ISSUED_PER_TURN]
            self._announce_at(path, some)
            self.save(some)

    # -- saving

    def save(
        self, subscriptions: list[Subscription], paths: Iterable[str] = ()
    ) -> asyncio.Future[None]:
        """Write the wakes as they are now, and the links to `paths`.

        The future is done when they are durable, however long it takes.
        """
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._save(subscriptions, tuple(paths), saved)
        return saved

    def _save(
        self, subscriptions: list[Subscription], paths: tuple[str, ...], saved: asyncio.Future[None]
    ) -> None:
        alive = [each for each in subscriptions if not each.deleted]
        if not alive:
            saved.cancel()
            return
        rows = [link_row(each, path) for each in alive for path in paths]
        written = self._store.write(rows + [wake_row(each) for each in alive])

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None:
                if not saved.done():
                    saved.set_result(None)
                self._store.rewrite_if_long()
            elif not self._closed:
                _log.warning("cannot write the wakes of subscriptions: %s", error)
                self._later(lambda: self._save(alive, paths, saved))

        written.add_done_callback(done)

    def _later(self, call: Callable[[], None]) -> None:
        if not self._closed:
            asyncio.get_running_loop().call_later(
                SAVE_AGAIN_S, lambda: None if self._closed else call()
            )

    # -- cursors

    def finish_call(
        self, subscription: Subscription, event: Extend | Finish, acks: Sequence[AckedPosition]
    ) -> None:
        """Take over what a webhook has answered.

        If that cannot be written, the wake is as it was before the answer, and it is tried again
        until the wake is over.
        """
        _, written = self.commit(subscription, event, acks)

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None and not self._closed:
                _log.warning("cannot write the answer of a webhook: %s", error)
                self._later(again)

        def again() -> None:
            if subscription.wake.wake_id == event.wake_id and not subscription.deleted:
                self.finish_call(subscription, event, acks)

        written.add_done_callback(done)

    def _ack(self, subscription: Subscription, acks: Iterable[AckedPosition]) -> dict[str, _Move]:
        """Advance cursors; return the links that have changed, by path."""
        moves: dict[str, _Move] = {}
        for ack in acks:
            link = subscription.links.get(ack.path)
            stream = self.find(ack.path)
            if link is None or stream is None or not is_generation(stream, ack.stream):
                continue  # The stream was deleted, or is another one now.
            if link.stream != stream.id or ack.position > link.position:
                moved = Link(stream.id, ack.position, link.explicit)
                first = moves[ack.path].before if ack.path in moves else link
                subscription.links[ack.path] = moved
                moves[ack.path] = _Move(first, moved)
            if stream.tail <= subscription.position(stream):
                self.matching.settled(subscription, ack.path)
        return moves

    def look(self, subscription: Subscription, path: str) -> None:
        """Notice what is after the cursor of a path, if there is a stream."""
        stream = self.find(path)
        if stream is not None:
            self.matching.look(subscription, stream)

    def unlinked(self, subscriptions: list[Subscription], path: str) -> None:
        """Reset the links to a deleted stream: one of the same name starts from its beginning."""
        for subscription in subscriptions:
            if subscription.links[path].explicit:
                subscription.links[path] = Link(explicit=True)
            else:
                del subscription.links[path]
        self._save_links(subscriptions, path)

    def _save_links(self, subscriptions: list[Subscription], path: str) -> None:
        # Some in a turn: an old link does no harm, as it names the deleted stream by its id.
        self.save(subscriptions[:LINKS_PER_TURN], [path])
        if len(subscriptions) > LINKS_PER_TURN:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._save_links, subscriptions[LINKS_PER_TURN:], path)

    def snapshot(self, subscription: Subscription) -> list[StreamView]:
        """Return the streams of a wake: those with work first, and not more than fit."""
        self.matching.catch_up(subscription)
        paths = dict(itertools.islice(subscription.pending.items(), self._snapshot_max))
        for path in subscription.links:
            if len(paths) >= self._snapshot_max:
                break
            paths[path] = None
        token = self._streams.token
        return [view(subscription, path, self.find(path), token) for path in paths]

    def find(self, path: str) -> Stream | None:
        """Return the stream at a path, or None if there is none."""
        try:
            return self._streams.find(path, touch=False)
        except PenstockError:
            return None  # A deleted stream may still exist for its forks.

    # -- time

    def lease_end_us(self, subscription: Subscription) -> int:
        """Return the end of a lease that begins now."""
        return self._clock.now_us() + subscription.config.lease_ttl_ms * 1000

    def _arm(self, subscription: Subscription) -> None:
        """Set the timer for the wake's deadline."""
        deadline_us = subscription.wake.deadline_us
        if deadline_us and not subscription.deleted and not self._closed:
            heapq.heappush(self._deadlines, (deadline_us, next(self._order), subscription))
            if self._timer is None or self._deadlines[0][0] == deadline_us:
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
        now_us = self._clock.now_us()
        while self._deadlines and self._deadlines[0][0] <= now_us:
            deadline_us, _, subscription = heapq.heappop(self._deadlines)
            if subscription.wake.deadline_us == deadline_us and not subscription.deleted:
                self._expire(subscription)
        self._set_timer()

    def _expire(self, subscription: Subscription) -> None:
        is_leased = subscription.wake.phase is Phase.LEASED
        call_in_flight = is_leased and self.webhooks.is_calling(subscription)
        retry_us = 0
        if is_leased:
            self.counts["expired"] += 1
        if call_in_flight:
            retry_us = self.webhooks.record_failure(
                subscription, "there was no answer before the lease ended"
            )
        self.matching.catch_up(subscription)
        self.advance(subscription, Deadline(call_in_flight, retry_us))

    def resume(self, subscription: Subscription) -> None:
        """Take up a wake that was stored before the last stop."""
        self._arm(subscription)
        self.advance(subscription, Resume())

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.matching.close()
        self.webhooks.close()


def new_wake_id() -> str:
    return f"w_{secrets.token_urlsafe(12)}"
