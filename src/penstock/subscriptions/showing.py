"""A subscription as the protocol describes it to readers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.protocol.headers import format_expires_at
from penstock.subscriptions.webhooks import PREFIX

if TYPE_CHECKING:
    from penstock.subscriptions.keys import Key
    from penstock.subscriptions.model import Subscription


def shown(
    subscription: Subscription, key: Key | None, base: str, acked: Mapping[str, str]
) -> dict[str, Any]:
    """`key` signs its webhooks; `acked` are the offsets of the links that are to be shown.

    What follows `description` is an extension.
    """
    config, wake = subscription.config, subscription.wake
    webhook = None
    if config.webhook_url is not None:
        signing = {
            "alg": "ed25519",
            "kid": None if key is None else key.kid,
            "jwks_url": f"{base}{PREFIX}jwks.json",
        }
        webhook = {"url": config.webhook_url, "signing": signing}
    return {
        "id": subscription.id,
        "subscription_id": subscription.id,
        "type": config.type,
        "pattern": config.pattern,
        "streams": [
            {
                "path": path,
                "link_type": "explicit" if subscription.links[path].explicit else "glob",
                "acked_offset": offset,
            }
            for path, offset in acked.items()
        ],
        "webhook": webhook,
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": format_expires_at(subscription.row.created_us),
        "status": subscription.status,
        "description": config.description,
        "generation": wake.generation,
        "holder": wake.holder or None,
        "pending": len(subscription.pending),
        "attempts": wake.attempts,
        "next_attempt_at": format_expires_at(wake.retry_us) if wake.retry_us else None,
    }
