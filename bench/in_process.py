"""The processor time of single operations in one process, without a network: connections get their
bytes from here, and what they write is thrown away.

`measure()` runs on the event loop of a server whose data folder is real. What it finds is lower
than over sockets, and steadier: it shows what a change of our own code does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock.config.settings import Settings
from penstock.http.native.connection import Connection
from penstock.http.native.server import Server, listen, new_event_loop

REPEATS = 7
MESSAGE = b'{"text":"%s"}' % (b"x" * 89)
BATCH = b"[" + b",".join([MESSAGE] * 100) + b"]"
CATCH_UP_MESSAGES = 10_000
READERS = 100


class Count:
    """Counts what is written, and tells who waits for so much."""

    def __init__(self) -> None:
        self.written = 0
        self._expected = 0
        self._reached: asyncio.Future[None] | None = None

    def add(self) -> None:
        self.written += 1
        if self._reached is not None and self.written >= self._expected:
            self._reached.set_result(None)
            self._reached = None

    async def more(self, count: int, send: Callable[[], object]) -> None:
        """Return when so much more was written than before `send`."""
        self._expected = self.written + count
        reached = self._reached = asyncio.get_running_loop().create_future()
        send()
        await reached


class NoSocket:
    """A transport that counts what is written."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self.last = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.last = data
        self._count.add()

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self._count.add()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def nothing(self, *_: object, **__: object) -> None:
        """Stand in for whatever needs a socket."""

    pause_reading = resume_reading = set_write_buffer_limits = set_protocol = nothing
    close = abort = write_eof = nothing


class Client:
    """One connection to the server, by its methods."""

    def __init__(self, server: Server, count: Count | None = None) -> None:
        self._count = count or Count()
        self.transport = NoSocket(self._count)
        self._connection = Connection(server.table)
        self._connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        self._connection.data_received(data)

    async def ask(self, data: bytes, answers: int = 1) -> bytes:
        await self._count.more(answers, lambda: self.send(data))
        return self.transport.last


def request(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} /v1/stream/{target} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if method != "GET":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _us(work: Callable[[], Awaitable[int]]) -> float:
    """The least processor time of an operation, of several runs of as many as `work` says."""
    await work()
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        operations = await work()
        times.append((time.process_time() - began) / operations * 1e6)
    return min(times)


async def _appends(server: Server, path: str, body: bytes, connections: int, turns: int) -> float:
    count = Count()
    clients = [Client(server, count) for _ in range(connections)]
    await clients[0].ask(request("PUT", path))
    post = request("POST", path, body)

    def send() -> None:
        for each in clients:
            each.send(post)

    async def work() -> int:
        for _ in range(turns):
            await count.more(connections, send)
        return turns * connections

    found = await _us(work)
    assert b" 204 " in clients[0].transport.last, clients[0].transport.last
    return found


async def _reads(server: Server, target: str, answers: int, times: int) -> float:
    client = Client(server)
    get = request("GET", target)

    async def work() -> int:
        for _ in range(times):
            await client.ask(get, answers)
        return times

    return await _us(work)


async def _events(server: Server, path: str, times: int) -> float:
    writer, count = Client(server), Count()
    readers = [Client(server, count) for _ in range(READERS)]
    await writer.ask(request("PUT", path))
    live = request("GET", f"{path}?offset=-1&live=sse")
    for each in readers:
        await each.ask(live)
    post = request("POST", path, MESSAGE)

    async def work() -> int:
        for _ in range(times):
            await count.more(READERS, lambda: writer.send(post))
        return times * READERS

    found = await _us(work)
    for reader in list(server.table.events):
        reader.connection_lost(None)
    return found


async def measure(folder: Path) -> dict[str, float]:
    """Return the processor time of each operation, in microseconds."""
    from penstock.http.app import open_app

    settings = Settings(data_dir=folder, port=0)
    app = await open_app(settings)
    server = Server(app, settings, traffic=app.traffic)
    await server.start(listen("127.0.0.1", 0))
    try:
        found = {"append": await _appends(server, "append", MESSAGE, 64, 100)}
        found["batch"] = await _appends(server, "batch", BATCH, 8, 60)
        filler = Client(server)
        await filler.ask(request("PUT", "log"))
        for _ in range(CATCH_UP_MESSAGES // 100):
            await filler.ask(request("POST", "log", BATCH))
        found["catch-up"] = await _reads(server, "log?offset=-1", 2, 2_000)
        head = (await filler.ask(request("HEAD", "log"))).decode()
        tail = head.partition("stream-next-offset: ")[2].partition("\r\n")[0]
        await filler.ask(request("POST", "log", MESSAGE))
        found["tail"] = await _reads(server, f"log?offset={tail}", 1, 10_000)
        found["event"] = await _events(server, "events", 100)
    finally:
        for connection in list(server.table.connections):
            connection.connection_lost(None)
        await server.stop()
        await app.stop()
    return found


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        sys.stdout.write(json.dumps(runner.run(measure(Path(folder)))) + "\n")


if __name__ == "__main__":
    main()
