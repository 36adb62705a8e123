"""What makes one handler serve both clients."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any


async def settle(value: Any) -> Any:
    """What a call comes to: the blocking client has it already, the asyncio client is awaited."""
    return await value if inspect.isawaitable(value) else value


async def each(items: Any) -> AsyncIterator[Any]:
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
