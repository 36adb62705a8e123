"""The measurements of `make bench` against the fastest server of the protocol known to us: the
crate `durable-streams`, in its durable mode.

Every row of throughput is followed by the processor time that the server spent on one operation:
on a busy machine that is the figure to trust.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import load, table
from bench.client import BINARY, ROOT, Client, message
from bench.compare import WITH_RUST, Run, side_by_side, versus_rust
from bench.rounds import Sample, median, note
from bench.rust_footprint import idle_connections, restart
from bench.rust_growth import readers, streams
from bench.servers import Server
from bench.table import Row

CATCH_UP_MESSAGES = 10_000
BATCH_MESSAGES = 100
BINARY_BYTES = 10_000_000
BINARY_APPEND_BYTES = 1_000_000
FAN_OUT_READERS = 1_000
TAIL_STREAMS = 3_000
Counts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of load, the same for both servers.

    `prepare` makes what is loaded and returns its path, once, or before every round if `fresh`.
    `make_load` returns what the generator counted, with a `rate` and the number of `operations`.
    """

    metric: str
    operation: str
    prepare: Callable[[Run, Client], str]
    make_load: Callable[[int, str, float], Counts]
    fresh: bool = False
    shown: Callable[[float], str] = table.per_second


def _measured(run: Run, workload: Workload) -> list[Row]:
    paths: dict[str, str] = {}

    def measure(server: Server, number: int) -> Sample:
        if workload.fresh or server.name not in paths:
            with Client(server.port) as client:
                paths[server.name] = workload.prepare(run, client)
        before_s = server.cpu_s()
        path = paths[server.name]
        counts = workload.make_load(server.port, path, run.seconds if number else 1.0)
        used_us = (server.cpu_s() - before_s) * 1e6
        return {
            "rate": counts["rate"],
            "server_us": used_us / max(1, counts["operations"]),
            "generator_cpu": counts["generator_cpu"],
        }

    samples = side_by_side(run, WITH_RUST, measure)
    cost = f"… server's processor time of {workload.operation}"
    return [
        versus_rust(samples, workload.metric, "rate", workload.shown, at_least=1.0),
        versus_rust(samples, cost, "server_us", table.short_time),
    ]


def _appends(connections: int, streams: int = 1, messages: int = 1) -> Workload:
    def prepare(run: Run, client: Client) -> str:
        name = run.fresh_name()
        return client.create(name) if streams == 1 else client.create_many(name, streams)

    def make_load(port: int, path: str, seconds: float) -> Counts:
        counts = load.wrk(
            port,
            path,
            seconds=seconds,
            connections=connections,
            streams=streams,
            messages=messages,
        )
        return {**counts, "operations": counts["requests"]}

    over = f" over {streams} streams" if streams > 1 else ""
    plural = "s" if connections > 1 else ""
    batch = f" of {messages} messages" if messages > 1 else ""
    return Workload(
        metric=f"durable append{batch}, {connections} connection{plural}{over}",
        operation=f"one append{batch}",
        prepare=prepare,
        make_load=make_load,
        fresh=streams == 1,
    )


def _one_by_one(run: Run, client: Client) -> str:
    path = client.create(run.fresh_name())
    for _ in range(CATCH_UP_MESSAGES):
        client.append(path, message(100))
    return path


def _catch_up() -> Workload:
    def make_load(port: int, path: str, seconds: float) -> Counts:
        counts = load.read(port, path, seconds=seconds, connections=4)
        if counts["bytes"] < counts["reads"] * CATCH_UP_MESSAGES * 100:
            raise load.LoadFailed(f"a read came back short: {counts}")
        return {**counts, "rate": counts["reads_per_s"], "operations": counts["reads"]}

    return Workload(
        metric="catch-up of 10,000 × 100 B, 4 connections",
        operation="one catch-up",
        prepare=_one_by_one,
        make_load=make_load,
    )


