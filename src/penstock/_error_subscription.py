"""The errors of subscriptions. Beside what every error says they carry the protocol's own form,
`{"error": {"code": …}}`.

Import errors from `penstock.errors`, which has all of them.
"""

from __future__ import annotations

from penstock._error_base import BadRequest, Conflict, PenstockError


class SubscriptionError(PenstockError):
    """`wire_code` is the protocol's name for it; `said` are members that go with that name."""

    code, title = "subscription-error", "Subscription error"
    wire_code = "INTERNAL"

    def __init__(self, detail: str, said: dict[str, object] | None = None, **headers: str) -> None:
        super().__init__(detail, **headers)
        self.said = said or {}

    @property
    def members(self) -> dict[str, object]:
        return {"error": {"code": self.wire_code, "message": self.detail, **self.said}}


class InvalidSubscription(SubscriptionError, BadRequest):
    status, code, title = 400, "invalid-subscription", "Invalid subscription request"
    wire_code = "INVALID_REQUEST"


class WebhookRefused(SubscriptionError, BadRequest):
    status, code, title = 400, "webhook-url-rejected", "The webhook's URL is not called"
    wire_code = "WEBHOOK_URL_REJECTED"


class InvalidToken(SubscriptionError):
    status, code, title = 401, "invalid-token", "Not a token of this subscription"
    wire_code = "TOKEN_INVALID"


class SubscriptionNotFound(SubscriptionError):
    status, code, title = 404, "subscription-not-found", "Subscription not found"
    wire_code = "SUBSCRIPTION_NOT_FOUND"


class SubscriptionExists(SubscriptionError, Conflict):
    status, code, title = 409, "subscription-exists", "Subscription exists and differs"
    wire_code = "SUBSCRIPTION_ALREADY_EXISTS"


class Fenced(SubscriptionError, Conflict):
    """The wake is over: the lease ran out, or the work was given to another."""

    status, code, title = 409, "fenced", "The wake is not the current one"
    wire_code = "FENCED"


class AlreadyClaimed(SubscriptionError, Conflict):
    status, code, title = 409, "already-claimed", "Another worker holds the lease"
    wire_code = "ALREADY_CLAIMED"


class NoPendingWork(SubscriptionError, Conflict):
    status, code, title = 409, "no-pending-work", "Nothing is waiting to be done"
    wire_code = "NO_PENDING_WORK"


class InvalidAck(SubscriptionError, Conflict):
    status, code, title = 409, "invalid-ack", "An ack names no position that can be acked"
    wire_code = "INVALID_OFFSET"


class TooManySubscriptions(SubscriptionError):
    status, code, title = 429, "too-many-subscriptions", "Too many subscriptions or streams"
    wire_code = "LIMIT_EXCEEDED"
