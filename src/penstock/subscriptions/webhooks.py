"""Calls webhooks: signed, a bounded number at a time, again and again with growing waits.

What an answer means for cursors and leases is said here; the wake itself is `waking`'s.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock.backoff import Backoff
from penstock.egress import HostSlots
from penstock.errors import PenstockError
from penstock.protocol.offsets import Offset, parse_offset
from penstock.protocol.outbound import parse_url
from penstock.protocol.subscription import StreamView
from penstock.protocol.wakes import SIGNATURE, mint_token
from penstock.subscriptions.wakes import Acked, Waking

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Answer, Egress
    from penstock.subscriptions.keys import Keys
    from penstock.subscriptions.model import Subscription
    from penstock.subscriptions.store import Book

JITTER: Final = 0.2
"""The part of a wait that is random, so that receivers are not all called at once."""

PREFIX: Final = "/v1/stream/__ds/"
_log = logging.getLogger("penstock.subscriptions")


class _Done(msgspec.Struct):
    done: bool = False


class Webhooks:
    """One task for each delivery on its way."""

    def __init__(
        self,
        settings: Settings,
        egress: Egress,
        book: Book,
        keys: Keys,
        waking: Waking,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._egress = egress
        self._book = book
        self._keys = keys
        self._waking = waking
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(
            base_s=settings.webhook_retry_s, cap_s=settings.webhook_retry_max_s, jitter=JITTER
        )
        self._slots = asyncio.Semaphore(settings.webhook_deliveries_max)
        self._host_slots = HostSlots(settings.webhook_per_host_max)
        self._tasks: dict[Subscription, asyncio.Task[None]] = {}
        # Calls whose wake is over may go on: the receiver has said what it had to say.
        self._all: set[asyncio.Task[None]] = set()

    @property
    def on_their_way(self) -> int:
        return len(self._all)

    def deliver(self, subscription: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(subscription))
        self._tasks[subscription] = task
        self._all.add(task)
        task.add_done_callback(lambda done: self._ended(subscription, done))

    def withdraw(self, subscription: Subscription) -> bool:
        """The lease is over. A call that is still unanswered has failed, and its wake with it."""
        if not self._cancel(subscription):
            return False
        self._failed(subscription, "no answer before the lease ran out", wake_is_over=True)
        return True

    def forget(self, subscription: Subscription) -> None:
        self._cancel(subscription)

    def close(self) -> None:
        for task in self._all:
            task.cancel()

    def _cancel(self, subscription: Subscription) -> bool:
        task = self._tasks.pop(subscription, None)
        return task is not None and task.cancel()

    def _ended(self, subscription: Subscription, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        if self._tasks.get(subscription) is task:
            del self._tasks[subscription]
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "calling the webhook of %s ended", subscription.id, exc_info=task.exception()
            )

    async def _deliver(self, subscription: Subscription) -> None:
        url = subscription.config.webhook_url
        assert url is not None
        wake_id = subscription.wake.wake_id
        streams: list[StreamView] = []
        try:
            async with self._host_slots.take(parse_url(url).host), self._slots:
                wake = subscription.wake
                if wake.wake_id != wake_id:
                    return
                # From here on: what waits for its turn is nobody's fault.
                subscription.wake = replace(wake, lease_us=self._waking.lease(subscription))
                self._waking.arm(subscription)
                await self._keys.renew()
                streams = self._waking.snapshot(subscription)
                answer = await self._post(subscription, url, streams)
        except PenstockError as error:
            if subscription.wake.wake_id == wake_id:
                self._failed(subscription, error.detail)
            return
        if subscription.wake.wake_id != wake_id or subscription.deleted:
            return  # it has called back, or is too late
        if not answer.is_success:
            self._failed(subscription, f"it answered {answer.status}")
            return
        await self._succeeded(subscription, answer, streams)

    async def _post(
        self, subscription: Subscription, url: str, streams: list[StreamView]
    ) -> Answer:
        wake = subscription.wake
        body = msgspec.json.encode(
            {
                "subscription_id": subscription.id,
                "wake_id": wake.wake_id,
                "generation": wake.generation,
                "streams": [stream._asdict() for stream in streams],
                "callback_url": self.url(subscription, "/callback"),
                "callback_token": self.token(subscription),
            }
        )
        headers = {"content-type": "application/json", SIGNATURE: self._keys.sign(body)}
        return await self._egress.request(
            "POST",
            url,
            headers=headers,
            body=body,
            timeout_s=self._settings.webhook_timeout_s,
            bytes_max=self._settings.webhook_answer_bytes_max,
        )

    async def _succeeded(
        self, subscription: Subscription, answer: Answer, streams: list[StreamView]
    ) -> None:
        self._waking.counts["deliveries"] += 1
        moved: list[str] = []
        if _says_done(answer.body):
            moved = self._waking.ack(subscription, _tails(streams))
            self._waking.rest(subscription)
        else:
            self._waking.extend(subscription)
        try:
            await self._waking.write(subscription, moved)
        except PenstockError:
            self._waking.keep([subscription], moved)

    def _failed(
        self, subscription: Subscription, reason: str, *, wake_is_over: bool = False
    ) -> None:
        wake = subscription.wake
        attempts = wake.attempts + 1
        self._waking.counts["failures"] += 1
        wait_s = self._backoff.wait_s(attempts, self._chance())
        _log.warning(
            "the webhook of %s failed (%s); again in %.1f s", subscription.id, reason, wait_s
        )
        subscription.wake = replace(
            wake,
            wake_id="" if wake_is_over else wake.wake_id,
            lease_us=0,
            attempts=attempts,
            retry_us=self._clock.now_us() + int(wait_s * 1_000_000),
        )
        self._waking.keep([subscription])

    def token(self, subscription: Subscription) -> str:
        return mint_token(self._book.secret, subscription.scope, subscription.wake.generation)

    def url(self, subscription: Subscription, action: str = "") -> str:
        name = quote(subscription.id, safe="")
        return f"{self.base(subscription)}{PREFIX}subscriptions/{name}{action}"

    def base(self, subscription: Subscription) -> str:
        return self._settings.public_url.rstrip("/") or subscription.row.base


def _says_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Done).done
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _tails(streams: list[StreamView]) -> list[Acked]:
    found = []
    for stream in streams:
        if stream.has_pending:
            tail = parse_offset(stream.tail_offset)
            assert isinstance(tail, Offset)
            found.append(Acked(stream.path, tail.generation, tail.position))
    return found
