"""What several workers give, and what they share: the same load on servers of 1 and of 2 workers,
in turns.

On a machine with two cores the generator has a share of them, and so has everybody else: beside
requests a second the processor time of the server for one request is shown, which others hardly
change, and the share of a core that the generator took.

python -m bench.workers [--rounds N] [--seconds S] [--workers N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bench import load
from penstock.protocol.shards import shard_of
from tests.helpers.server import Server, running_server

GENERATORS = 4
CONNECTIONS = 16  # of each generator
MIXED = 64


class Sample(NamedTuple):
    rate: float
    server_us: float
    """Processor time of all processes of the server for one request."""
    generator: float
    """Share of one core."""


def paths(count: int, workers: int) -> list[str]:
    """Paths of which every worker has as many."""
    each: dict[int, list[str]] = {index: [] for index in range(workers)}
    number = 0
    while any(len(some) < count // workers for some in each.values()):
        path = f"bench-{number}"
        number += 1
        some = each[shard_of(path, workers)]
        if len(some) < count // workers:
            some.append(path)
    return [path for some in zip(*each.values(), strict=True) for path in some]


def processes(server: Server) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]


def cpu_s(server: Server) -> float:
    total = 0.0
    for pid in processes(server):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def own_streams(
    server: Server, seconds: float, method: str, *, connections: int = CONNECTIONS
) -> list[dict[str, Any]]:
    """Every connection keeps to one stream: it is handed to its owner, and stays."""
    query = "" if method == "POST" else "?offset=now"
    with ThreadPoolExecutor(GENERATORS) as pool:
        runs = [
            pool.submit(
                load.wrk,
                server.port,
                f"/v1/stream/{path}{query}",
                seconds=seconds,
                connections=connections,
                method=method,
            )
            for path in paths(GENERATORS, 2)
        ]
        return [run.result() for run in runs]


def many_connections(server: Server, seconds: float, method: str) -> list[dict[str, Any]]:
    """As much for each of two workers as one has above: commits are as large then."""
    return own_streams(server, seconds, method, connections=2 * CONNECTIONS)


def mixed(server: Server, seconds: float, method: str) -> list[dict[str, Any]]:
    """Every connection takes all streams in turn: half of its requests are for another worker."""
    run = load.wrk(
        server.port,
        "/v1/stream/mixed",
        seconds=seconds,
        connections=64,
        method=method,
        streams=MIXED,
    )
    return [run]


Load = Callable[[Server, float, str], list[dict[str, Any]]]
LOADS: dict[str, tuple[Load, str]] = {
    "appends, 4 x 16 connections, a stream each": (own_streams, "POST"),
    "appends, 4 x 32 connections, a stream each": (many_connections, "POST"),
    "appends, 64 connections, 64 streams in turn": (mixed, "POST"),
    "reads at the tail, 4 x 16 connections": (own_streams, "GET"),
}


def measure(server: Server, run: Load, seconds: float, method: str) -> Sample:
    before = cpu_s(server)
    results = run(server, seconds, method)
    requests = sum(result["requests"] for result in results)
    return Sample(
        sum(result["rate"] for result in results),
        (cpu_s(server) - before) / requests * 1e6,
        max(result["generator_cpu"] for result in results),
    )


def create(server: Server) -> None:
    names = [*paths(GENERATORS, 2), *(f"mixed-{number}" for number in range(MIXED))]
    with httpx2.Client(base_url=server.url) as http:
        for name in names:
            http.put(f"/v1/stream/{name}", headers={"content-type": "application/json"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.workers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            count: cleanup.enter_context(
                running_server(args=["--workers", str(count)], data_dir=folder / str(count))
            )
            for count in (1, options.workers)
        }
        for server in servers.values():
            create(server)
        for name, (run, method) in LOADS.items():
            samples: dict[int, list[Sample]] = {count: [] for count in servers}
            for _ in range(options.rounds):
                for count, server in servers.items():
                    samples[count].append(measure(server, run, options.seconds, method))
            print(name)
            for count, some in samples.items():
                middle = Sample(*(statistics.median(values) for values in zip(*some, strict=True)))
                print(
                    f"  {count} workers: {middle.rate:8,.0f}/s  {middle.server_us:6.1f} µs  "
                    f"generator {middle.generator:.2f} of a core"
                )


if __name__ == "__main__":
    main()
