"""Notifies, sent with the asyncio client."""

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
        """Notify `nurl` that the table at `surl` may have news, and register `callbacks`.

        `callbacks` are Notify URLs by event type, for news of the receiver. Without `surl` it is a
        handshake, which only registers them. It may be repeated any number of times. Returns the
        answer of a Penstock server, and {} of any other.
        """
        return await self.client.run(notify(nurl, surl, callbacks, self._secret, self.client.retry))
