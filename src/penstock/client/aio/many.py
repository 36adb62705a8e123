"""Several streams on one connection of the asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.client.many import ManyFollower, StreamBatch

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient


class AsyncFollowMany:
    """The batches of `follow_many`. `close()`, or the end of `async with`, ends the connection."""

    def __init__(self, client: AsyncClient, follower: ManyFollower) -> None:
        self._follower = follower
        self._batches = client.iterate(follower.flow())

    @property
    def cursor(self) -> str | None:
        """The position of all streams after the last whole event; None before the first."""
        return self._follower.cursor

    @property
    def offsets(self) -> dict[str, str]:
        """The offset at which each stream is read on, by path."""
        return self._follower.offsets

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamBatch:
        batch: StreamBatch = await anext(self._batches)
        return batch

    async def close(self) -> None:
        await self._batches.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
