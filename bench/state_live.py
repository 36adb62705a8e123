"""A live state over HTTP: replay of a log, and bootstrap from `/v1/state`, in memory and SQLite.

Both go through the client as an application would, from nothing to up to date. Beside the replay
into SQLite stands a bare loop: the same rows in the same transactions, without HTTP and JSON.
"""

from __future__ import annotations

import gc
import shutil
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import penstock
from bench.rounds import Sample, interleave, median
from bench.state_events import STREAM, Filled
from bench.table import Row, per_second, seconds
from penstock.state import LiveState, SqliteBackend
from penstock.state.events import ChangeEvent, parse_many
from penstock.state.live.bootstrap import Bootstrap

SQLITE_EVENTS_PER_S = 40_000
BOOTSTRAP_AT_LEAST = 5.0
_BARE = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
CREATE TABLE entity (type TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (type, key)) WITHOUT ROWID;
"""
_SET = """INSERT INTO entity VALUES (?, ?, ?)
ON CONFLICT (type, key) DO UPDATE SET value = excluded.value"""

Writes = dict[tuple[str, str], bytes | None]


class Way(NamedTuple):
    """How a state comes to be."""

    bootstrap: Bootstrap
    sqlite: bool


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder / "live.sqlite"


def load(filled: Filled, way: Way, folder: Path) -> Sample:
    """Seconds until a new live state is up to date; processor time of both processes."""
    path = _fresh(folder / "live") if way.sqlite else None
    gc.collect()
    server_s, client_s = filled.server.cpu_s(), time.process_time()
    started = time.perf_counter()
    backend = None if path is None else SqliteBackend(path)
    with (
        penstock.Client(filled.url) as client,
        LiveState(client.stream(STREAM), backend=backend, bootstrap=way.bootstrap) as state,
    ):
        state.wait_up_to_date()
        taken = time.perf_counter() - started
        client_s = time.process_time() - client_s
        server_s = filled.server.cpu_s() - server_s
        found = sum(len(state.collection(type)) for type in state.types)
    if found != filled.keys:
        raise RuntimeError(f"the live state has {found} entities instead of {filled.keys}")
    return {"s": taken, "client_cpu_s": client_s, "server_cpu_s": server_s}


def batches(filled: Filled) -> Iterator[Writes]:
    """What a live state writes, transaction by transaction."""
    with penstock.Client(filled.url) as client:
        follow = client.stream(STREAM).follow(decode=False, stop_when_up_to_date=True)
        for batch in follow:
            writes: Writes = {}
            for event in parse_many(batch.data, strict_timestamp=False) if batch.data else ():
                if isinstance(event, ChangeEvent):
                    gone = event.operation == "delete"
                    writes[event.type, event.key] = None if gone else event.raw_value
            yield writes


def bare(filled: Filled, folder: Path) -> Sample:
    """Seconds that SQLite takes for the writes alone, in the order they come."""
    database = sqlite3.connect(_fresh(folder / "bare"), isolation_level=None)
    try:
        database.executescript(_BARE)
        taken = processor_s = 0.0
        for writes in batches(filled):
            gone = [entity for entity, value in writes.items() if value is None]
            kept = [(*entity, value) for entity, value in writes.items() if value is not None]
            started, started_cpu = time.perf_counter(), time.process_time()
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM entity WHERE type = ? AND key = ?", gone)
            database.executemany(_SET, kept)
            database.execute("COMMIT")
            taken += time.perf_counter() - started
            processor_s += time.process_time() - started_cpu
        (found,) = database.execute("SELECT count(*) FROM entity").fetchone()
    finally:
        database.close()
    if found != filled.keys:
        raise RuntimeError(f"the bare loop has {found} entities instead of {filled.keys}")
    return {"s": taken, "client_cpu_s": processor_s, "server_cpu_s": 0.0}


def sqlite_rows(filled: Filled, folder: Path, rounds: int, *, target: bool) -> list[Row]:
    """Replay into SQLite beside the bare loop."""

    def run(name: str, _: int) -> Sample:
        return bare(filled, folder) if name == "bare" else load(filled, Way("stream", True), folder)

    samples = interleave([("live", "live"), ("bare", "bare")], run, rounds=rounds)
    ours = filled.events / median(samples["live"], "s")
    loop = filled.events / median(samples["bare"], "s")
    return [
        Row(
            metric=f"LiveState on SQLite, {filled.events:,} events over HTTP (vs bare SQLite loop)",
            ours=per_second(ours),
            reference=per_second(loop),
            ratio=ours / loop,
            target=f"≥ {SQLITE_EVENTS_PER_S:,}/s" if target else "",
            met=ours >= SQLITE_EVENTS_PER_S if target else None,
            samples=samples,
            by_round=_faster(samples["live"], samples["bare"]),
        ),
        _processor_row(f"{filled.events:,} events, SQLite", samples["live"], samples["bare"]),
    ]


def bootstrap_rows(filled: Filled, folder: Path, rounds: int, *, target: bool) -> list[Row]:
    """Bootstrap beside a replay of the same log, in memory and in SQLite."""
    rows: list[Row] = []
    for backend in ("memory", "SQLite"):
        ways = [(name, Way(name, backend == "SQLite")) for name in _BOOTSTRAPS]
        samples = interleave(ways, lambda way, _: load(filled, way, folder), rounds=rounds)
        state, stream = samples["state"], samples["stream"]
        what = f"{filled.keys:,} keys of {filled.events:,} events, {backend}"
        by_round = _faster(state, stream)
        ratio = median(stream, "s") / median(state, "s")
        rows.append(
            Row(
                metric=f"bootstrap from /v1/state (vs replay): {what}",
                ours=seconds(median(state, "s")),
                reference=seconds(median(stream, "s")),
                ratio=ratio,
                target=f"≥ {BOOTSTRAP_AT_LEAST:g}×" if target else "",
                met=ratio >= BOOTSTRAP_AT_LEAST if target else None,
                samples=samples,
                by_round=by_round,
            )
        )
        rows.append(_processor_row(what, state, stream))
    return rows


_BOOTSTRAPS: tuple[Bootstrap, ...] = ("state", "stream")


def _processor_row(what: str, state: Sequence[Sample], stream: Sequence[Sample]) -> Row:
    def told(samples: Sequence[Sample]) -> str:
        return f"{median(samples, 'client_cpu_s'):.2f} + {median(samples, 'server_cpu_s'):.2f} s"

    def total(samples: Sequence[Sample]) -> float:
        return statistics.median(each["client_cpu_s"] + each["server_cpu_s"] for each in samples)

    return Row(
        metric=f"processor time of that, client + server: {what}",
        ours=told(state),
        reference=told(stream),
        ratio=total(stream) / total(state),
    )


def _faster(ours: Sequence[Sample], theirs: Sequence[Sample]) -> list[float]:
    return [b["s"] / a["s"] for a, b in zip(ours, theirs, strict=True)]
