"""The measurements of `make bench-growth`: what stays flat while streams, bytes and readers grow.

Only Penstock is measured: a row compares it with itself when it holds little.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import load, servers, table, tools
from bench.client import ROOT, Client, array, message
from bench.compaction import compaction
from bench.compare import Run
from bench.retention import retention
from bench.rounds import Sample, interleave, median, note
from bench.seed import seed
from bench.servers import Server
from bench.subscriptions import subscriptions
from bench.table import Row, compared

HEADS = ("metric", "grown", "small", "ratio", "target", "met")
METHOD = (
    "Data folders are filled by an offline loader through the real engine; rounds alternate "
    "between the small and the grown case, medians are compared. Flat means within a fifth."
)
FLAT_RATE = 0.8
FLAT_COST = 1.2
MANY_STREAMS = 100_000
BIG_STREAM_BYTES = 1_000_000_000
IDLE_STREAMS = (10_000, 1_000_000)
TOUCHED_STREAMS = 10_000
RESTART_STREAMS, RESTART_MESSAGES = 10_000, 1_000_000
RESTART_SECONDS_MAX = 2.0
CHECKPOINT_STREAMS, CHECKPOINT_APPENDS_PER_S = 1_000, 2_000
CHECKPOINT_BYTES = 256 * 1024
READERS = 10_000
FORKS_A_ROUND = 300
FORK_DEPTH = 10


def _start(run: Run, data: Path, env: Mapping[str, str] | None = None) -> Server:
    return servers.start("ours", data, ours_command=run.ours_command, env=env, name=data.name)


@contextlib.contextmanager
def _serving(run: Run, folders: Sequence[Path]) -> Iterator[list[Server]]:
    up: list[Server] = []
    try:
        up.extend(_start(run, folder) for folder in folders)
        yield up
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)


def _seeded(run: Run, name: str, **what: int) -> Path:
    folder = run.folder / name
    note(f"    seeding {name}: {what} took {seed(folder, name='seed', **what):.1f} s")
    return folder


def stream_count(run: Run) -> list[Row]:
    """Append cost with 1, 1,000 and 100,000 streams in the store."""
    counts = (1, 1_000, MANY_STREAMS)
    folders = [_seeded(run, f"streams-{count}", streams=count) for count in counts]

    def hot(server: Server, number: int) -> Sample:
        with Client(server.port) as client:
            path = client.create(run.fresh_name())
        return load.wrk(server.port, path, seconds=run.seconds, connections=64)

    def spread(server: Server, number: int) -> Sample:
        count = int(server.name.removeprefix("streams-"))
        path = ROOT + "seed"
        return load.wrk(server.port, path, seconds=run.seconds, connections=64, streams=count)

    with _serving(run, folders) as up:
        contenders = [(server.name, server) for server in up]
        one = interleave(contenders, hot, rounds=run.rounds)
        cold = interleave(contenders, spread, rounds=run.rounds)
        for server, count in zip(up, counts, strict=True):
            if count > 1:
                _touch(server, range(count))
        active = interleave(contenders, spread, rounds=run.rounds)
    rows = []
    for label, samples in (
        ("to one stream", one),
        ("spread over all, all active", active),
        ("spread over all, mostly not in memory", cold),
    ):
        small = median(samples["streams-1"], "rate")
        for count in counts[1:]:
            grown = median(samples[f"streams-{count}"], "rate")
            metric = f"append, 64 connections, {label}: {count:,} streams vs 1"
            least = None if samples is cold else FLAT_RATE
            rows.append(
                compared(metric, grown, small, table.per_second, at_least=least, samples=samples)
            )
    return rows


def stream_size(run: Run) -> list[Row]:
    """Append cost and tail read of a 1 GB stream next to an empty one in the same store."""
    folder = _seeded(
        run, "big", streams=1, messages=1_000, size=1_000, appends=BIG_STREAM_BYTES // 1_000_000
    )

    def append(path: str, number: int) -> Sample:
        return load.wrk(server.port, path, seconds=run.seconds, connections=16)

    def tail_read(path: str, number: int) -> Sample:
        with Client(server.port) as client:
            offset = client.tail(path)
            client.append(path, message(100))
        query = f"{path}?offset={offset}"
        return load.wrk(server.port, query, seconds=run.seconds, connections=16, method="GET")

    with _serving(run, [folder]) as (server,):
        with Client(server.port) as client:
            paths = [("small", client.create("empty")), ("grown", ROOT + "seed")]
        appended = interleave(paths, append, rounds=run.rounds)
        read = interleave(paths, tail_read, rounds=run.rounds)
    return [
        compared(
            f"{label}: 1 GB stream vs empty",
            median(samples["grown"], "rate"),
            median(samples["small"], "rate"),
            table.per_second,
            at_least=FLAT_RATE,
            samples=samples,
        )
        for label, samples in (("append, 16 connections", appended), ("tail read", read))
    ]


def _touch(server: Server, numbers: Sequence[int]) -> None:
    """Read these streams, so that they become active."""
    with Client(server.port) as client:
        for number in numbers:
            client.request("GET", f"{ROOT}seed-{number}?offset=-1")


def idle_streams(run: Run) -> list[Row]:
    """Memory with 10,000 and with 1,000,000 idle streams, after the start and after reads."""
    started: list[float] = []
    touched: list[float] = []
    times: list[float] = []
    for count in IDLE_STREAMS:
        folder = _seeded(run, f"idle-{count}", streams=count)
        with _serving(run, [folder]) as (server,):
            started.append(server.rss_bytes())
            times.append(server.start_s)
            _touch(server, random.Random(1).sample(range(count), TOUCHED_STREAMS))
            touched.append(server.rss_bytes())
    what = "1,000,000 idle streams vs 10,000"
    return [
        compared(
            f"memory after the start: {what}",
            started[1],
            started[0],
            table.megabytes,
            at_most=FLAT_COST,
        ),
        compared(
            f"memory after reading 10,000 of them: {what}",
            touched[1],
            touched[0],
            table.megabytes,
            at_most=FLAT_COST,
        ),
        compared(f"time to start: {what}", times[1], times[0], table.seconds),
    ]


def _journal_bytes(server: Server) -> float:
    with Client(server.port) as client:
        text = client.request("GET", "/metrics").body.decode()
    found = re.search(r"^penstock_journal_bytes(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def restart(run: Run) -> list[Row]:
    """Restart with 1,000,000 messages over 10,000 streams, after a clean stop and after kill -9."""
    each = RESTART_MESSAGES // RESTART_STREAMS
    folder = _seeded(run, "restart", streams=RESTART_STREAMS, messages=each)
    empty = _start(run, run.folder / "restart-empty")
    empty.stop()
    times: list[float] = []
    for _ in range(3):
        server = _start(run, folder)
        times.append(server.start_s)
        server.stop()
    clean = sorted(times)[1]
    rows = [
        Row(
            metric="restart after a clean stop: 1,000,000 messages, 10,000 streams vs empty",
            ours=table.seconds(clean),
            reference=table.seconds(empty.start_s),
            ratio=clean / empty.start_s,
            target="< 2 s",
            met=clean < RESTART_SECONDS_MAX,
        )
    ]
    for seconds in (1, 4, 12):
        server = _start(run, folder, {"PENSTOCK_CHECKPOINT_INTERVAL_S": "3600"})
        written = load.wrk(
            server.port, ROOT + "seed", seconds=seconds, connections=64, streams=RESTART_STREAMS
        )
        journal = _journal_bytes(server)
        server.kill()
        again = _start(run, folder)
        again.stop()
        rows.append(
            Row(
                metric=f"restart after kill -9 and {written['requests']:,} appends "
                f"({table.megabytes(journal)} of journal) vs clean",
                ours=table.seconds(again.start_s),
                reference=table.seconds(clean),
                ratio=again.start_s / clean,
            )
        )
    shutil.rmtree(folder, ignore_errors=True)
    return rows


def checkpoint(run: Run) -> list[Row]:
    """Append latency at a fixed rate, with hardly any and with constant checkpoints."""
    rare = {"PENSTOCK_CHECKPOINT_BYTES": "1GiB", "PENSTOCK_CHECKPOINT_INTERVAL_S": "3600"}
    often = {"PENSTOCK_CHECKPOINT_BYTES": str(CHECKPOINT_BYTES)}
    up = [_start(run, run.folder / "rare", rare), _start(run, run.folder / "often", often)]

    def measure(server: Server, number: int) -> Sample:
        with Client(server.port) as client:
            path = client.create_many(run.fresh_name(), CHECKPOINT_STREAMS)
        return load.live(
            server.port,
            path,
            seconds=max(run.seconds, 5.0) if number else 1.0,
            readers=0,
            appenders=16,
            streams=CHECKPOINT_STREAMS,
            rate=CHECKPOINT_APPENDS_PER_S,
        )

    try:
        samples = interleave([(s.name, s) for s in up], measure, rounds=min(run.rounds, 3))
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)
    what = f"append at {CHECKPOINT_APPENDS_PER_S:,}/s over {CHECKPOINT_STREAMS:,} streams"
    return [
        compared(
            f"{what}, {label}: constant checkpoints vs none",
            median(samples["often"], key),
            median(samples["rare"], key),
            table.microseconds,
            samples=samples if key == "append_p50_us" else None,
        )
        for label, key in (
            ("p50", "append_p50_us"),
            ("p99", "append_p99_us"),
            ("longest", "append_max_us"),
        )
    ]


def readers(run: Run) -> list[Row]:
    """10,000 idle SSE readers that all get one append."""
    if tools.raise_file_limit() < READERS + 500:
        raise tools.Unavailable(f"the limit on open files is below {READERS + 500:,}")
    with _serving(run, [run.folder / "readers"]) as (server,):
        with Client(server.port) as client:
            path = client.create("idle")
        before = server.rss_bytes()
        with load.held(server.port, path, READERS) as idle:
            time.sleep(1.0)
            each = (server.rss_bytes() - before) / READERS
            first, second = idle.append(), idle.append()
    got = min(first["got"], second["got"])
    return [
        Row(
            metric=f"{READERS:,} idle SSE readers get one append "
            f"({table.kilobytes(each)} each, connected in {idle.ready['seconds']:.1f} s)",
            ours=f"{got:,} in {min(first['seconds'], second['seconds']):.2f} s",
            target="all",
            met=got == READERS,
        )
    ]


def forks(run: Run) -> list[Row]:
    """Making forks of a 1 GB stream and of an empty one; reading through ten forks of forks."""
    folder = _seeded(
        run, "forks", streams=1, messages=1_000, size=1_000, appends=BIG_STREAM_BYTES // 1_000_000
    )

    def make(source: str, number: int) -> Sample:
        headers = {"Stream-Forked-From": source}
        times = []
        with Client(server.port) as client:
            for _ in range(FORKS_A_ROUND):
                started = time.perf_counter()
                client.request("PUT", ROOT + run.fresh_name(), headers=headers)
                times.append(time.perf_counter() - started)
        return {"us": statistics.median(times) * 1e6}

    def read(path: str, number: int) -> Sample:
        result = load.read(server.port, path, seconds=run.seconds)
        return {"bandwidth": result["bytes_per_s"]}

    env = {"PENSTOCK_CHUNK_BYTES": "64MiB"}
    server = _start(run, folder, env)
    try:
        with Client(server.port) as client:
            sources = [("small", client.create("empty")), ("grown", ROOT + "seed")]
            paths = _chain(client)
        made = interleave(sources, make, rounds=run.rounds)
        server.stop()
        server = _start(run, folder, env)  # so that everything is read from segments
        found = interleave(paths, read, rounds=run.rounds)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return [
        compared(
            "making a fork, p50: of a 1 GB stream vs of an empty one",
            median(made["grown"], "us"),
            median(made["small"], "us"),
            table.microseconds,
            at_most=FLAT_COST,
            samples=made,
        ),
        compared(
            f"read of {FORK_DEPTH} MB: through {FORK_DEPTH} forks of forks vs a plain stream",
            median(found["chain"], "bandwidth"),
            median(found["plain"], "bandwidth"),
            table.megabytes_per_second,
            at_least=0.5,
            samples=found,
        ),
    ]


def _chain(client: Client) -> list[tuple[str, str]]:
    """A stream of as many MB as there are forks in a chain where each adds one."""
    body = array(1_000, 1_000)
    plain = client.create("plain")
    path = client.create("chain-0")
    for depth in range(1, FORK_DEPTH + 1):
        client.append(plain, body)
        source, path = path, f"{ROOT}chain-{depth}"
        client.request("PUT", path, headers={"Stream-Forked-From": source})
        client.append(path, body)
    return [("plain", plain), ("chain", path)]


GROUPS: dict[str, Callable[[Run], list[Row]]] = {
    "stream-count": stream_count,
    "stream-size": stream_size,
    "idle-streams": idle_streams,
    "restart": restart,
    "checkpoint": checkpoint,
    "readers": readers,
    "forks": forks,
    "subscriptions": subscriptions,
    "compaction": compaction,
    "retention": retention,
}
