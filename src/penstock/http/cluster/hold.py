"""Requests whose shard is changing hands: they wait for its next owner instead of being refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import NotOwner

if TYPE_CHECKING:
    from penstock.http.message import Response
    from penstock.log.cluster.node import Node

ELSEWHERE: Final = b"penstock-elsewhere"
"""The header of a refusal by a node that a shard is not at: nothing was done."""


def is_elsewhere(response: Response) -> bool:
    return response.status == NotOwner.status and any(
        name == ELSEWHERE for name, _ in response.headers
    )


async def held(node: Node, hold_s: float, send: Callable[[], Awaitable[Response]]) -> Response:
    """Return what `send` does. While it reaches nobody, or a node where the shard is not, it is
    tried again after the next look at the shards, for `hold_s`: a request is never executed twice.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + hold_s
    while True:
        try:
            response = await send()
            if not is_elsewhere(response) or loop.time() >= deadline:
                return response
        except NotOwner as error:
            if not error.is_unsent or loop.time() >= deadline:
                raise
        try:
            async with asyncio.timeout_at(deadline):
                await node.next_look()
        except TimeoutError:
            continue  # once more, for its answer
