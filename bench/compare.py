"""The measurements of `make bench`: Penstock and the reference server in one run.

Each function measures one group of promises and returns its rows. A group has fresh servers and
fresh data; only one server is loaded at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import load, servers, table, tools
from bench.client import Client, array, message
from bench.rounds import Sample, interleave, median, note, ratios
from bench.servers import Kind, Server
from bench.table import Row, compared

HEADS = ("metric", "ours", "reference", "ratio", "target", "met", "load generator")
METHOD = (
    "Servers take turns within each round (only one is loaded at a time), medians of the rounds "
    "are compared; appends are made by wrk, SSE readers and whole reads by small C programs. The "
    "last column is their share of one core, for each server."
)
CATCH_UP_MESSAGES = 10_000
BIG_READ_BYTES = 10_000_000
FAN_OUT_READERS = 1_000
LATENCY_APPENDS_PER_S = 200
IDLE_READERS = 4_000
IDLE_WARM_UP_READERS = 1_000
WITH_RUST: tuple[Kind, ...] = ("ours", "rust")


@dataclasses.dataclass
class Run:
    """What every measurement needs, and the machine's limits as they are sampled on the way."""

    folder: Path
    ours_command: str
    rounds: int
    seconds: float
    streams: int = 10_000
    journal_bytes: int = 64_000_000
    syncs: list[float] = dataclasses.field(default_factory=list)
    loopback: list[float] = dataclasses.field(default_factory=list)
    others: list[float] = dataclasses.field(default_factory=list)
    _numbers: itertools.count[int] = dataclasses.field(default_factory=itertools.count)

    def fresh_name(self) -> str:
        return f"bench/{next(self._numbers)}"

    def sample_limits(self) -> None:
        # Nothing of ours is loaded at this moment: what is busy now is somebody else.
        self.others.append(tools.busy_share())
        self.syncs.append(load.syncs_per_s(self.folder))
        self.loopback.append(load.loopback_bytes_per_s())

    def limits(self) -> dict[str, str]:
        def told(values: Sequence[float], shown: Callable[[float], str]) -> str:
            middle = shown(statistics.median(values))
            return f"{middle} (from {shown(min(values))} to {shown(max(values))})"

        return {
            "fdatasync of 200 B records, one after the other": told(self.syncs, table.per_second),
            "loopback send/recv": told(self.loopback, table.megabytes_per_second),
            "processor time taken by other programs": told(self.others, "{:.0%}".format),
        }

    def disturbed(self) -> bool:
        """Were other programs busy? Neither side's rates then hold, nor their ratio."""
        return statistics.median(self.others) > tools.DISTURBED_SHARE


def side_by_side(
    run: Run, kinds: Sequence[Kind], measure: Callable[[Server, int], Sample]
) -> dict[str, list[Sample]]:
    def checked(server: Server, number: int) -> Sample:
        try:
            return measure(server, number)
        except load.LoadFailed:
            server.check_alive()
            raise

    with servers.running(kinds, run.folder, ours_command=run.ours_command) as up:
        run.sample_limits()
        samples = interleave([(s.name, s) for s in up], checked, rounds=run.rounds)
        run.sample_limits()
    return samples


