"""Sending Notifies with the asyncio client: each method runs a flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.stp.client.notify import notify

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient


class AsyncNotifier:
    """Sends Notify forms. The client's headers and token go with them, so use a client that is
    meant for the receiver. With a `secret` that both share, they are signed."""

    def __init__(self, client: AsyncClient, *, secret: str | None = None) -> None:
        self.client = client
        self._secret = secret

    async def notify(
        self, nurl: str, *, surl: str | None = None, callbacks: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Tell `nurl` that the table at `surl` may have news, and which event types to tell us of.

        `callbacks` are Notify URLs by event type. Without `surl` it is a handshake: only the
        callbacks are made known. It may be repeated any number of times. Returns what the receiver
        says has come of it: nothing, unless it is a Penstock server.
        """
        return await self.client.run(notify(nurl, surl, callbacks, self._secret, self.client.retry))
