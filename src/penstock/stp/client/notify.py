"""Sending a Notify form, as a flow without I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.client.flow import Flow, send
from penstock.client.retry import Retry
from penstock.stp.client import requests
from penstock.stp.notify import sign


def notify(
    nurl: str,
    surl: str | None,
    callbacks: Mapping[str, str] | None,
    secret: str | None,
    retry: Retry,
) -> Flow[dict[str, Any]]:
    """Send a Notify, signed if there is a secret; return the receiver's JSON object, or {}."""
    request = requests.notify(nurl, surl, callbacks or {})
    if secret is not None:
        signature = sign(secret, request.body, int(time.time()))
        request = request._replace(headers={**request.headers, "STP-Signature": signature})
    answer = yield from send(request, retry)
    try:
        outcome = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return {}
    return outcome if isinstance(outcome, dict) else {}