def versus_rust(
    samples: dict[str, list[Sample]],
    metric: str,
    key: str,
    shown: Callable[[float], str],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """Medians and ratios by round of one figure of both; a row with a bound names its rival."""
    ours, theirs = samples["ours"], samples["rust"]
    bound = at_least is not None or at_most is not None
    return compared(
        f"{metric} (vs durable-streams {tools.RUST_VERSION})" if bound else metric,
        median(ours, key),
        median(theirs, key),
        shown,
        at_least=at_least,
        at_most=at_most,
        samples=samples,
        by_round=ratios(ours, theirs, key),
    )


def appends(run: Run, *, connections: int, streams: int, at_least: float) -> list[Row]:
    """Durable appends of one 100 B JSON message."""
    many: dict[str, str] = {}

    def path_of(server: Server) -> str:
        with Client(server.port) as client:
            if streams == 1:
                return client.create(run.fresh_name())
            # The same ones every round: the reference server refuses some appends once it has
            # seen more than the 100 files that it keeps open.
            if server.name not in many:
                many[server.name] = client.create_many(run.fresh_name(), streams)
            return many[server.name]

    def measure(server: Server, number: int) -> Sample:
        seconds = run.seconds if number else 1.0
        path = path_of(server)
        result = load.wrk(
            server.port, path, seconds=seconds, connections=connections, streams=streams
        )
        return {key: result[key] for key in ("rate", "p50_us", "p99_us", "generator_cpu")}

    samples = side_by_side(run, ["ours", "reference"], measure)
    over = f" over {streams} streams" if streams > 1 else ""
    plural = "s" if connections > 1 else ""
    return [
        compared(
            f"durable append, {connections} connection{plural}{over} (vs file store)",
            median(samples["ours"], "rate"),
            median(samples["reference"], "rate"),
            table.per_second,
            at_least=at_least,
            samples=samples,
            by_round=ratios(samples["ours"], samples["reference"], "rate"),
        )
    ]


def _filled(server: Server, name: str, body: bytes, times: int) -> str:
    with Client(server.port) as client:
        path = client.create(name)
        for _ in range(times):
            client.append(path, body)
    return path


def _catch_up(run: Run, label: str, body: bytes, times: int, at_least: float | None) -> Row:
    paths: dict[str, str] = {}

    def measure(server: Server, number: int) -> Sample:
        if server.name not in paths:
            paths[server.name] = _filled(server, run.fresh_name(), body, times)
        result = load.read(server.port, paths[server.name], seconds=run.seconds if number else 1.0)
        if result["bytes"] < result["reads"] * CATCH_UP_MESSAGES * 100:
            raise load.LoadFailed(f"a read came back short: {result}")
        return {"rate": result["reads_per_s"], "generator_cpu": result["generator_cpu"]}

    samples = side_by_side(run, ["ours", "reference-memory"], measure)
    return compared(
        f"catch-up of 10,000 × 100 B, {label} (vs memory store)",
        median(samples["ours"], "rate"),
        median(samples["reference-memory"], "rate"),
        table.per_second,
        at_least=at_least,
        samples=samples,
        by_round=ratios(samples["ours"], samples["reference-memory"], "rate"),
    )


def catch_up(run: Run) -> list[Row]:
    """Whole reads of 10,000 messages of 100 B.

    The reference server reads faster what was appended in large arrays: shown, without a target.
    """
    return [
        _catch_up(run, "appended one by one", message(100), CATCH_UP_MESSAGES, 20),
        _catch_up(run, "appended by 1,000", array(100, 1_000), CATCH_UP_MESSAGES // 1_000, None),
    ]


def big_read(run: Run) -> list[Row]:
    """A 10 MB read, next to what two plain sockets do."""
    paths: dict[str, str] = {}
    body = array(1_000, 1_000)

    def measure(server: Server, number: int) -> Sample:
        if server.name not in paths:
            paths[server.name] = _filled(server, "big", body, BIG_READ_BYTES // 1_000_000)
        if number:
            run.loopback.append(load.loopback_bytes_per_s())
        path = paths[server.name]
        result = load.read(server.port, path, seconds=run.seconds if number else 1.0)
        return {"bandwidth": result["bytes_per_s"], "generator_cpu": result["generator_cpu"]}

    samples = side_by_side(run, ["ours", "reference-memory"], measure)
    ours = median(samples["ours"], "bandwidth")
    against = compared(
        "10 MB read (vs memory store)",
        ours,
        median(samples["reference-memory"], "bandwidth"),
        table.megabytes_per_second,
        samples=samples,
    )
    limit = compared(
        "10 MB read (vs loopback bandwidth)",
        ours,
        statistics.median(run.loopback),
        table.megabytes_per_second,
        at_least=0.3,
    )
    return [against, limit]


def fan_out(run: Run) -> list[Row]:
    """1,000 SSE readers of one stream, one appender at full speed; messages delivered a second."""

    def measure(server: Server, number: int) -> Sample:
        seconds = run.seconds if number else 1.0
        with Client(server.port) as client:
            path = client.create(run.fresh_name())
        result = load.live(server.port, path, seconds=seconds, readers=FAN_OUT_READERS)
        return {
            "rate": result["delivered"] / result["seconds"],
            "appends": result["appended"] / result["seconds"],
            "delivery_p99_us": result["delivery_p99_us"],
            "generator_cpu": result["generator_cpu"],
        }

    samples = side_by_side(run, ["ours", "ours-memory", "reference-memory"], measure)
    reference = median(samples["reference-memory"], "rate")
    label = "SSE, 1,000 readers, events delivered"
    return [
        compared(
            f"{label} (vs memory store)",
            median(samples["ours"], "rate"),
            reference,
            table.per_second,
            at_least=2.5,
            samples=samples,
            by_round=ratios(samples["ours"], samples["reference-memory"], "rate"),
        ),
        compared(
            f"{label}, our memory store (vs memory store)",
            median(samples["ours-memory"], "rate"),
            reference,
            table.per_second,
        ),
    ]


def latency(run: Run) -> list[Row]:
    """From sending an append to one SSE reader having it, at a fixed modest rate."""

    def measure(server: Server, number: int) -> Sample:
        with Client(server.port) as client:
            path = client.create(run.fresh_name())
        seconds = run.seconds if number else 1.0
        result = load.live(
            server.port, path, seconds=seconds, readers=1, rate=LATENCY_APPENDS_PER_S
        )
        return {"p50": result["delivery_p50_us"], "p99": result["delivery_p99_us"]}

    kinds: list[Kind] = ["ours", "reference", "ours-memory", "reference-memory"]
    samples = side_by_side(run, kinds, measure)
    pairs: list[tuple[str, Kind, Kind, float | None]] = [
        ("durable vs file store", "ours", "reference", 1.0),
        ("memory vs memory store", "ours-memory", "reference-memory", 1.0),
        ("durable vs memory store", "ours", "reference-memory", None),
    ]
    return [
        compared(
            f"append → one SSE reader, {key} ({label})",
            median(samples[ours], key),
            median(samples[reference], key),
            table.microseconds,
            at_most=bound,
            by_round=ratios(samples[ours], samples[reference], key),
            samples=samples if key == "p50" and bound else None,
        )
        for label, ours, reference, bound in pairs
        for key in ("p50", "p99")
    ]


def idle_memory(run: Run) -> list[Row]:
    """Server memory for each of 4,000 idle SSE connections."""

    def measure(kind: Kind, number: int) -> Sample:
        with servers.running([kind], run.folder, ours_command=run.ours_command) as (server,):
            with Client(server.port) as client:
                path = client.create("idle")
            # The first connections use up free memory of the start, or bring in code once: the
            # cost of one is taken from those after them.
            with load.held(server.port, path, IDLE_WARM_UP_READERS):
                before = server.rss_bytes()
            with load.held(server.port, path, IDLE_READERS) as idle:
                time.sleep(1.0)
                grown = server.rss_bytes() - before
                if idle.append()["got"] != IDLE_READERS:
                    raise load.LoadFailed("an idle reader did not get an append")
        return {"bytes": grown / (IDLE_READERS - IDLE_WARM_UP_READERS)}

    kinds: list[tuple[str, Kind]] = [("ours", "ours"), ("reference", "reference-memory")]
    samples = interleave(kinds, measure, rounds=min(run.rounds, 3), warm_up=False)
    ours, reference = median(samples["ours"], "bytes"), median(samples["reference"], "bytes")
    return [
        Row(
            metric="memory of an idle SSE connection, 4,000 open",
            ours=table.kilobytes(ours),
            reference=table.kilobytes(reference),
            ratio=ours / reference,
            target="≤ 6 kB",
            met=ours <= 6_000,
            samples=samples,
        )
    ]


GROUPS: dict[str, Callable[[Run], list[Row]]] = {
    "append-1": lambda run: appends(run, connections=1, streams=1, at_least=3),
    "append-16": lambda run: appends(run, connections=16, streams=1, at_least=15),
    "append-64": lambda run: appends(run, connections=64, streams=1, at_least=25),
    "append-64-streams": lambda run: appends(run, connections=64, streams=64, at_least=12),
    "catch-up": catch_up,
    "big-read": big_read,
    "fan-out": fan_out,
    "latency": latency,
    "idle": idle_memory,
}


def chosen(groups: Mapping[str, object], only: Sequence[str]) -> list[str]:
    """The groups with these names, or whose names begin so (`rust` for `rust-…`); all for none."""
    names: list[str] = [] if only else list(groups)
    for name in only:
        begin = [group for group in groups if group.startswith(name + "-")]
        names += [name] if name in groups else begin
    return names


def measure_groups(
    run: Run, groups: Mapping[str, Callable[[Run], list[Row]]], only: Sequence[str]
) -> list[Row]:
    """The rows of the wanted groups; one that fails or cannot run says so in its row."""
    rows: list[Row] = []
    for name in chosen(groups, only):
        note(f"  {name} ...")
        try:
            rows += groups[name](run)
        except tools.Unavailable as missing:
            rows.append(Row(metric=name, ours=f"skipped: {missing}"))
        except (load.LoadFailed, servers.ServerFailed, subprocess.SubprocessError) as failure:
            note(f"    failed: {failure}")
            rows.append(table.failed(name, str(failure)))
    return rows
