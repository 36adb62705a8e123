"""A node over PostgreSQL with two synchronous standbys beside the disk store, in the same run, and
how long writes stop when the owner is killed or frozen.

`make bench-cluster`. Slices of both servers alternate; the ratios are worth more than the figures,
because everything shares the processors of one machine.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import statistics
import time
from contextlib import ExitStack

import httpx

from tests.cluster.workload import Cluster
from tests.helpers.postgres import running_trio
from tests.helpers.server import running_server

SLICES = int(os.environ.get("SLICES", "5"))
SLICE_S = float(os.environ.get("SLICE_S", "1.0"))
TAKEOVERS = int(os.environ.get("TAKEOVERS", "5"))
BODY = b'[{"message":"' + b"x" * 80 + b'"}]'
HEAD = b"POST /v1/stream/%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SHAPES = ((1, 1), (16, 1), (64, 1), (64, 64))
"""Connections, and streams that they append to."""


async def append_for(url: str, connections: int, streams: int) -> tuple[float, float]:
    """Append with so many connections for one slice; return appends a second and the median s."""
    host, port = url.removeprefix("http://").split(":")
    latencies: list[float] = []
    end = time.perf_counter() + SLICE_S

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = HEAD % f"bench-{number % streams}".encode()
        request = head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        while (started := time.perf_counter()) < end:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 200")), answer
            latencies.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return len(latencies) / SLICE_S, statistics.median(latencies)


def create(url: str) -> None:
    for number in range(max(streams for _, streams in SHAPES)):
        httpx.put(
            f"{url}/v1/stream/bench-{number}", headers={"content-type": "application/json"}
        ).raise_for_status()


def rates(disk: str, node: str) -> None:
    print("connections/streams    disk appends/s (p50)   cluster appends/s (p50)   ratio")
    for connections, streams in SHAPES:
        results: dict[str, list[tuple[float, float]]] = {disk: [], node: []}
        for _ in range(SLICES):
            for url, slices in results.items():
                slices.append(asyncio.run(append_for(url, connections, streams)))
        (disk_rate, disk_s), (node_rate, node_s) = (
            tuple(statistics.median(column) for column in zip(*slices, strict=True))
            for slices in results.values()
        )
        print(
            f"{connections:4} over {streams:<4}"
            f"{disk_rate:16,.0f} ({disk_s * 1000:5.2f} ms)"
            f"{node_rate:16,.0f} ({node_s * 1000:5.2f} ms)"
            f"{node_rate / disk_rate:12.2f}×"
        )


def handover_s(cluster: Cluster) -> float:
    """Stop the owner in order; return how long the slowest append at another node takes."""
    cluster.spread()
    owner = cluster.owner("bench-0")
    other = next(node for node in cluster.nodes if node is not owner and node.running)
    slowest = 0.0
    with httpx.Client(timeout=10) as client:
        os.kill(owner.pid, signal.SIGTERM)
        while owner.running or cluster.owner("bench-0") is owner:
            started = time.perf_counter()
            client.post(
                f"{other.url}/v1/stream/bench-0",
                content=BODY,
                headers={"content-type": "application/json"},
            ).raise_for_status()
            slowest = max(slowest, time.perf_counter() - started)
    cluster.nodes.remove(owner)
    cluster.add()
    return slowest


def takeover_s(cluster: Cluster, number: signal.Signals) -> float:
    """Kill or freeze the owner; return how long it takes until an append succeeds elsewhere."""
    cluster.spread()
    owner = cluster.owner("bench-0")
    others = [node for node in cluster.nodes if node is not owner and node.running]
    started = time.perf_counter()
    os.kill(owner.pid, number)
    while True:
        for node in others:
            try:
                answer = httpx.post(
                    f"{node.url}/v1/stream/bench-0",
                    content=BODY,
                    headers={"content-type": "application/json"},
                    timeout=5,
                )
            except httpx.HTTPError:
                continue
            if answer.status_code < 300:
                taken = time.perf_counter() - started
                owner.kill()
                cluster.nodes.remove(owner)
                cluster.add()
                return taken
        time.sleep(0.01)


def main() -> None:
    with running_trio() as trio, ExitStack() as stack:
        cluster = Cluster(stack, trio.dsn)
        cluster.add()
        node = cluster.owner("bench-0")
        cluster.spread()
        with running_server() as disk:
            for url in (disk.url, node.url):
                create(url)
            rates(disk.url, node.url)
        cluster.add()
        times = sorted(handover_s(cluster) for _ in range(TAKEOVERS))
        print(
            f"owner stopped: the slowest append takes {statistics.median(times):.2f} s "
            f"(median of {TAKEOVERS}; at most {times[-1]:.2f} s)"
        )
        for number, name in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "frozen")):
            times = sorted(takeover_s(cluster, number) for _ in range(TAKEOVERS))
            print(
                f"owner {name}: writes go on after {statistics.median(times):.2f} s "
                f"(median of {TAKEOVERS}; at most {times[-1]:.2f} s)"
            )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor time of all processes: {used.ru_utime + used.ru_stime:.0f} s")


if __name__ == "__main__":
    main()
