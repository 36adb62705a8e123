"""A TCP proxy on a thread with an event loop of its own: what it does to a connection is decided by
a subclass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

START_TIMEOUT_S = 10.0
READ_BYTES = 64 * 1024
ACCEPT_TURNS = 5
"""After so many turns of its loop, asyncio has handed over whatever connections it has accepted."""

P = TypeVar("P", bound="ProxyThread")


class ProxyThread:
    """Listens on a free port of this machine. `connection` passes bytes on until one side has
    ended; both are cut when it returns."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.port = 0
        self._ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.connections: set[asyncio.Task[None]] = set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def run(self) -> None:
        asyncio.run(self._serve())

    def wait_until_ready(self) -> None:
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError("the proxy did not start")

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=READ_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        # Not `close` at once: asyncio forgets what it has accepted and not handed over yet.
        for sock in server.sockets:
            self.loop.remove_reader(sock.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)
        await asyncio.sleep(0)  # their transports are closed in the next turn

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self.loop.create_task(self._carry(reader, writer))
        self.connections.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self.connections.discard(task)
            writer.transport.abort()  # also of one that was cancelled before it began

        task.add_done_callback(ended)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self.connection(reader, writer)


@contextmanager
def running(proxy: P) -> Iterator[P]:
    """Run a proxy on a thread of its own."""
    thread = threading.Thread(target=proxy.run, name=type(proxy).__name__, daemon=True)
    thread.start()
    proxy.wait_until_ready()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
