"""How much TLS costs: the same load on a plain and on a TLS server, in turns.

The client needs more time for TLS than the server, so that the server's own processor time is what
counts; requests a second are those of client and server together.

python -m bench.tls [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path

import uvloop

from tests.helpers.certs import Authority
from tests.helpers.server import Server, running_server

CONNECTIONS = 16
READERS = 100
EVENTS = 300
IDLE = 500
RUN_S = 2.0
HEADERS = "Host: localhost\r\nContent-Type: application/octet-stream\r\n"


async def connect(
    server: Server, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context)


def post(path: str, body: bytes) -> bytes:
    head = f"POST /v1/stream/{path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def create(server: Server, context: ssl.SSLContext | None, path: str) -> None:
    reader, writer = await connect(server, context)
    writer.write(f"PUT /v1/stream/{path} HTTP/1.1\r\n{HEADERS}Content-Length: 0\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def appends(server: Server, context: ssl.SSLContext | None, size: int) -> float:
    """Appends a second, over several connections that are open already."""
    await create(server, context, "a")
    connections = [await connect(server, context) for _ in range(CONNECTIONS)]
    request, done = post("a", bytes(size)), 0
    end = time.monotonic() + RUN_S

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal done
        while time.monotonic() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 204 " in head, head
            done += 1

    start = time.monotonic()
    await asyncio.gather(*(run(*each) for each in connections))
    elapsed = time.monotonic() - start
    for _, writer in connections:
        writer.close()
    return done / elapsed


async def fan_out(server: Server, context: ssl.SSLContext | None) -> float:
    """Events delivered a second to many SSE readers of one stream."""
    path = f"f{time.monotonic_ns()}"
    await create(server, context, path)
    readers = [await connect(server, context) for _ in range(READERS)]
    for reader, writer in readers:
        writer.write(
            f"GET /v1/stream/{path}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await reader.readuntil(b"upToDate")
    reader, writer = await connect(server, context)

    async def read(reader: asyncio.StreamReader) -> None:
        for _ in range(EVENTS):
            await reader.readuntil(b"event: data")

    async def write() -> None:
        for _ in range(EVENTS):
            writer.write(post(path, bytes(100)))
            await reader.readuntil(b"\r\n\r\n")

    start = time.monotonic()
    await asyncio.gather(write(), *(read(each) for each, _ in readers))
    elapsed = time.monotonic() - start
    for _, each in [*readers, (reader, writer)]:
        each.close()
    return READERS * EVENTS / elapsed


async def handshakes(server: Server, context: ssl.SSLContext | None) -> float:
    """New connections with one request each, a second."""
    done, end = 0, time.monotonic() + RUN_S
    start = time.monotonic()
    while time.monotonic() < end:
        reader, writer = await connect(server, context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        done += 1
    return done / (time.monotonic() - start)


async def idle_bytes(server: Server, context: ssl.SSLContext | None) -> float:
    """Resident memory of the server per idle SSE reader, in KiB."""
    path = f"i{time.monotonic_ns()}"
    await create(server, context, path)
    before = resident_kib(server.pid)
    readers = [await connect(server, context) for _ in range(IDLE)]
    for reader, writer in readers:
        writer.write(
            f"GET /v1/stream/{path}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await reader.readuntil(b"upToDate")
    used = (resident_kib(server.pid) - before) / IDLE
    for _, writer in readers:
        writer.close()
    return used


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


LOADS: dict[str, Callable[[Server, ssl.SSLContext | None], Coroutine[None, None, float]]] = {
    "idle SSE reader, KiB": idle_bytes,
    "appends of 100 bytes/s": lambda server, context: appends(server, context, 100),
    "appends of 64 KiB/s": lambda server, context: appends(server, context, 65536),
    f"SSE events/s to {READERS} readers": fan_out,
    "connections/s": handshakes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(folder)
        cert = str(authority.issue("server"))
        sides: list[tuple[Server, ssl.SSLContext | None]] = [
            (stack.enter_context(running_server(memory=True)), None),
            (
                stack.enter_context(running_server(memory=True, args=["--tls-cert", cert])),
                authority.client(),
            ),
        ]
        for name, load in LOADS.items():
            results: list[list[float]] = [[], []]
            costs: list[list[float]] = [[], []]
            for _ in range(1 if name.startswith("idle") else rounds):
                for side, (server, context) in enumerate(sides):
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        before, start = cpu_s(server.pid), time.monotonic()
                        result = runner.run(load(server, context))
                        seconds = time.monotonic() - start
                    results[side].append(result)
                    # The load runs nearly all of that time, so this is the cost of one operation.
                    costs[side].append((cpu_s(server.pid) - before) / (result * seconds) * 1e6)
            plain, secure = (statistics.median(each) for each in results)
            line = f"{name}: {plain:,.1f} plain, {secure:,.1f} TLS ({secure / plain:.2f})"
            if not name.startswith("idle"):
                plain, secure = (statistics.median(each) for each in costs)
                line += f"; server {plain:.1f} µs, {secure:.1f} µs ({secure / plain:.2f})"
            print(line)


if __name__ == "__main__":
    main()
