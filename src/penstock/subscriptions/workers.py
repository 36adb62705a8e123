"""Requests of workers: they claim a wake, ack what they have done, give it back, or call back.

Checks tokens, generations and offsets, in this order, and refuses what is stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AlreadyClaimed,
    Fenced,
    InvalidAck,
    InvalidSubscription,
    InvalidToken,
    NoPendingWork,
    PenstockError,
    StreamTrimmed,
)
from penstock.protocol.offsets import Offset, parse_offset
from penstock.protocol.subscription import PULL_WAKE, WEBHOOK, Ack, Kind, Report
from penstock.protocol.wakes import Claim, Effect, Extend, Finish, Refusal, token_generation
from penstock.subscriptions.model import AckedPosition
from penstock.subscriptions.wakes import Wakes, new_wake_id

if TYPE_CHECKING:
    from penstock.subscriptions.model import Subscription
    from penstock.subscriptions.store import SubscriptionStore
    from penstock.subscriptions.streams import Streams


class Workers:
    def __init__(self, streams: Streams, store: SubscriptionStore, wakes: Wakes) -> None:
        self._streams = streams
        self._store = store
        self._wakes = wakes

    async def claim(self, subscription: Subscription, worker: str) -> dict[str, Any]:
        """Give the work to a worker for the length of a lease; return the wake with its token."""
        _check_kind(subscription, PULL_WAKE)
        wakes = self._wakes
        wakes.tick()  # A lease that has ended holds nobody off.
        event = Claim(worker, new_wake_id(), wakes.lease_end_us(subscription))
        step, durable = wakes.commit(subscription, event)
        wake = step.wake
        if step.refusal is Refusal.HELD:
            raise AlreadyClaimed(
                f"{wake.holder!r} holds the lease; wait for the next wake.",
                {"current_holder": wake.holder, "generation": wake.generation},
            )
        if step.refusal is Refusal.NO_WORK:
            raise NoPendingWork("Everything is acked; wait for the next wake.")
        answer = {
            "wake_id": wake.wake_id,
            "generation": wake.generation,
            "token": wakes.token(subscription, wake.generation),
            "streams": [stream._asdict() for stream in wakes.snapshot(subscription)],
            "lease_ttl_ms": subscription.config.lease_ttl_ms,
        }
        await durable
        wakes.counts["claims"] += 1
        return answer

    async def callback(self, subscription: Subscription, token: str, report: Report) -> bool:
        """Take the report of a webhook; return whether another wake follows at once."""
        _check_kind(subscription, WEBHOOK)
        return await self._report(subscription, token, report)

    async def ack(self, subscription: Subscription, token: str, report: Report) -> bool:
        """Take the report of a worker; return whether another wake follows at once."""
        _check_kind(subscription, PULL_WAKE)
        return await self._report(subscription, token, report)

    async def release(self, subscription: Subscription, token: str, report: Report) -> None:
        """Take a wake back from a worker that has not finished it."""
        _check_kind(subscription, PULL_WAKE)
        self._fence(subscription, token, report)
        _, durable = self._wakes.commit(subscription, Finish(report.wake_id))
        await durable
        self._wakes.counts["releases"] += 1

    async def _report(self, subscription: Subscription, token: str, report: Report) -> bool:
        self._fence(subscription, token, report)
        acks = [await self._position(subscription, ack) for ack in report.acks]
        if report.acks:
            self._fence(subscription, token, report)  # Looking offsets up takes time.
        event: Finish | Extend = Finish(report.wake_id)
        if not report.done:
            event = Extend(report.wake_id, self._wakes.lease_end_us(subscription))
        step, durable = self._wakes.commit(subscription, event, acks)
        await durable
        return Effect.ISSUE_SOON in step.effects

    def _fence(self, subscription: Subscription, token: str, report: Report) -> None:
        """Refuse a worker whose wake is not the current one."""
        generation = token_generation(self._store.secret, subscription.scope, token)
        if generation is None:
            raise no_token()
        self._wakes.tick()
        wake = subscription.wake
        is_current = generation == report.generation and wake.is_current(report.wake_id, generation)
        if subscription.deleted or not is_current:
            self._wakes.counts["fenced"] += 1
            raise Fenced(
                "The wake is over: its lease ended, or it was finished or released. Wait for the "
                "next wake.",
                {"generation": wake.generation},
            )

    async def _position(self, subscription: Subscription, ack: Ack) -> AckedPosition:
        path = ack.stream.strip("/")
        stream = self._wakes.find(path)
        if path not in subscription.links or stream is None:
            raise InvalidAck(f"{ack.stream[:200]!r} is not a stream of this subscription.")
        try:
            parsed = parse_offset(ack.offset)
            if not isinstance(parsed, Offset):
                raise InvalidAck(f"{ack.offset!r} names no position; ack a Stream-Next-Offset.")
            try:
                position = await self._streams.position(stream, ack.offset)
            except StreamTrimmed:
                position = parsed.position  # It was read before it was trimmed.
        except InvalidAck:
            raise
        except PenstockError as error:
            raise InvalidAck(error.detail) from None
        if position < subscription.position(stream):
            raise InvalidAck(
                f"{ack.offset} of {path!r} is before the offset that is acked already."
            )
        return AckedPosition(path, stream.id, position)


def no_token() -> InvalidToken:
    return InvalidToken(
        "Send the token of this wake as `Authorization: Bearer <token>`.",
        WWW_Authenticate='Bearer realm="penstock"',
    )


def _check_kind(subscription: Subscription, kind: Kind) -> None:
    if subscription.config.type != kind:
        raise InvalidSubscription(
            f"{subscription.id!r} is a {subscription.config.type} subscription, not {kind}."
        )
