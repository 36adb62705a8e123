"""A TCP proxy that can become silent, slow, or deaf in one direction, and heal again.

Nobody is told: connections stay open, as they do when a network loses every packet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

START_TIMEOUT_S = 10.0
READ_BYTES = 64 * 1024
UP, DOWN = "up", "down"


class TcpProxy:
    """What `cut` and `slow_down` say holds for all bytes until `heal`. Bytes that were lost are
    never delivered: their connections end when it heals."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self.port = 0
        self.opened = 0
        """Connections that were ever opened."""
        self._lost: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._connections: dict[asyncio.Task[None], bool] = {}
        """Whether each has lost something, or was opened while it would have."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- called by tests

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
                for task, has_lost in self._connections.items():
                    if has_lost:
                        task.cancel()
            done.set()

        self._loop.call_soon_threadsafe(change)
        assert done.wait(START_TIMEOUT_S)

    # -- its thread

    def run(self) -> None:
        asyncio.run(self._serve())

    def wait_until_ready(self) -> None:
        assert self._ready.wait(START_TIMEOUT_S), "the proxy did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=READ_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = False
        self.opened += 1
        try:
            await self._connection(reader, writer, task)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _connection(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
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
                    self._connections[task] = True
                    continue
                if self._connections.get(task):
                    return  # What came before was lost: TCP would never deliver this.
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)  # the fault itself
                sink.write(data)
                await sink.drain()
            # A network that loses everything loses the end of a connection, too.
            while direction in self._lost:
                self._connections[task] = True
                await asyncio.sleep(0.05)  # until it heals; nothing else wakes it


@contextmanager
def tcp_proxy(host: str, port: int) -> Iterator[TcpProxy]:
    proxy = TcpProxy(host, port)
    thread = threading.Thread(target=proxy.run, name="tcp-proxy", daemon=True)
    thread.start()
    proxy.wait_until_ready()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
