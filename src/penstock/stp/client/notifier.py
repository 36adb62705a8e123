"""Telling Notify URLs that a table has news, or where to call back: blocking and asyncio."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.flow import Flow, send
from penstock.client.retry import Retry
from penstock.stp.client import _requests
from penstock.stp.notify import sign

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient
    from penstock.client.sync.client import Client


class Notifier:
    """Sends Notify forms. The client's headers and token go with them, so give a client that is
    meant for the receiver. With a `secret` that both share, they are signed."""

    def __init__(self, client: Client, *, secret: str | None = None) -> None:
        self.client = client
        self._secret = secret

    def notify(
        self, nurl: str, *, surl: str | None = None, callbacks: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Tell `nurl` that the table at `surl` may have news, and which event types to tell us of.

        `callbacks` are Notify URLs by event type. Without `surl` it is a handshake: only the
        callbacks are made known. It may be repeated any number of times. Gives what the receiver
        says has come of it: nothing, unless it is a Penstock server.
        """
        return self.client.run(_notify(nurl, surl, callbacks, self._secret, self.client.retry))


class AsyncNotifier:
    """As `Notifier`, with `await`."""

    def __init__(self, client: AsyncClient, *, secret: str | None = None) -> None:
        self.client = client
        self._secret = secret

    async def notify(
        self, nurl: str, *, surl: str | None = None, callbacks: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Tell `nurl` that the table at `surl` may have news; see `Notifier.notify`."""
        return await self.client.run(
            _notify(nurl, surl, callbacks, self._secret, self.client.retry)
        )


def _notify(
    nurl: str,
    surl: str | None,
    callbacks: Mapping[str, str] | None,
    secret: str | None,
    retry: Retry,
) -> Flow[dict[str, Any]]:
    request = _requests.notify(nurl, surl, callbacks or {})
    if secret is not None:
        signature = sign(secret, request.body, int(time.time()))
        request = request._replace(headers={**request.headers, "STP-Signature": signature})
    answer = yield from send(request, retry)
    try:
        said = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return {}
    return said if isinstance(said, dict) else {}
