"""Requests whose shard is changing hands: they wait for its next owner instead of being refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.errors import NotOwner

if TYPE_CHECKING:
    from penstock.http.message import Response

ELSEWHERE: Final = b"penstock-elsewhere"
"""The header of a refusal by a node that a shard is not at: nothing was done."""


class Looks(Protocol):
    """Whoever looks at the shards now and then."""

    def next_look(self) -> asyncio.Event:
        """Return what is set with the next look."""


def is_elsewhere(response: Response) -> bool:
    return response.status == NotOwner.status and any(
        name == ELSEWHERE for name, _ in response.headers
    )


async def held(node: Looks, hold_s: float, send: Callable[[], Awaitable[Response]]) -> Response:
    """Return what `send` does. While it reaches nobody, or a node where the shard is not, it is
    tried again after the next look at the shards, for `hold_s`: a request is never executed twice.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + hold_s
    while True:
        look = node.next_look()  # from now on: the answer may come after it
        try:
            response = await send()
            if not is_elsewhere(response) or loop.time() >= deadline:
                return response
        except NotOwner as error:
            if not error.is_unsent or loop.time() >= deadline:
                raise
        try:
            async with asyncio.timeout_at(deadline):
                await look.wait()
        except TimeoutError:
            continue  # once more, for its answer
