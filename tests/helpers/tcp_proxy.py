"""A TCP proxy that can become silent, slow, or deaf in one direction, and heal again.

Nobody is told: connections stay open, as they do when a network loses every packet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.helpers.proxy_thread import READ_BYTES, START_TIMEOUT_S, ProxyThread, running

UP, DOWN = "up", "down"


class TcpProxy(ProxyThread):
    """What `cut` and `slow_down` say holds for all bytes until `heal`. Bytes that were lost are
    never delivered: their connections end when it heals."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.opened = 0
        """Connections that were ever opened."""
        self._lost: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._has_lost: set[asyncio.Task[None]] = set()
        """Connections that have lost something, or were opened while they would have."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- called by tests

    @property
    def silenced(self) -> int:
        """Open connections that have lost something."""
        return len(self._has_lost)

    def cut(self, *directions: str) -> None:
        """Lose all bytes in some directions; in both if none is named."""
        self._call(frozenset(directions or (UP, DOWN)), 0.0)

    def slow_down(self, delay_s: float) -> None:
        """Deliver every piece so much later."""
        self._call(frozenset(), delay_s)

    def heal(self) -> None:
        self._call(frozenset(), 0.0)

    def _call(self, lost: frozenset[str], delay_s: float) -> None:
        done = threading.Event()

        def change() -> None:
            self._lost, self._delay_s = lost, delay_s
            if not lost:
                for task in self._has_lost:
                    task.cancel()
            done.set()

        self.loop.call_soon_threadsafe(change)
        assert done.wait(START_TIMEOUT_S)

    # -- its thread

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.opened += 1
        up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        pumps = (
            asyncio.create_task(self._pump(UP, reader, up_writer, task)),
            asyncio.create_task(self._pump(DOWN, up_reader, writer, task)),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await asyncio.gather(*pumps)
            up_writer.transport.abort()
            self._has_lost.discard(task)

    async def _pump(
        self,
        direction: str,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(READ_BYTES):
                if direction in self._lost:
                    self._has_lost.add(task)
                    continue
                if task in self._has_lost:
                    return  # What came before was lost: TCP would never deliver this.
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)  # the fault itself
                sink.write(data)
                await sink.drain()
            # A network that loses everything loses the end of a connection, too.
            while direction in self._lost:
                self._has_lost.add(task)
                await asyncio.sleep(0.05)  # until it heals; nothing else wakes it


@contextmanager
def tcp_proxy(host: str, port: int) -> Iterator[TcpProxy]:
    with running(TcpProxy(host, port)) as proxy:
        yield proxy
