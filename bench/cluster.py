"""A cluster over PostgreSQL with two synchronous standbys beside the disk store, in the same run.

`make bench-cluster`. Slices of both servers alternate; the ratios are worth more than the figures,
because nodes, three servers of PostgreSQL and the load generator share the processors of one
machine. `floor` is what nothing above PostgreSQL could beat there: its own INSERT, in a loop.

python -m bench.cluster [--only GROUPS] [--slices N] [--takeovers N] [--shards N] [--streams N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from bench import load, many_streams
from bench.processor_time import processor_s
from tests.cluster.workload import Cluster
from tests.helpers.postgres import Trio, running_trio
from tests.helpers.server import Server, running_server

SLICE_S = 2.0
SHAPES = ((1, 1, 0.35), (16, 1, 0.5), (64, 1, 0.7), (64, 64, 0.65))
"""Connections, streams that they append to, and the ratio to the disk store that is wanted."""
BY_THREAD = ("--in-place-commit-us", "0")
PLAIN = {"PENSTOCK_PURE": "1"}
"""The disk store as it was when these ratios were set: each batch written by its thread, as plain
Python. What is between the two is what the disk store has gained since."""
RECORD_BYTES = 140
"""About what an append of the load generator is in the journal."""
LIVE_APPENDS = 300
READ_BYTES = 10_000_000
JSON = {"content-type": "application/json"}
BODY = b'[{"message":"' + b"x" * 80 + b'"}]'
FEW_STREAMS = 1_000


def create(url: str, *paths: str) -> None:
    for path in paths:
        httpx.put(f"{url}/v1/stream/{path}", headers=JSON).raise_for_status()


class Bench:
    """One trio, the nodes over it, and two servers with the disk store."""

    def __init__(self, options: argparse.Namespace, trio: Trio, stack: ExitStack) -> None:
        self.options = options
        self.trio = trio
        self.stack = stack
        self.disk = stack.enter_context(running_server())
        self.plain = stack.enter_context(running_server(args=BY_THREAD, env=PLAIN))
        self.cluster = Cluster(stack, trio.dsn, shards=options.shards)
        self.node = self.cluster.add()
        self.cluster.spread()

    def fresh_database(self, name: str) -> str:
        """Make an empty database on the same servers; return its URL."""
        self.trio.primary.query(f"CREATE DATABASE {name}", "postgres")
        return self.trio.dsn.rpartition("/")[0] + f"/{name}"

    def two_nodes(self, path: str = "bench") -> tuple[Server, Server]:
        return two_nodes(self.cluster, path)


def two_nodes(cluster: Cluster, path: str = "bench") -> tuple[Server, Server]:
    """Return the owner of a path, and a node that does not own it."""
    while len(cluster.running) < 2:
        cluster.add()
    cluster.spread()
    owner = cluster.owner(path)
    return owner, next(node for node in cluster.running if node is not owner)


# -- appends


def append(server: Server, connections: int, streams: int, pids: list[int]) -> list[float]:
    """Append for a slice; return appends a second, the median in ms, and the processor time of an
    append in µs: of the server, and of the processes `pids`."""
    before = processor_s(server.pid), processor_s(*pids)
    result = load.wrk(
        server.port,
        "/v1/stream/bench",
        seconds=SLICE_S,
        connections=connections,
        streams=streams,
    )
    after = processor_s(server.pid), processor_s(*pids)
    costs = [(b - a) / result["requests"] * 1e6 for a, b in zip(before, after, strict=True)]
    return [result["rate"], result["p50_us"] / 1000, *costs]


def appends(bench: Bench) -> None:
    """Appends of 100 bytes to a node that owns all streams, beside the disk store as it is, and as
    it was when the ratios were set."""
    pids = [server.process.pid for server in bench.trio.servers if server.process is not None]
    paths = ["bench", *(f"bench-{number}" for number in range(64))]
    servers = (bench.disk, bench.plain, bench.node)
    for server in servers:
        create(server.url, *paths)
    for connections, streams, target in SHAPES:
        samples: dict[Server, list[list[float]]] = {server: [] for server in servers}
        for number in range(bench.options.slices + 1):
            for server, slices in samples.items():
                sample = append(server, connections, streams, pids)
                if number:  # the first slice warms up
                    slices.append(sample)
        disk, plain, node = (
            [statistics.median(column) for column in zip(*slices, strict=True)]
            for slices in samples.values()
        )
        print(
            f"{connections:3} over {streams:<3} disk {disk[0]:7,.0f}/s {disk[1]:5.2f} ms "
            f"{disk[2]:4.0f} µs   cluster {node[0]:7,.0f}/s {node[1]:5.2f} ms {node[2]:4.0f} + "
            f"{node[3]:4.0f} µs   {node[0] / disk[0]:.2f}× (wanted: {target}), p50 "
            f"{node[1] / disk[1]:.1f}×; of the disk store when that was wanted ({plain[0]:,.0f}/s, "
            f"{plain[1]:.2f} ms) {node[0] / plain[0]:.2f}×, p50 {node[1] / plain[1]:.1f}×",
            flush=True,
        )


# -- what PostgreSQL itself takes

_FLOOR = """
import asyncio, statistics, sys, time
from penstock.config.settings import Settings
from penstock.http.native.server import new_event_loop
from penstock.log.cluster import slots
from penstock.log.cluster.database import Database

