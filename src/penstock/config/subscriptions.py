"""The settings of subscriptions. Part of `config.Settings`; kept apart for its length."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import limits
from penstock.config.setting import Group

_SUBSCRIPTIONS = Group("Subscriptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """Settings of subscriptions and webhooks."""

    subscriptions_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTIONS_MAX, "Most subscriptions of this server."
    )
    subscription_streams_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTION_STREAMS_MAX, "Most streams that a new subscription finds or names."
    )
    subscription_bytes_max: int = _SUBSCRIPTIONS.size(
        limits.SUBSCRIPTION_BYTES_MAX, "Largest document about a subscription."
    )
    subscription_snapshot_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTION_SNAPSHOT_MAX, "Most streams named in one wake; others follow."
    )
    subscription_log_bytes: int = _SUBSCRIPTIONS.size(
        limits.SUBSCRIPTION_LOG_BYTES,
        "Size beyond which the server rewrites what it keeps of subscriptions.",
    )
    webhook_timeout_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_TIMEOUT_S, "Longest wait for a webhook's answer."
    )
    webhook_answer_bytes_max: int = _SUBSCRIPTIONS.size(
        limits.WEBHOOK_ANSWER_BYTES_MAX, "Largest answer of a webhook."
    )
    webhook_deliveries_max: int = _SUBSCRIPTIONS.count(
        limits.WEBHOOK_DELIVERIES_MAX, "Most webhooks that are called at a time."
    )
    webhook_per_host_max: int = _SUBSCRIPTIONS.count(
        limits.WEBHOOK_PER_HOST_MAX, "Most webhooks of one host that are called at a time."
    )
    webhook_retry_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_RETRY_S, "Wait after a webhook failed; doubles with each failure."
    )
    webhook_retry_max_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_RETRY_MAX_S, "Longest wait for a webhook that fails."
    )
    webhook_key_age_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_KEY_AGE_S, "Age at which the key that signs webhooks is replaced."
    )
    webhook_key_overlap_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_KEY_OVERLAP_S, "How long a replaced key stays published.", least=300
    )
