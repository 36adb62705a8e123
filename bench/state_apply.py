"""State from JSON bytes: ours and that of the npm package in Node, in turn.

Each decodes the same arrays of events and applies them to an empty state. Ours keeps the values as
JSON until they are asked for; what it costs to ask for all of them at the end is shown too.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench import state_events, tools
from bench.rounds import Sample, interleave, median, ratios
from bench.table import Row, compared, per_second
from penstock.state.events import parse_many
from penstock.state.materialized import MaterializedState

NPM = "npm"
AT_LEAST = 1.0


def materialize(arrays: list[bytes]) -> MaterializedState:
    state = MaterializedState()
    for array in arrays:
        state.apply_json(array)
    return state


def parsed_first(arrays: list[bytes]) -> MaterializedState:
    """What a follower does that looks at each event."""
    state = MaterializedState()
    for array in arrays:
        state.apply_batch(parse_many(array, strict_timestamp=False))
    return state


def materialize_and_read(arrays: list[bytes]) -> MaterializedState:
    state = materialize(arrays)
    state.to_dict()
    return state


class Node:
    """The npm package, in a process that stays warm from round to round."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self) -> tuple[float, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return float(answer["seconds"]), int(answer["keys"])


class Ours:
    def __init__(
        self, run: Callable[[list[bytes]], MaterializedState], arrays: list[bytes]
    ) -> None:
        self._run = run
        self._arrays = arrays

    def __call__(self) -> tuple[float, int]:
        gc.collect()
        started = time.perf_counter()
        state = self._run(self._arrays)
        return time.perf_counter() - started, len(state)


def measure(folder: Path, rounds: int, events: int, keys: int) -> list[Row]:
    path = folder / f"events-{events}.jsonl"
    arrays = list(state_events.arrays(events, keys))
    path.write_bytes(b"\n".join(arrays) + b"\n")
    command = [str(tools.node()), str(tools.HERE / "state_apply.mjs"), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        contenders: list[tuple[str, Callable[[], tuple[float, int]]]] = [
            (NPM, Node(process)),
            ("apply_json", Ours(materialize, arrays)),
            ("parse_many + apply_batch", Ours(parsed_first, arrays)),
            ("apply_json, then all values decoded", Ours(materialize_and_read, arrays)),
        ]

        def run(contender: Callable[[], tuple[float, int]], _: int) -> Sample:
            seconds, found = contender()
            if found != keys:
                raise RuntimeError(f"the state has {found} entities instead of {keys}")
            return {"rate": events / seconds}

        try:
            samples = interleave(contenders, run, rounds=rounds)
        finally:
            process.kill()
    npm = samples.pop(NPM)
    return [
        compared(
            f"decode + apply of {events:,} events: {name}",
            median(found, "rate"),
            median(npm, "rate"),
            per_second,
            at_least=AT_LEAST if name == "apply_json" else None,
            samples={name: found, NPM: npm},
            by_round=ratios(found, npm, "rate"),
        )
        for name, found in samples.items()
    ]
