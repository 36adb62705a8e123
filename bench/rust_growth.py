"""How the two fastest servers keep up as streams and readers become many."""

from __future__ import annotations

import dataclasses
import shutil

from bench import load, servers, table, tools
from bench.client import ROOT, Client
from bench.compare import WITH_RUST, Run, side_by_side, versus_rust
from bench.rounds import Sample, interleave, note
from bench.servers import Kind, Server
from bench.table import Row, compared

STREAM_STEPS = (1, 1_000, 10_000, 100_000, 1_000_000)
# wrk keeps every request that it may send in memory.
SPREAD_MAX = 100_000
READER_STEPS = (1, 100, 1_000, 10_000)
SPARE_FILES = 500


@dataclasses.dataclass
class _Grown:
    """What is known of one server with a given number of streams."""

    samples: list[Sample] = dataclasses.field(default_factory=list)
    created_bytes: float = 0.0
    restarted_bytes: float = 0.0
    start_s: float = 0.0


def _start(run: Run, kind: Kind) -> Server:
    return servers.start(kind, run.folder / f"many-{kind}", ours_command=run.ours_command)


def _spread(run: Run, server: Server, count: int, seconds: float) -> Sample:
    over = min(count, SPREAD_MAX)
    before_s = server.cpu_s()
    path = ROOT + ("many-0" if over == 1 else "many")
    counts = load.wrk(server.port, path, seconds=seconds, connections=64, streams=over)
    used_us = (server.cpu_s() - before_s) * 1e6
    return {
        "rate": counts["rate"],
        "server_us": used_us / counts["requests"],
        "generator_cpu": counts["generator_cpu"],
    }


def _with_streams(run: Run, count: int) -> dict[str, _Grown]:
    """Both servers with `count` streams of one message: appends over all, memory, a restart."""
    grown: dict[str, _Grown] = {kind: _Grown() for kind in WITH_RUST}
    up: list[Server] = []
    try:
        for kind in WITH_RUST:
            server = _start(run, kind)
            up.append(server)
            before = server.rss_bytes()
            # One more than asked for, so that the names are numbered for one stream, too.
            streams = max(2, count)
            made = load.count(
                server.port, ROOT + "many", method="PUT", streams=streams, requests=streams
            )
            note(f"    {kind}: {streams:,} streams made in {made['seconds']:.1f} s")
            grown[kind].created_bytes = (server.rss_bytes() - before) / streams

        def measure(server: Server, number: int) -> Sample:
            return _spread(run, server, count, run.seconds if number else 1.0)

        samples = interleave([(server.name, server) for server in up], measure, rounds=run.rounds)
        for server in up:
            grown[server.name].samples = samples[server.name]
        for number, kind in enumerate(WITH_RUST):
            up[number].stop()
            up[number] = _start(run, kind)
            with Client(up[number].port) as client:
                client.tail(f"{ROOT}many-0")
            grown[kind].start_s = up[number].start_s
            grown[kind].restarted_bytes = up[number].rss_bytes()
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)
    return grown


def streams(run: Run) -> list[Row]:
    """Appends, memory and restart with 1, 1,000, … streams, up to the option --streams."""
    tools.rust()
    rows: list[Row] = []
    base: dict[str, _Grown] = {}
    for count in (step for step in STREAM_STEPS if step <= max(1, run.streams)):
        try:
            grown = _with_streams(run, count)
        except (load.LoadFailed, servers.ServerFailed) as failure:
            rows.append(table.failed(f"{count:,} streams", str(failure)))
            continue
        base = base or grown
        rows += _append_rows(count, {name: side.samples for name, side in grown.items()})
        if count > 1:
            rows += _footprint_rows(count, grown["ours"], grown["rust"], base)
    return rows


def _append_rows(count: int, samples: dict[str, list[Sample]]) -> list[Row]:
    over = (
        f" over {count:,} streams" if count <= SPREAD_MAX else f" over {SPREAD_MAX:,} of {count:,}"
    )
    what = "durable append, 64 connections" + (over if count > 1 else ", 1 stream")
    cost = "… server's processor time of one append"
    return [
        versus_rust(samples, what, "rate", table.per_second, at_least=1.0),
        versus_rust(samples, cost, "server_us", table.short_time),
    ]


def _footprint_rows(count: int, ours: _Grown, theirs: _Grown, base: dict[str, _Grown]) -> list[Row]:
    def each(grown: _Grown, name: str) -> float:
        # At least one byte: a process may give back more than its streams need.
        return max(1.0, (grown.restarted_bytes - base[name].restarted_bytes) / count)

    versus = f"(vs durable-streams {tools.RUST_VERSION})"
    return [
        compared(
            f"memory of a new stream, {count:,} made {versus}",
            max(1.0, ours.created_bytes),
            max(1.0, theirs.created_bytes),
            table.kilobytes,
            at_most=1.0,
        ),
        compared(
            f"memory of an idle stream after a restart, {count:,} {versus}",
            each(ours, "ours"),
            each(theirs, "rust"),
            table.kilobytes,
            at_most=1.0,
        ),
        compared(
            f"time to start with {count:,} streams {versus}",
            ours.start_s,
            theirs.start_s,
            table.seconds,
        ),
    ]


def readers(run: Run) -> list[Row]:
    """SSE events delivered to 1, 100, 1,000 and 10,000 readers of one stream."""
    most = tools.raise_file_limit() - SPARE_FILES
    rows: list[Row] = []
    for count in READER_STEPS:
        if count > most:
            rows.append(Row(metric=f"SSE, {count:,} readers", ours="skipped: too few open files"))
            continue
        try:
            rows += _reader_rows(run, count)
        except (load.LoadFailed, servers.ServerFailed) as failure:
            rows.append(table.failed(f"SSE, {count:,} readers", str(failure)))
    return rows


def _reader_rows(run: Run, count: int) -> list[Row]:
    def measure(server: Server, number: int) -> Sample:
        with Client(server.port) as client:
            path = client.create(run.fresh_name())
        seconds = run.seconds if number else 1.0
        counts = load.live(server.port, path, seconds=seconds, readers=count)
        return {
            "events": counts["events"] / counts["seconds"],
            "messages": counts["delivered"] / counts["seconds"],
            "p99_us": counts["delivery_p99_us"],
            "generator_cpu": counts["generator_cpu"],
        }

    note(f"    {count:,} readers")
    samples = side_by_side(run, WITH_RUST, measure)
    what = f"SSE, {count:,} reader{'s' if count > 1 else ''}, events delivered"
    return [
        versus_rust(samples, what, "events", table.per_second, at_least=1.0),
        versus_rust(samples, "… messages in them", "messages", table.per_second),
        versus_rust(samples, "… from append to reader, p99", "p99_us", table.microseconds),
    ]
