"""What workers say: they claim a wake, ack what they have done, give it back, or call back.

Checks tokens, generations and offsets, in this order, and lets nothing stale through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

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
from penstock.protocol.wakes import token_generation
from penstock.subscriptions.wakes import Acked, Waking

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.subscriptions.model import Subscription
    from penstock.subscriptions.store import Book
    from penstock.subscriptions.webhooks import Webhooks


class Workers:
    def __init__(self, engine: Engine, book: Book, waking: Waking, webhooks: Webhooks) -> None:
        self._engine = engine
        self._book = book
        self._waking = waking
        self._webhooks = webhooks

    async def claim(self, subscription: Subscription, worker: str) -> dict[str, Any]:
        _need(subscription, PULL_WAKE)
        waking = self._waking
        waking.tick()  # a lease that has run out holds nobody off
        wake = subscription.wake
        if wake.holder:
            raise AlreadyClaimed(
                f"{wake.holder!r} holds the lease; wait for the next wake.",
                {"current_holder": wake.holder, "generation": wake.generation},
            )
        waking.matching.catch_up(subscription)
        if not subscription.pending:
            if wake.wake_id:
                # Nobody will come for it, and it must not hold off the next.
                waking.rest(subscription)
                waking.keep([subscription])
            raise NoPendingWork("Everything is acked; wait for the next wake.")
        if not wake.wake_id:
            waking.next_wake(subscription)
        subscription.wake = replace(
            subscription.wake, holder=worker, lease_us=waking.lease(subscription), told=True
        )
        waking.counts["claims"] += 1
        answer = {
            "wake_id": subscription.wake.wake_id,
            "generation": subscription.wake.generation,
            "token": self._webhooks.token(subscription),
            "streams": [stream._asdict() for stream in waking.snapshot(subscription)],
            "lease_ttl_ms": subscription.config.lease_ttl_ms,
        }
        await waking.write(subscription, ())
        return answer

    async def callback(self, subscription: Subscription, token: str, report: Report) -> bool:
        """Whether another wake follows at once."""
        _need(subscription, WEBHOOK)
        return await self._report(subscription, token, report)

    async def ack(self, subscription: Subscription, token: str, report: Report) -> bool:
        _need(subscription, PULL_WAKE)
        return await self._report(subscription, token, report)

    async def release(self, subscription: Subscription, token: str, report: Report) -> None:
        _need(subscription, PULL_WAKE)
        self._fence(subscription, token, report)
        self._waking.counts["releases"] += 1
        self._waking.rest(subscription)
        await self._waking.write(subscription, ())

    async def _report(self, subscription: Subscription, token: str, report: Report) -> bool:
        self._fence(subscription, token, report)
        acks = [await self._position(subscription, ack) for ack in report.acks]
        if report.acks:
            self._fence(subscription, token, report)  # while offsets were looked up
        waking = self._waking
        moved = waking.ack(subscription, acks)
        if report.done:
            next_wake = waking.rest(subscription)
        else:
            next_wake = False
            waking.extend(subscription)
        await waking.write(subscription, moved)
        return next_wake

    def _fence(self, subscription: Subscription, token: str, report: Report) -> None:
        generation = token_generation(self._book.secret, subscription.scope, token)
        if generation is None:
            raise no_token()
        self._waking.tick()
        wake = subscription.wake
        is_current = (
            not subscription.deleted
            and generation == report.generation == wake.generation
            and bool(wake.wake_id)
            and report.wake_id == wake.wake_id
        )
        if not is_current:
            self._waking.counts["fenced"] += 1
            raise Fenced(
                "The wake is over: its lease ran out, or it was finished or released.",
                {"generation": wake.generation},
            )

    async def _position(self, subscription: Subscription, ack: Ack) -> Acked:
        path = ack.stream.strip("/")
        stream = self._waking.find(path)
        if path not in subscription.links or stream is None:
            raise InvalidAck(f"{ack.stream[:200]!r} is no stream of this subscription.")
        try:
            parsed = parse_offset(ack.offset)
            if not isinstance(parsed, Offset):
                raise InvalidAck(f"{ack.offset!r} names no position; ack a Stream-Next-Offset.")
            try:
                position = await self._engine.position(stream, ack.offset)
            except StreamTrimmed:
                position = parsed.position  # read before it was trimmed
        except InvalidAck:
            raise
        except PenstockError as error:
            raise InvalidAck(error.detail) from None
        if position < subscription.position(stream):
            raise InvalidAck(f"{ack.offset} of {path!r} is before what is acked already.")
        return Acked(path, stream.id, position)


def no_token() -> InvalidToken:
    return InvalidToken(
        "Send the token of this wake as `Authorization: Bearer <token>`.",
        WWW_Authenticate='Bearer realm="penstock"',
    )


def _need(subscription: Subscription, kind: Kind) -> None:
    if subscription.config.type != kind:
        raise InvalidSubscription(
            f"{subscription.id!r} is a {subscription.config.type} subscription, not {kind}."
        )
