"""What 10,000 subscriptions cost an append: in the group `subscriptions` of `make bench-growth`.

The same load on a server without any and on one with all of them, in turns: to a stream that one
pattern of the ten thousand stands for, and to one that every one of them stands for. Nobody acks,
so that matching is what is measured, not the work that follows from it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench import load, servers, table
from bench.client import JSON, ROOT, Client
from bench.compare import Run
from bench.rounds import Sample, interleave, median, note
from bench.servers import Server
from bench.table import Row, compared
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Settings
from penstock.egress import Egress
from penstock.log import open_engine
from penstock.log.engine import Engine
from penstock.log.requests import Append
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.subscription import Config
from penstock.subscriptions.service import Subscriptions

SUBSCRIPTIONS = 10_000
COST_MAX = 1.1
RATE_MIN = 0.9
MAKERS = 16
SETTLE_S = 2.0
ROUNDS_IN_PROCESS, BATCHES = 7, 300
APPEND = Append(b'{"a":1}', "application/json", False, None, None, None)
CASES = {
    "one of them matches": "tenant-7/orders/eu",
    "none of them matches": "elsewhere/orders/eu",
    "all of them match": "common/orders/eu",
}


def subscriptions(run: Run) -> list[Row]:
    """Appends with and without 10,000 subscriptions."""
    up: list[Server] = []
    try:
        up += [
            servers.start("ours", run.folder / name, ours_command=run.ours_command, name=name)
            for name in ("none", "many")
        ]
        started = time.monotonic()
        _subscribe(up[1])
        note(f"    {SUBSCRIPTIONS:,} subscriptions made in {time.monotonic() - started:.1f} s")
        rows = asyncio.run(_in_process())
        for label, path in CASES.items():
            for server in up:
                with Client(server.port) as client:
                    client.create(path)
                    client.request("POST", ROOT + path, b"1", JSON)
            time.sleep(SETTLE_S)  # what follows from the first append is not what is measured
            samples = _measure(run, up, path)
            rows += _rows(label, samples)
        return rows
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)


async def _in_process() -> list[Row]:
    """The same without HTTP and disk, by processor time: what a busy machine cannot hide."""
    settings = Settings(memory=True, subscription_log_bytes=1 << 30)
    engine = open_engine(settings, clock=SYSTEM_CLOCK)
    await engine.start()
    service = Subscriptions(engine, settings, Egress(settings), clock=SYSTEM_CLOCK)
    for path in ("wake", *CASES.values()):
        await engine.create(path, StreamConfig("application/json", None, None), b"", closed=False)
    before = {label: await _append_us(engine, path) for label, path in CASES.items()}
    for number in range(SUBSCRIPTIONS):
        await service.put(f"s{number}", msgspec.convert(_document(number), Config), "")
    for path in CASES.values():
        await engine.append(path, APPEND)
    while not all(each.wake.wake_id for each in service.all.values()):
        await asyncio.sleep(0)
    after = {label: await _append_us(engine, path) for label, path in CASES.items()}
    service.close()
    await engine.stop()
    return [
        compared(
            f"append within the engine: {SUBSCRIPTIONS:,} subscriptions vs none, {label}",
            after[label],
            before[label],
            table.microseconds,
            at_most=COST_MAX,
        )
        for label in CASES
    ]


async def _append_us(engine: Engine, path: str) -> float:
    """Processor time of one append among many at once, the median of several rounds."""
    found = []
    for _ in range(ROUNDS_IN_PROCESS):
        started = time.process_time()
        for _ in range(BATCHES):
            await asyncio.gather(*[engine.append(path, APPEND) for _ in range(64)])
        found.append((time.process_time() - started) / BATCHES / 64 * 1e6)
    return statistics.median(found)


def _measure(run: Run, up: list[Server], path: str) -> dict[str, list[Sample]]:
    def measure(server: Server, number: int) -> Sample:
        before = server.cpu_s()
        found = load.wrk(server.port, ROOT + path, seconds=run.seconds, connections=64)
        cpu_us = (server.cpu_s() - before) / found["requests"] * 1e6
        return {"rate": found["rate"], "cpu_us": cpu_us, "generator_cpu": found["generator_cpu"]}

    return interleave([(server.name, server) for server in up], measure, rounds=run.rounds)


def _rows(label: str, samples: dict[str, list[Sample]]) -> list[Row]:
    metric = f"append, 64 connections: {SUBSCRIPTIONS:,} subscriptions vs none, {label}"
    many, none = samples["many"], samples["none"]
    return [
        compared(
            metric,
            median(many, "rate"),
            median(none, "rate"),
            table.per_second,
            at_least=RATE_MIN,
            samples=samples,
        ),
        compared(
            f"{metric}: processor time of the server",
            median(many, "cpu_us"),
            median(none, "cpu_us"),
            table.microseconds,
            at_most=COST_MAX,
        ),
    ]


def _subscribe(server: Server) -> None:
    """Each with a pattern of its own for its tenant, and all with one for the common streams."""
    with Client(server.port) as client:
        client.create("wake")

    def make(first: int) -> None:
        with Client(server.port) as client:
            for number in range(first, SUBSCRIPTIONS, MAKERS):
                target = f"{ROOT}__ds/subscriptions/s{number}"
                client.request("PUT", target, json.dumps(_document(number)).encode(), JSON)

    with ThreadPoolExecutor(MAKERS) as pool:
        list(pool.map(make, range(MAKERS)))


def _document(number: int) -> dict[str, Any]:
    shape = ("{}/*/eu", "{}/orders/*", "{}/**", "{}/orders/eu")[number % 4]
    return {
        "type": "pull-wake",
        "wake_stream": "wake",
        "pattern": shape.format(f"tenant-{number}"),
        "streams": ["common/orders/eu"],
    }