def _binary_read() -> Workload:
    def prepare(run: Run, client: Client) -> str:
        path = client.create(run.fresh_name(), BINARY)
        for _ in range(BINARY_BYTES // BINARY_APPEND_BYTES):
            client.append(path, bytes(BINARY_APPEND_BYTES), BINARY)
        return path

    def make_load(port: int, path: str, seconds: float) -> Counts:
        counts = load.read(port, path, seconds=seconds, connections=2)
        if counts["bytes"] != counts["reads"] * BINARY_BYTES:
            raise load.LoadFailed(f"a read came back short: {counts}")
        return {**counts, "rate": counts["bytes_per_s"], "operations": counts["reads"]}

    return Workload(
        metric="10 MB binary read, 2 connections",
        operation="one read",
        prepare=prepare,
        make_load=make_load,
        shown=table.megabytes_per_second,
    )


def _tail_read() -> Workload:
    def prepare(run: Run, client: Client) -> str:
        path = _one_by_one(run, client)
        offset = client.tail(path)
        client.append(path, message(100))
        return f"{path}?offset={offset}"

    def make_load(port: int, path: str, seconds: float) -> Counts:
        counts = load.wrk(port, path, seconds=seconds, connections=16, method="GET")
        return {**counts, "operations": counts["requests"]}

    return Workload(
        metric="read of one message at the tail, 16 connections",
        operation="one read",
        prepare=prepare,
        make_load=make_load,
    )


def _tail_reads_of_many() -> Workload:
    """As `_tail_read`, but hardly any request is one that was answered before."""

    def prepare(run: Run, client: Client) -> str:
        name = run.fresh_name()

        def each(method: str) -> None:
            load.count(
                client.port, ROOT + name, method=method, streams=TAIL_STREAMS, requests=TAIL_STREAMS
            )

        each("PUT")
        each("POST")
        paths = [f"{ROOT}{name}-{number}" for number in range(TAIL_STREAMS)]
        lines = [f"{path}?offset={client.tail(path)}\n" for path in paths]
        each("POST")
        file = run.folder / name.replace("/", "-")
        file.write_text("".join(lines))
        return str(file)

    def make_load(port: int, path: str, seconds: float) -> Counts:
        counts = load.wrk(
            port, "/", seconds=seconds, connections=16, method="GET", paths=Path(path)
        )
        return {**counts, "operations": counts["requests"]}

    return Workload(
        metric=f"read of one message at the tail, 16 connections over {TAIL_STREAMS:,} streams",
        operation="one read",
        prepare=prepare,
        make_load=make_load,
    )


def _fan_out(run: Run) -> list[Row]:
    """1,000 SSE readers of one stream, one appender at full speed.

    A server may put several messages into one event, if its writer is ahead of its readers:
    events and messages are both counted.
    """

    def measure(server: Server, number: int) -> Sample:
        with Client(server.port) as client:
            path = client.create(run.fresh_name())
        before_s = server.cpu_s()
        seconds = run.seconds if number else 1.0
        counts = load.live(server.port, path, seconds=seconds, readers=FAN_OUT_READERS)
        used_us = (server.cpu_s() - before_s) * 1e6
        return {
            "events": counts["events"] / counts["seconds"],
            "messages": counts["delivered"] / counts["seconds"],
            "p99_us": counts["delivery_p99_us"],
            "server_us": used_us / max(1, counts["events"]),
            "generator_cpu": counts["generator_cpu"],
        }

    samples = side_by_side(run, WITH_RUST, measure)
    what = f"SSE, {FAN_OUT_READERS:,} readers, events delivered"
    cost = "… server's processor time of one event, connecting included"
    return [
        versus_rust(samples, what, "events", table.per_second, at_least=1.0),
        versus_rust(samples, "… messages in them", "messages", table.per_second),
        versus_rust(samples, "… from append to reader, p99", "p99_us", table.microseconds),
        versus_rust(samples, cost, "server_us", table.short_time),
    ]


def _latency_at_half(run: Run, *, connections: int, readers: int = 0) -> list[Row]:
    """Latency of appends, or of delivery, at half of the slower server's highest rate."""

    def at(rate: int) -> Callable[[Server, int], Sample]:
        def measure(server: Server, number: int) -> Sample:
            with Client(server.port) as client:
                path = client.create(run.fresh_name())
            counts = load.live(
                server.port,
                path,
                seconds=run.seconds if number else 1.0,
                readers=readers,
                appenders=connections,
                rate=rate,
            )
            return {**counts, "rate": counts["appended"] / counts["seconds"]}

        return measure

    highest = side_by_side(dataclasses.replace(run, rounds=2), WITH_RUST, at(0))
    rate = max(1, round(min(median(highest[name], "rate") for name in WITH_RUST) / 2))
    note(f"    at {rate:,} appends a second")
    samples = side_by_side(run, WITH_RUST, at(rate))
    what = "append → one SSE reader" if readers else "append"
    plural = "s" if connections > 1 else ""
    key = "delivery" if readers else "append"
    return [
        versus_rust(
            samples,
            f"{what} at {rate:,}/s on {connections} connection{plural}, {share}",
            f"{key}_{share}_us",
            table.microseconds,
            at_most=1.0,
        )
        for share in ("p50", "p99")
    ]


def _latency(run: Run) -> list[Row]:
    rows = [row for count in (1, 16, 64) for row in _latency_at_half(run, connections=count)]
    return rows + _latency_at_half(run, connections=1, readers=1)


_WORKLOADS = {
    "rust-append-1": _appends(1),
    "rust-append-16": _appends(16),
    "rust-append-64": _appends(64),
    "rust-append-64-streams": _appends(64, streams=64),
    "rust-batch": _appends(8, messages=BATCH_MESSAGES),
    "rust-catch-up": _catch_up(),
    "rust-binary-read": _binary_read(),
    "rust-tail": _tail_read(),
    "rust-tail-streams": _tail_reads_of_many(),
}


def _group(workload: Workload) -> Callable[[Run], list[Row]]:
    return lambda run: _measured(run, workload)


GROUPS: dict[str, Callable[[Run], list[Row]]] = {
    **{name: _group(workload) for name, workload in _WORKLOADS.items()},
    "rust-fan-out": _fan_out,
    "rust-latency": _latency,
    "rust-idle": idle_connections,
    "rust-restart": restart,
    "rust-streams": streams,
    "rust-readers": readers,
}