async def main(dsn, sizes):
    session = await Database(Settings(cluster=dsn)).open()
    rows = await session.fetch("SELECT shard, epoch FROM penstock.shard ORDER BY shard LIMIT 1")
    shard, epoch = rows[0]
    rows = await session.fetch("SELECT coalesce(max(seq), 0) FROM penstock.journal")
    seq = rows[0][0] + 1_000_000
    for size in sizes:
        taken, body, end = [], bytes(size), time.perf_counter() + 2
        while (started := time.perf_counter()) < end:
            assert await session.fetch(slots.APPEND, shard, seq, epoch, 1, 1, body)
            taken.append(time.perf_counter() - started)
            seq += 1
        print(statistics.median(taken), flush=True)
    session.abort()
    await asyncio.sleep(0)

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main(sys.argv[1], list(map(int, sys.argv[2:]))))
"""


def floor(bench: Bench) -> None:
    """The INSERT of a node alone, one after the other, with batches of so many appends."""
    create(bench.disk.url, "floor")
    counts = sorted({connections for connections, *_ in SHAPES})
    sizes = [str(count * RECORD_BYTES) for count in counts]
    # The journal gets slots that no owner wants: the cluster is thrown away afterwards.
    done = subprocess.run(
        [sys.executable, "-c", _FLOOR, bench.trio.dsn, *sizes],
        capture_output=True,
        text=True,
        check=True,
    )
    for count, line in zip(counts, done.stdout.split(), strict=True):
        disk = load.wrk(bench.disk.port, "/v1/stream/floor", seconds=SLICE_S, connections=count)
        rate = count / float(line)
        print(
            f"floor, {count:2} appends in an INSERT: {float(line) * 1000:.2f} ms, so at most "
            f"{rate:,.0f}/s one after the other, {rate / disk['rate']:.2f}× of the disk store",
            flush=True,
        )


# -- readers


async def _live_s(writing: Server, reading: Server, path: str) -> float:
    """Return the median s from sending an append to its event at a reader."""
    reader, follower = await asyncio.open_connection("127.0.0.1", reading.port)
    head = f"GET /v1/stream/{path}?offset=now&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n"
    follower.write(head.encode())
    while b"upToDate" not in await reader.readline():
        pass
    answers, writer = await asyncio.open_connection("127.0.0.1", writing.port)
    taken = []
    for number in range(LIVE_APPENDS):
        body = b'[{"number":%d}]' % number
        head = f"POST /v1/stream/{path} HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        writer.write(head.encode() + body)
        while b'"number":%d}' % number not in await reader.readline():
            pass
        taken.append(time.perf_counter() - started)
        answer = await answers.readuntil(b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 200")), answer
    for each in (writer, follower):
        each.close()
    return statistics.median(taken)


def live(bench: Bench) -> None:
    """From an append at the owner to a reader by SSE on another node, beside the disk store."""
    owner, other = bench.two_nodes()
    sides = {
        "disk": (bench.disk, bench.disk),
        "plain": (bench.plain, bench.plain),
        "same": (owner, owner),
        "other": (owner, other),
    }
    for server in (bench.disk, bench.plain, owner):
        create(server.url, "bench")
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(bench.options.slices):
        for name, (writing, reading) in sides.items():
            samples[name].append(asyncio.run(_live_s(writing, reading, "bench")) * 1000)
    disk, plain, same, else_ = (statistics.median(some) for some in samples.values())
    print(
        f"append to SSE reader, p50: disk {disk:.2f} ms, cluster at the owner {same:.2f} ms, at "
        f"another node {else_:.2f} ms: {else_ / disk:.1f}× (wanted: at most 3); of the disk store "
        f"when that was wanted ({plain:.2f} ms) {else_ / plain:.1f}×",
        flush=True,
    )


def read(bench: Bench) -> None:
    """10 MB from a node that does not own them, beside the disk store."""
    owner, other = bench.two_nodes("long")
    message = b'"' + b"x" * 998 + b'"'
    for server in (bench.disk, owner):
        create(server.url, "long")
        with httpx.Client(timeout=30) as client:
            for _ in range(READ_BYTES // 500_000):
                body = b"[" + b",".join([message] * 500) + b"]"
                url = f"{server.url}/v1/stream/long"
                client.post(url, content=body, headers=JSON).raise_for_status()
    samples: dict[str, list[float]] = {"disk": [], "owner": [], "other": []}
    for number in range(bench.options.slices + 1):
        for name, server in (("disk", bench.disk), ("owner", owner), ("other", other)):
            result = load.read(server.port, "/v1/stream/long", seconds=SLICE_S / 2)
            if number:
                samples[name].append(result["bytes_per_s"] / 1e6)
    disk, mine, else_ = (statistics.median(some) for some in samples.values())
    print(
        f"catch-up of 10 MB: disk {disk:,.0f} MB/s, owner {mine:,.0f} MB/s, another node "
        f"{else_:,.0f} MB/s: {else_ / disk:.2f}× (wanted: 0.7)",
        flush=True,
    )


# -- owners that go


def _handover_s(bench: Bench) -> float:
    """Stop the owner in order; return how long the slowest append at another node takes."""
    cluster = bench.cluster
    owner, other = bench.two_nodes()
    slowest = 0.0
    with httpx.Client(timeout=10) as client:
        os.kill(owner.pid, signal.SIGTERM)
        while owner.running or cluster.owner("bench") is owner:
            started = time.perf_counter()
            url = f"{other.url}/v1/stream/bench"
            client.post(url, content=BODY, headers=JSON).raise_for_status()
            slowest = max(slowest, time.perf_counter() - started)
    cluster.nodes.remove(owner)
    return slowest


def takeover_s(
    cluster: Cluster, number: signal.Signals, paths: Sequence[str] = ("bench",)
) -> float:
    """Kill or freeze the owner of the first path; return how long it takes until an append to each
    has succeeded elsewhere."""
    owner, other = two_nodes(cluster, paths[0])
    started = time.perf_counter()
    os.kill(owner.pid, number)
    for path in paths:
        while not _appends(f"{other.url}/v1/stream/{path}"):
            time.sleep(0.01)  # the time of the next try is what is measured
    taken = time.perf_counter() - started
    owner.kill()
    cluster.nodes.remove(owner)
    return taken


def _appends(url: str) -> bool:
    try:
        return httpx.post(url, content=BODY, headers=JSON, timeout=5, verify=False).is_success
    except httpx.HTTPError:
        return False


def _show(bench: Bench, what: str, measure: Callable[[], float], target_s: float) -> None:
    create(bench.two_nodes()[0].url, "bench")
    times = sorted(measure() for _ in range(bench.options.takeovers))
    print(
        f"{what}: median {statistics.median(times):.2f} s, at most {times[-1]:.2f} s of "
        f"{len(times)} (wanted: {target_s})",
        flush=True,
    )


def handover(bench: Bench) -> None:
    _show(bench, "owner stopped, slowest append", lambda: _handover_s(bench), 0.1)


def killed(bench: Bench) -> None:
    _show(bench, "owner killed, writes go on", lambda: takeover_s(bench.cluster, signal.SIGKILL), 2)


def frozen(bench: Bench) -> None:
    _show(bench, "owner frozen, writes go on", lambda: takeover_s(bench.cluster, signal.SIGSTOP), 5)


def streams(bench: Bench) -> None:
    """Takeovers of few streams and of many, in turn, until a stream of every shard was written; and
    the memory of a node that owns them."""
    options = bench.options
    sides: dict[int, Cluster] = {}
    for count in (FEW_STREAMS, options.streams):
        dsn = bench.fresh_database(f"streams_{count}")
        seconds = many_streams.fill(dsn, shards=options.shards, count=count)
        print(f"{count:,} streams made in {seconds:.0f} s", flush=True)
        cluster = sides[count] = Cluster(bench.stack, dsn, shards=options.shards)
        cluster.start(2)
        many_streams.check([node.url for node in two_nodes(cluster)], count)
    paths = many_streams.one_a_shard(options.shards)
    taken: dict[int, list[float]] = {count: [] for count in sides}
    for _ in range(options.takeovers):
        for count, cluster in sides.items():
            taken[count].append(takeover_s(cluster, signal.SIGKILL, paths))
    for count, cluster in sides.items():
        memory = max(resident_mb(node.pid) for node in cluster.running)
        print(
            f"owner of {count:,} streams killed, all shards are written again: median "
            f"{statistics.median(taken[count]):.2f} s, at most {max(taken[count]):.2f} s; the next "
            f"owner has {memory:.0f} MB",
            flush=True,
        )
    few, many = (statistics.median(times) for times in taken.values())
    print(f"takeover: {many / few:.2f}× (wanted: at most 1.2)", flush=True)


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


GROUPS: dict[str, Callable[[Bench], None]] = {
    "appends": appends,
    "live": live,
    "read": read,
    "handover": handover,
    "killed": killed,
    "frozen": frozen,
    "streams": streams,
    "floor": floor,
}


def parse() -> Any:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster")
    parser.add_argument("--only", default="", help=f"comma-separated of {', '.join(GROUPS)}")
    parser.add_argument("--slices", type=int, default=5, help="slices of each measurement")
    parser.add_argument("--takeovers", type=int, default=5, help="owners that go, of each kind")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--streams", type=int, default=10_000, help="many streams to take over")
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name and name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return options


def main() -> None:
    options = parse()
    chosen = [name for name in options.only.split(",") if name] or list(GROUPS)
    with running_trio() as trio, ExitStack() as stack:
        bench = Bench(options, trio, stack)
        for name, measure in GROUPS.items():
            if name in chosen:
                measure(bench)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor time of all processes: {used.ru_utime + used.ru_stime:.0f} s")


if __name__ == "__main__":
    main()
