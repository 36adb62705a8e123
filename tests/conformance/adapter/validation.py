"""Whether the clients refuse senseless options, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import penstock

# What the protocol calls our options; the suite looks for its own names in messages.
NAMES: Final = {
    "attempts_max": "maxRetries",
    "first_s": "initialDelayMs",
    "max_s": "maxDelayMs",
    "factor": "multiplier",
    "batch_bytes_max": "maxBatchBytes",
    "batch_items_max": "maxBatchItems",
}


def check(target: Mapping[str, Any], stream: Any) -> None:
    """Make what is described; a ValueError says, in the suite's words, why it cannot be made."""
    try:
        if target["target"] == "retry-options":
            _make_retry(target)
        elif target["target"] == "idempotent-producer":
            _make_producer(target, stream).detach()
        else:
            raise NotImplementedError(f"nothing is known of {target['target']!r}")
    except (TypeError, ValueError) as error:
        message = str(error)
        for ours, theirs in NAMES.items():
            message = message.replace(ours, theirs)
        raise ValueError(message) from error


def _make_producer(target: Mapping[str, Any], stream: Any) -> Any:
    options = {
        "epoch": target.get("epoch"),
        "batch_bytes_max": target.get("maxBatchBytes"),
        "batch_items_max": target.get("maxBatchItems"),
    }
    given = {name: value for name, value in options.items() if value is not None}
    return stream.producer(target.get("producerId", "validation"), **given)


def _make_retry(target: Mapping[str, Any]) -> penstock.Retry:
    options: dict[str, Any] = {}
    if (retries := target.get("maxRetries")) is not None:
        options["attempts_max"] = retries + 1
    if (first_ms := target.get("initialDelayMs")) is not None:
        options["first_s"] = first_ms / 1000
    if (max_ms := target.get("maxDelayMs")) is not None:
        options["max_s"] = max_ms / 1000
    if (factor := target.get("multiplier")) is not None:
        options["factor"] = factor
    return penstock.Retry(**options)
