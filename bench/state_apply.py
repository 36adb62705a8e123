"""State from JSON bytes, compared in one run: ours and that of the npm package in Node, in turn.

Each decodes the same arrays of events and applies them to an empty state. Ours keeps the values as
JSON until they are asked for; what it costs to ask for all of them at the end is shown too.

    python -m bench.state_apply [--rounds 5] [--events 1000000] [--keys 100000] [--batch 1000]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import tools
from penstock.state.events import parse_many
from penstock.state.materialized import MaterializedState

TYPES = ("user", "message", "presence")


def event(random_: random.Random, number: int, keys: int) -> dict[str, object]:
    id = random_.randrange(keys)
    type_ = TYPES[id % len(TYPES)]
    operation = random_.choice(("insert", "update", "update", "upsert", "delete"))
    value = {
        "id": id, "name": f"name {random_.randrange(10**6)}", "city": "Oslo", "online": True,
        "score": random_.random(),
    }  # fmt: skip
    headers = {"operation": operation, "txid": f"tx-{number}", "timestamp": "2025-01-15T10:30:00Z"}
    body = {} if operation == "delete" else {"value": value}
    return {"type": type_, "key": f"{type_}:{id}", **body, "headers": headers}


def write_events(path: Path, events: int, keys: int, batch: int) -> list[bytes]:
    random_ = random.Random(7)
    arrays = []
    for start in range(0, events, batch):
        numbers = range(start, min(start + batch, events))
        arrays.append(msgspec.json.encode([event(random_, number, keys) for number in numbers]))
    path.write_bytes(b"\n".join(arrays) + b"\n")
    return arrays


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


def timed(
    run: Callable[[list[bytes]], MaterializedState], arrays: list[bytes]
) -> tuple[float, int]:
    gc.collect()
    started = time.perf_counter()
    state = run(arrays)
    return time.perf_counter() - started, len(state)


def compare(rounds: int, arrays: list[bytes], path: Path) -> dict[str, list[float]]:
    """Seconds of each contestant, round by round."""
    command = [str(tools.node()), str(tools.HERE / "state_apply.mjs"), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        node = Node(process)
        contestants: dict[str, Callable[[], tuple[float, int]]] = {
            "npm: JSON.parse + applyBatch": node,
            "apply_json": lambda: timed(materialize, arrays),
            "parse_many + apply_batch": lambda: timed(parsed_first, arrays),
            "apply_json + all values decoded": lambda: timed(materialize_and_read, arrays),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        try:
            for number in range(rounds + 1):
                found = {name: contestant() for name, contestant in contestants.items()}
                if len({keys for _, keys in found.values()}) != 1:
                    raise RuntimeError(f"the states differ: {found}")
                if number:  # the first round warms up
                    for name, (taken, _) in found.items():
                        seconds[name].append(taken)
        finally:
            process.kill()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1000)
    options = parser.parse_args()
    with tools.work_folder() as folder:
        path = Path(folder) / "events.jsonl"
        arrays = write_events(path, options.events, options.keys, options.batch)
        seconds = compare(options.rounds, arrays, path)
    npm, *_ = seconds.values()
    for name, found in seconds.items():
        rate = options.events / statistics.median(found)
        spread = f"{options.events / max(found):,.0f} to {options.events / min(found):,.0f}"
        # Round by round, since both then had the same neighbours.
        ratio = statistics.median(theirs / ours for theirs, ours in zip(npm, found, strict=True))
        print(f"{name:32} {rate:>10,.0f} events/s ({spread}), {ratio:.2f}× npm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
