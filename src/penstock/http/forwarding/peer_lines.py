"""Lines of JSON that a peer sends in one response for good: how they are asked for, read, and
asked for again when they have ended. What they say is their reader's business.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.backoff import Backoff
from penstock.errors import NotOwner
from penstock.http.forwarding.control import PREFIX
from penstock.http.forwarding.owners import unowned
from penstock.http.message import EventBody

if TYPE_CHECKING:
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Peer

_log = logging.getLogger("penstock.http")
_backoff = Backoff(base_s=0.05, cap_s=2.0, jitter=0.5)


class Lines:
    """The Sink of a response with lines of JSON."""

    def __init__(self, on_line: Callable[[Any], None]) -> None:
        self._on_line = on_line
        self._received = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.congested = False
        self.buffered = 0

    def write(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._on_line(msgspec.json.decode(line))

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        self.close()


@asynccontextmanager
async def lines_of(
    peer: Peer, forwarder: Forwarder, question: str, body: bytes, on_line: Callable[[Any], None]
) -> AsyncIterator[Lines]:
    """Ask a peer for lines, and take them within the context."""
    response = await forwarder.ask(peer, "POST", PREFIX + question.encode(), body)
    if response.status != 200 or not isinstance(response.body, EventBody):
        raise unowned(f"{peer.name} says nothing of its streams.")
    lines = Lines(on_line)
    response.body.attach(lines)
    try:
        yield lines
    finally:
        response.body.detach()


async def read_again(
    read: Callable[[], Awaitable[None]],
    peer: Peer,
    *,
    on_ended: Callable[[], None] | None = None,
) -> None:
    """Read what a peer says, and again whenever that has ended, until this is cancelled."""
    failures = 0
    while True:
        try:
            await read()
            failures = 0
        except NotOwner:
            failures += 1
        except Exception:  # noqa: BLE001 - it is tried again
            failures += 1
            _log.exception("what %s says of its streams cannot be read", peer.name)
        if on_ended is not None:
            on_ended()
        await asyncio.sleep(_backoff.wait_s(failures + 1, random.random()))
