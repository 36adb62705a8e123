"""What 10,000 subscriptions cost an append: in the group `subscriptions` of `make bench-growth`.

The same load on a server without any and on one with all of them, in turns: to a stream that one
pattern of the ten thousand stands for, and to one that every one of them stands for. Nobody acks,
so that matching is what is measured, not the work that follows from it; what the one append costs
that wakes all of them is a row of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench import load, servers, table
from bench.client import JSON, ROOT, Client
from bench.compare import Run
from bench.rounds import Sample, interleave, median, note, ratios
from bench.servers import Server
from bench.table import Row, compared
from penstock.clock import SYSTEM_CLOCK
from penstock.config.settings import Settings
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
ROUNDS_IN_PROCESS, BATCHES = 9, 100
PAUSE_US_MAX = 20_000
WOKEN = re.compile(rb"^penstock_subscription_wakes_total ([0-9.e+]+)$", re.MULTILINE)
WAIT_S = 60.0
APPEND = Append(b'{"a":1}', "application/json", False, None, None, None)
COMMON = "common/orders/eu"
CASES = {
    "one of them matches": "tenant-7/orders/eu",
    "none of them matches": "elsewhere/orders/eu",
    "all of them match": COMMON,
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
            _wait_for_wakes(up[1], SUBSCRIPTIONS if path == COMMON else 1)
            samples = _measure(run, up, path)
            rows += _rows(label, samples)
        return rows
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)


def _wait_for_wakes(server: Server, count: int) -> None:
    """What follows from the first append is not what is measured."""
    end = time.monotonic() + WAIT_S
    with Client(server.port) as client:
        while time.monotonic() < end:
            found = WOKEN.search(client.request("GET", "/metrics").body)
            if found is not None and float(found[1]) >= count:
                return
            time.sleep(0.1)
    raise load.LoadFailed(f"not all of {count} subscriptions were woken")


async def _in_process() -> list[Row]:
    """The same without HTTP and disk, by processor time, the best of several rounds in turns: what
    a busy machine cannot hide."""
    settings = Settings(memory=True)
    none, many = [open_engine(settings, clock=SYSTEM_CLOCK) for _ in range(2)]
    service = Subscriptions(many, settings, Egress(settings), clock=SYSTEM_CLOCK)
    for engine in (none, many):
        await engine.start()
        for path in ("wake", *CASES.values()):
            config = StreamConfig("application/json", None, None)
            await engine.create(path, config, b"", closed=False)
    for number in range(SUBSCRIPTIONS):
        await service.put(f"s{number}", msgspec.convert(_document(number), Config), "")
    rows = [await _waking_all(many, service)]
    for label, path in CASES.items():
        samples: dict[Engine, list[float]] = {none: [], many: []}
        for number in range(ROUNDS_IN_PROCESS):
            for engine in (none, many) if number % 2 else (many, none):
                samples[engine].append(await _append_us(engine, path))
        rows.append(
            compared(
                f"append within the engine: {SUBSCRIPTIONS:,} subscriptions vs none, {label}",
                min(samples[many]),
                min(samples[none]),
                table.microseconds,
                at_most=COST_MAX,
                by_round=[a / b for a, b in zip(samples[many], samples[none], strict=True)],
            )
        )
    service.close()
    await none.stop()
    await many.stop()
    return rows


async def _waking_all(engine: Engine, service: Subscriptions) -> Row:
    """How long everybody else waits at the most while one append wakes all of them."""
    appended = engine.append(COMMON, APPEND)
    longest = 0.0
    while not all(each.wake.wake_id for each in service.all.values()):
        started = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, (time.thread_time() - started) * 1e6)
    await appended
    return Row(
        metric=f"one append that wakes {SUBSCRIPTIONS:,} subscriptions: longest pause for others",
        ours=table.microseconds(longest),
        target=f"≤ {table.microseconds(PAUSE_US_MAX)}",
        met=longest <= PAUSE_US_MAX,
    )


async def _append_us(engine: Engine, path: str) -> float:
    """Processor time of one append among many at once."""
    started = time.process_time()
    for _ in range(BATCHES):
        await asyncio.gather(*[engine.append(path, APPEND) for _ in range(64)])
    return (time.process_time() - started) / BATCHES / 64 * 1e6


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
    spread = {key: ratios(many, none, key) for key in ("rate", "cpu_us")}
    return [
        compared(
            metric,
            median(many, "rate"),
            median(none, "rate"),
            table.per_second,
            at_least=RATE_MIN,
            samples=samples,
            by_round=spread["rate"],
        ),
        compared(
            f"{metric}: processor time of the server",
            median(many, "cpu_us"),
            median(none, "cpu_us"),
            table.microseconds,
            at_most=COST_MAX,
            by_round=spread["cpu_us"],
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
        "streams": [COMMON],
    }
