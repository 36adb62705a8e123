"""Readers compared in one run: `follow` of ours (blocking and asyncio) and the PyPI client
`durable-streams`, in turn, from the start of a closed stream to its end, in the same mode.

    python -m bench.client_follow [--rounds 5] [--count 400000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal

import penstock
from bench import servers, tools

Mode = Literal["long-poll", "sse"]

MODES: tuple[Mode, ...] = ("long-poll", "sse")
PYPI = "durable-streams 0.1.0"
BATCH = 10_000
STREAM = "follow"


def fill(url: str, count: int) -> str:
    with penstock.Client(url) as client:
        stream = client.stream(STREAM)
        stream.create()
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            stream.append_many(
                [
                    {"id": n, "kind": "order", "user": f"u{n % 100}", "note": "x" * 40}
                    for n in numbers
                ]
            )
        stream.close()
        return stream.url


def blocking(url: str, mode: Mode) -> int:
    with penstock.Client(url) as client:
        return sum(len(batch.messages) for batch in client.stream(STREAM).follow(mode=mode))


def asynchronous(url: str, mode: Mode) -> int:
    async def run() -> int:
        count = 0
        async with penstock.AsyncClient(url) as client:
            async for batch in client.stream(STREAM).follow(mode=mode):
                count += len(batch.messages)
        return count

    return asyncio.run(run())


def pypi(url: str, mode: Mode, count: int) -> int:
    # Installed by `make bench-client`; it is not one of the development tools.
    durable_streams = import_module("durable_streams")
    seen = 0
    with durable_streams.stream(url, offset="-1", live=mode) as response:
        for batch in response.iter_json_batches():
            seen += len(batch)
            if seen >= count:
                break
    return seen


def run(rounds: int, count: int) -> dict[str, list[float]]:
    """Messages a second of each reader, round by round."""
    with tools.work_folder() as folder:
        server = servers.start("ours", Path(folder) / "data")
        try:
            url = f"http://127.0.0.1:{server.port}"
            stream_url = fill(url, count)
            contestants: dict[str, Callable[[], int]] = {}
            for mode in MODES:
                contestants[f"{mode}: follow"] = partial(blocking, url, mode)
                contestants[f"{mode}: async follow"] = partial(asynchronous, url, mode)
                contestants[f"{mode}: {PYPI}"] = partial(pypi, stream_url, mode, count)
            rates: dict[str, list[float]] = {name: [] for name in contestants}
            for number in range(rounds + 1):
                for name, contestant in contestants.items():
                    started = time.perf_counter()
                    seen = contestant()
                    if seen != count:
                        raise RuntimeError(f"{name} saw {seen} of {count} messages")
                    if number:  # the first round warms up
                        rates[name].append(count / (time.perf_counter() - started))
            return rates
        finally:
            server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400_000)
    options = parser.parse_args()
    rates = run(options.rounds, options.count)
    for name, found in rates.items():
        mode = name.partition(":")[0]
        base = statistics.median(rates[f"{mode}: {PYPI}"])
        median = statistics.median(found)
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        print(f"{name:34} {median:>10,.0f} messages/s ({spread}), {median / base:.2f}× PyPI")
    return 0


if __name__ == "__main__":
    sys.exit(main())
