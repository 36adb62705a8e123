"""A subscription of the asyncio client: each method runs a flow of `client/subscriptions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.client.subscriptions import Operations, SubscriptionInfo, Wake

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient


class AsyncSubscription:
    """A subscription by its id. It holds no connection, and making one sends nothing."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self.client = client
        self._operations = Operations(client.url, id, client.retry)

    @property
    def id(self) -> str:
        return self._operations.id

    @property
    def url(self) -> str:
        return self._operations.url

    async def create(
        self,
        *,
        pattern: str | None = None,
        streams: Iterable[str] = (),
        webhook: str | None = None,
        wake_stream: str | None = None,
        lease_ttl_ms: int | None = None,
        description: str | None = None,
    ) -> SubscriptionInfo:
        """Create the subscription; raise SubscriptionExists if it exists and differs.

        With a `webhook` the server calls that URL; with a `wake_stream` workers claim the wakes.
        """
        return await self.client.run(
            self._operations.create(
                pattern=pattern,
                streams=streams,
                webhook=webhook,
                wake_stream=wake_stream,
                lease_ttl_ms=lease_ttl_ms,
                description=description,
            )
        )

    async def show(self) -> SubscriptionInfo:
        """Return its properties, and how far each stream is processed."""
        return await self.client.run(self._operations.show())

    async def delete(self) -> None:
        """Delete the subscription; it need not exist."""
        await self.client.run(self._operations.delete())

    async def add(self, *streams: str) -> None:
        """Link streams, each from its tail on, in addition to those of the pattern."""
        await self.client.run(self._operations.add(streams))

    async def remove(self, stream: str) -> None:
        """Unlink a stream that `add` has linked; the pattern may still match it."""
        await self.client.run(self._operations.remove(stream))

    async def claim(self, worker: str) -> Wake:
        """Claim the wake of a pull-wake subscription.

        Raises AlreadyClaimed if another worker has it, NoPendingWork if there is none.
        """
        return await self.client.run(self._operations.claim(worker))

    async def ack(
        self, wake: Wake, acks: Mapping[str, str] | None = None, *, done: bool = False
    ) -> bool:
        """Say how far streams are processed, by path; whether there is more to do.

        Extends the lease, or with `done` ends it. Fenced if the lease has run out.
        """
        return await self.client.run(self._operations.ack(wake, acks or {}, done=done))

    async def release(self, wake: Wake) -> None:
        """Give the work back; another worker is woken."""
        await self.client.run(self._operations.release(wake))
