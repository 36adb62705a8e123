"""A load balancer before the nodes of a cluster: every connection goes to the node that says it is
ready, as docs/cluster.md asks for. Where no node is, connections are closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_PIECE = 1 << 16


class Balancer:
    """Passes bytes between clients and the owner among `nodes()`, which are URLs."""

    def __init__(self, nodes: Callable[[], Sequence[str]]) -> None:
        self._nodes = nodes
        self.url = ""
        self.connections = 0

    async def serve(self, ready: threading.Event, ending: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await ending.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            port = await self._owner()
            if port is None:
                return
            self.connections += 1
            from_node, to_node = await asyncio.open_connection("127.0.0.1", port)
            try:
                pumps = [
                    asyncio.create_task(_pump(reader, to_node)),
                    asyncio.create_task(_pump(from_node, writer)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
            finally:
                to_node.close()
        except OSError:
            pass  # the node went away
        finally:
            writer.close()

    async def _owner(self) -> int | None:
        for url in self._nodes():
            port = urlsplit(url).port or 0
            with suppress(OSError, asyncio.TimeoutError):
                async with asyncio.timeout(2):
                    if await _is_ready(port):
                        return port
        return None


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


@contextmanager
def balancing(nodes: Callable[[], Sequence[str]]) -> Iterator[Balancer]:
    """A balancer on a free port, in a thread of its own."""
    balancer, ready = Balancer(nodes), threading.Event()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()
    work = balancer.serve(ready, ending)
    thread = threading.Thread(target=loop.run_until_complete, args=(work,))
    thread.start()
    try:
        assert ready.wait(30)
        yield balancer
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
