"""Work on many items, in slices of a few milliseconds between which others have their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.003
"""Time after which the event loop turns to others."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; give others a turn of the event loop whenever a slice is over.

    What the items were taken from must not change meanwhile: pass a copy if it can.
    """
    end_s = time.monotonic() + SLICE_S
    for item in items:
        yield item
        if time.monotonic() >= end_s:
            await asyncio.sleep(0)
            end_s = time.monotonic() + SLICE_S
