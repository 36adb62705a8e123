"""How much access rules cost an append: the same load on an open server and on one with tokens.

The servers run in turns. What counts is the server's own processor time for one append; appends a
second are those of client and server together.

python -m bench.access [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import ExitStack
from typing import NamedTuple

import uvloop

import penstock
from bench.tls import cpu_s
from tests.helpers.server import Server, running_server

ROOT = "operator"
RUN_S = 2.0
CONNECTIONS = (1, 16, 64)
STREAMS = 64
RULES = [f"read:other/{number}/**" for number in range(20)] + ["append:team/**"]


class Side(NamedTuple):
    name: str
    server: Server
    header: str


class Sample(NamedTuple):
    appends_per_s: float
    cpu_us: float


def request(path: str, header: str) -> bytes:
    head = f"POST /v1/stream/{path} HTTP/1.1\r\nHost: localhost\r\n{header}"
    return (
        f"{head}Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\n".encode()
        + b"x" * 100
    )


async def load(side: Side, connections: int) -> float:
    """Appends a second: each connection appends to a stream of its own."""
    done, end = 0, time.monotonic() + RUN_S

    async def run(number: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", side.server.port)
        data = request(f"team/{number % STREAMS}", side.header)
        while time.monotonic() < end:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 204 " in head, head
            done += 1
        writer.close()

    start = time.monotonic()
    await asyncio.gather(*(run(number) for number in range(connections)))
    return done / (time.monotonic() - start)


def measure(side: Side, connections: int) -> Sample:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before, start = cpu_s(side.server.pid), time.monotonic()
        rate = runner.run(load(side, connections))
        seconds = time.monotonic() - start
        return Sample(rate, (cpu_s(side.server.pid) - before) / (rate * seconds) * 1e6)


def prepare(server: Server, token: str | None) -> None:
    with penstock.Client(server.url, token=token) as client:
        for number in range(STREAMS):
            client.stream(f"team/{number}").create(content_type="application/octet-stream")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        free = stack.enter_context(running_server(memory=True))
        closed = stack.enter_context(running_server(memory=True, args=["--token", ROOT]))
        prepare(free, None)
        prepare(closed, ROOT)
        with penstock.Client(closed.url, token=ROOT) as client:
            token = client.create_token(RULES).token
        sides = [
            Side("open", free, ""),
            Side("rules", closed, f"Authorization: Bearer {token}\r\n"),
        ]
        for connections in CONNECTIONS:
            samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
            for number in range(rounds + 1):
                for side in sides if number % 2 else sides[::-1]:
                    sample = measure(side, connections)
                    if number:  # the first round warms up
                        samples[side.name].append(sample)
            rates = [
                statistics.median(each.appends_per_s for each in samples[s.name]) for s in sides
            ]
            costs = [statistics.median(each.cpu_us for each in samples[s.name]) for s in sides]
            print(
                f"{connections} connections: {rates[0]:,.0f} appends/s open, {rates[1]:,.0f} with "
                f"rules ({rates[1] / rates[0]:.2f}); server {costs[0]:.1f} µs, {costs[1]:.1f} µs "
                f"({costs[1] / costs[0]:.2f})"
            )


if __name__ == "__main__":
    main()
