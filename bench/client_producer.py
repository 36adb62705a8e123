"""Producers compared in one run: ours (blocking and asyncio) and that of the npm client, in turn,
each appending the same small JSON messages to our server, from the first append to flush.

    python -m bench.client_producer [--rounds 5] [--count 200000] [--memory]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from bench import servers, tools

# After how many appends the Node loop lets the sending go on (the last: never). The fastest counts.
PACES = (512, 8192, 1_000_000_000)


def message(number: int) -> dict[str, object]:
    return {"n": number, "name": "abcdefghijkl", "ok": True}


def blocking(url: str, name: str, id: str, count: int) -> float:
    with penstock.Client(url) as client:
        stream = client.stream(name)
        stream.head()
        with stream.producer(id) as producer:
            append = producer.append
            started = time.perf_counter()
            for number in range(count):
                append(message(number))
            producer.flush()
            return time.perf_counter() - started


def asynchronous(url: str, name: str, id: str, count: int) -> float:
    async def run() -> float:
        async with penstock.AsyncClient(url) as client:
            stream = client.stream(name)
            await stream.head()
            async with stream.producer(id) as producer:
                append = producer.append
                started = time.perf_counter()
                for number in range(count):
                    await append(message(number))
                await producer.flush()
                return time.perf_counter() - started

    return asyncio.run(run())


class Node:
    """The npm producer, in a process that stays warm from round to round."""

    def __init__(self, process: subprocess.Popen[str], pace: int) -> None:
        self._process = process
        self._pace = pace

    def __call__(self, _: str, name: str, id: str, count: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"stream": name, "id": id, "count": count, "pace": self._pace}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline())["seconds"])


@contextmanager
def node(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(tools.node()), str(tools.HERE / "client_producer.mjs"), url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(rounds: int, count: int, *, memory: bool) -> dict[str, list[float]]:
    """Messages a second of each producer, round by round."""
    with tools.work_folder() as folder:
        kind: servers.Kind = "ours-memory" if memory else "ours"
        server = servers.start(kind, Path(folder) / "data")
        try:
            url = f"http://127.0.0.1:{server.port}"
            with node(url) as process, penstock.Client(url) as client:
                contestants: dict[str, Callable[[str, str, str, int], float]] = {
                    "Producer": blocking,
                    "AsyncProducer": asynchronous,
                    **{f"npm, yields every {pace:g}": Node(process, pace) for pace in PACES},
                }
                rates: dict[str, list[float]] = {name: [] for name in contestants}
                for number in range(rounds + 1):
                    for name, contestant in contestants.items():
                        stream = client.stream(f"bench-{number}")
                        stream.ensure()
                        before = stream.head().offset
                        id = name.replace(" ", "-").replace(",", "")
                        rate = count / contestant(url, f"bench-{number}", id, count)
                        stored = len(stream.read_json(before))
                        if stored != count:
                            raise RuntimeError(f"{name} stored {stored} of {count} messages")
                        if number:  # the first round warms up
                            rates[name].append(rate)
                return rates
        finally:
            server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    rates = run(options.rounds, options.count, memory=options.memory)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in medians.items() if name.startswith("npm"))
    for name, found in rates.items():
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        ratio = medians[name] / best
        print(f"{name:24} {medians[name]:>10,.0f} messages/s ({spread}), {ratio:.2f}× npm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
