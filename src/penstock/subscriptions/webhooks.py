"""Calls webhooks: signed, a bounded number at a time, retried with backoff.

Says what an answer means for cursors and for the wake; what becomes of the wake is decided by
`protocol.wakes` and carried out by `wakes`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from penstock.backoff import Backoff
from penstock.egress import HostSlots
from penstock.errors import PenstockError
from penstock.protocol.offsets import Offset, parse_offset
from penstock.protocol.outbound import parse_url
from penstock.protocol.subscription import StreamView
from penstock.protocol.wakes import SIGNATURE, CallFailed, CallStarted, Extend, Finish
from penstock.subscriptions.model import AckedPosition

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Answer, Egress
    from penstock.subscriptions.keys import Keys
    from penstock.subscriptions.model import Subscription
    from penstock.subscriptions.wakes import Wakes

JITTER: Final = 0.2
"""The part of a wait that is random, so that receivers are not all called at once."""

PREFIX: Final = "/v1/stream/__ds/"
_log = logging.getLogger("penstock.subscriptions")


class _Done(msgspec.Struct):
    done: bool = False


class Webhooks:
    """One task for each call."""

    def __init__(
        self,
        settings: Settings,
        egress: Egress,
        keys: Keys,
        wakes: Wakes,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._egress = egress
        self._keys = keys
        self._wakes = wakes
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(
            base_s=settings.webhook_retry_s, cap_s=settings.webhook_retry_max_s, jitter=JITTER
        )
        self._slots = asyncio.Semaphore(settings.webhook_deliveries_max)
        self._host_slots = HostSlots(settings.webhook_per_host_max)
        self._current: dict[Subscription, asyncio.Task[None]] = {}
        # A call whose wake is over may go on: the receiver has called back already.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """The number of calls that are made or wait for their turn."""
        return len(self._tasks)

    def is_calling(self, subscription: Subscription) -> bool:
        """Whether the current wake of a subscription is being delivered."""
        task = self._current.get(subscription)
        return task is not None and not task.done()

    def call(self, subscription: Subscription) -> None:
        """Deliver the current wake of a subscription."""
        task = asyncio.get_running_loop().create_task(self._deliver(subscription))
        self._current[subscription] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(subscription, done))

    def cancel(self, subscription: Subscription) -> None:
        """Stop delivering the current wake of a subscription."""
        task = self._current.pop(subscription, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def record_failure(self, subscription: Subscription, reason: str) -> int:
        """Count and log a failed call; return the time of the next attempt, in microseconds."""
        self._wakes.counts["failures"] += 1
        wait_s = self._backoff.wait_s(subscription.wake.attempts + 1, self._chance())
        _log.warning(
            "the webhook of %s failed (%s); next attempt in %.1f s",
            subscription.id,
            reason,
            wait_s,
        )
        return self._clock.now_us() + int(wait_s * 1_000_000)

    def _ended(self, subscription: Subscription, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._current.get(subscription) is task:
            del self._current[subscription]
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "calling the webhook of %s ended", subscription.id, exc_info=task.exception()
            )

    async def _deliver(self, subscription: Subscription) -> None:
        url = subscription.config.webhook_url
        assert url is not None
        wake_id = subscription.wake.wake_id
        try:
            async with self._host_slots.take(parse_url(url).host), self._slots:
                # The lease begins with the call: the wait for a slot is nobody's fault.
                lease_us = self._wakes.lease_end_us(subscription)
                started = self._wakes.advance(subscription, CallStarted(wake_id, lease_us))
                if started.refusal is not None:
                    return
                await self._keys.renew()
                streams = self._wakes.snapshot(subscription)
                answer = await self._post(subscription, url, streams)
        except PenstockError as error:
            self._failed(subscription, wake_id, error.detail)
            return
        if answer.is_success:
            self._succeeded(subscription, wake_id, answer, streams)
        else:
            self._failed(subscription, wake_id, f"it answered {answer.status}")

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
                "callback_token": self._wakes.token(subscription, wake.generation),
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

    def _succeeded(
        self, subscription: Subscription, wake_id: str, answer: Answer, streams: list[StreamView]
    ) -> None:
        if subscription.wake.wake_id != wake_id or subscription.deleted:
            return  # The receiver has called back, or the lease has ended.
        self._wakes.counts["deliveries"] += 1
        if _is_done(answer.body):
            self._wakes.finish_call(subscription, Finish(wake_id), _tails(streams))
        else:
            lease_us = self._wakes.lease_end_us(subscription)
            self._wakes.finish_call(subscription, Extend(wake_id, lease_us), ())

    def _failed(self, subscription: Subscription, wake_id: str, reason: str) -> None:
        if subscription.wake.wake_id != wake_id or subscription.deleted:
            return
        retry_us = self.record_failure(subscription, reason)
        self._wakes.advance(subscription, CallFailed(wake_id, retry_us))

    def url(self, subscription: Subscription, action: str = "") -> str:
        """Return the URL of a subscription as its creator knows this server."""
        id = quote(subscription.id, safe="")
        base = self._settings.public_url.rstrip("/") or subscription.row.base
        return f"{base}{PREFIX}subscriptions/{id}{action}"


def _is_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Done).done
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _tails(streams: list[StreamView]) -> list[AckedPosition]:
    """Return the tails of the streams that had work, as the wake named them."""
    tails = []
    for stream in streams:
        if stream.has_pending:
            tail = parse_offset(stream.tail_offset)
            assert isinstance(tail, Offset)
            tails.append(AckedPosition(stream.path, tail.generation, tail.position))
    return tails
