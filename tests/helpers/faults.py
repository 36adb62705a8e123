"""A TCP proxy that breaks connections on purpose, between a client and a server.

with fault_proxy(server.url, plan) as proxy:
    Client(proxy.url)

The plan is asked once for each connection. Faults happen in the direction of the client, after so
many bytes of the connection have been passed on.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from tests.helpers.proxy_thread import READ_BYTES, ProxyThread, running

Kind = Literal["none", "refuse", "reset", "truncate", "half-close", "stall", "delay"]

DELAY_S = 0.005


class Fault(NamedTuple):
    """What happens to a connection, after how many bytes of answers.

    refuse: closed before anything is passed on; reset: RST; truncate: closed as if it were the
    end; half-close: the same, but the client's bytes are still taken; stall: nothing more comes,
    and nothing is closed; delay: the bytes come in two parts, with a pause.
    """

    kind: Kind = "none"
    after: int = 0


Plan = Callable[[], Fault]


def seeded(seed: int, *, faults: int, kinds: tuple[Kind, ...], bytes_max: int) -> Plan:
    """So many faults, drawn from `kinds`; after them every connection is left alone."""
    chooser = random.Random(seed)
    left = faults

    def plan() -> Fault:
        nonlocal left
        if left == 0:
            return Fault()
        left -= 1
        return Fault(chooser.choice(kinds), chooser.randrange(bytes_max))

    return plan


class FaultProxy(ProxyThread):
    """A proxy that runs; `injected` counts the faults that were reached, by kind."""

    def __init__(self, upstream_url: str, plan: Plan) -> None:
        parts = urlsplit(upstream_url)
        super().__init__(parts.hostname or "", parts.port or 0)
        self._plan = plan
        self.injected: dict[Kind, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._plan()
        if fault.kind == "refuse":
            self._count(fault)
            return
        up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        up = asyncio.create_task(_pump(reader, up_writer))
        try:
            await self._down(fault, up_reader, writer, up)
        finally:
            up.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await up
            up_writer.transport.abort()

    async def _down(
        self,
        fault: Fault,
        source: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up: asyncio.Task[None],
    ) -> None:
        """Pass on what the server says, until the fault is due."""
        passed = 0
        while data := await source.read(READ_BYTES):
            due = fault.kind != "none" and passed + len(data) > fault.after
            first = data[: fault.after - passed] if due else data
            writer.write(first)
            await writer.drain()
            passed += len(first)
            if not due:
                continue
            self._count(fault)
            if fault.kind != "delay":
                await self._break(fault, writer, up)
                return
            await asyncio.sleep(DELAY_S)
            writer.write(data[len(first) :])
            passed += len(data) - len(first)
            # A delay breaks nothing: the connection goes on, and towards its next fault.
            following = self._plan()
            fault = following._replace(after=following.after + passed)
        writer.write_eof()
        await up

    async def _break(
        self, fault: Fault, writer: asyncio.StreamWriter, up: asyncio.Task[None]
    ) -> None:
        if fault.kind in ("reset", "refuse"):
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif fault.kind == "half-close":
            writer.write_eof()
            await up  # until the client has gone
        elif fault.kind == "stall":
            await up

    def _count(self, fault: Fault) -> None:
        self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(READ_BYTES):
            sink.write(data)
            await sink.drain()


@contextmanager
def fault_proxy(upstream_url: str, plan: Plan) -> Iterator[FaultProxy]:
    with running(FaultProxy(upstream_url, plan)) as proxy:
        yield proxy
