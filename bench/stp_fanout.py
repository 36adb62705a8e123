"""One change of a table, and how long it takes until a thousand NURLs have heard of it."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path

import penstock
from bench import servers
from bench.rounds import note
from bench.table import Row, microseconds
from penstock.stp import Notifier, Table

WAIT_S = 60.0
_ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


class Listeners:
    """A server in a thread that answers every POST with 202 and keeps when and where it came."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.posts = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        )
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                await reader.readexactly(length)
                self.heard.setdefault(head.split(b" ", 2)[1].decode(), time.perf_counter())
                self.posts += 1
                writer.write(_ACCEPTED)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def run(folder: Path, nurls: int, rounds: int) -> list[Row]:
    limits = f"--notify-listeners-max {nurls * 2} --notify-listeners-per-peer-max {nurls * 2}"
    command = f"{servers.OURS_COMMAND} --development {limits}"
    server = servers.start("ours", folder / "fan-out", ours_command=command)
    listeners = Listeners()
    try:
        url = f"http://127.0.0.1:{server.port}"
        with penstock.Client(url) as client:
            table = Table(client, "fan-out")
            table.create("endpoint_manifest")
            table.put("first", "0")
            notifier = Notifier(client)
            started = time.perf_counter()
            for number in range(nurls):
                nurl = f"http://127.0.0.1:{listeners.port}/{number}"
                notifier.notify(f"{url}/v1/notify/hub", surl=table.url, callbacks={"changed": nurl})
            note(f"    {nurls} NURLs registered in {time.perf_counter() - started:.1f} s")
            last: list[float] = []
            middle: list[float] = []
            for number in range(rounds + 1):
                times = _one(listeners, table, nurls, number)
                if number:  # the first round opens the connections
                    last.append(max(times))
                    middle.append(statistics.median(times))
    finally:
        listeners.close()
        server.stop()
    all_s = statistics.median(last)
    return [
        Row(
            metric=f"one change told to {nurls:,} NURLs on one host: until half know",
            ours=microseconds(statistics.median(middle) * 1e6),
        ),
        Row(
            metric="until all know",
            ours=f"{microseconds(all_s * 1e6)}, {nurls / all_s:,.0f} NURLs/s",
        ),
    ]


def _one(listeners: Listeners, table: Table, nurls: int, number: int) -> list[float]:
    """Change the table once; the seconds from before the write until each NURL was told."""
    _quiet(listeners)
    listeners.heard.clear()
    started = time.perf_counter()
    table.put("endpoint", str(number))
    while len(listeners.heard) < nurls:
        if time.perf_counter() - started > WAIT_S:
            raise RuntimeError(f"only {len(listeners.heard)} of {nurls} NURLs were told")
        time.sleep(0.002)
    return [moment - started for moment in listeners.heard.values()]


def _quiet(listeners: Listeners) -> None:
    """Wait until no more news of the change before is on its way."""
    before = -1
    while listeners.posts != before:
        before = listeners.posts
        time.sleep(0.3)
