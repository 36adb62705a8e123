"""A TCP proxy on a thread with an event loop of its own: what it does to a connection is decided by
a subclass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

START_TIMEOUT_S = 10.0
READ_BYTES = 64 * 1024

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
        server.close()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            await self.connection(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(task)
            writer.transport.abort()


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
