"""Offline loader: fills a data folder through the real engine, in a process of its own.

Knows nothing of HTTP; the streams it leaves are what a server would have written.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.client import array

# Under the engine's own bound on queued appends, and enough for full journal batches.
IN_FLIGHT_MAX = 20_000
IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
BACK_OFF_SECONDS = 0.05
SEED_SECONDS_MAX = 900.0


async def _submit(
    names: Iterable[str], size: int, start: Callable[[str], asyncio.Future[Any]]
) -> None:
    """Start one operation for each name, many in flight; when the engine says wait, wait."""
    from penstock.errors import Overloaded

    at_once = max(1, min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX // max(1, size)))
    pending: list[asyncio.Future[Any]] = []
    for name in names:
        while True:
            try:
                pending.append(start(name))
                break
            except Overloaded:
                await asyncio.gather(*pending)
                pending.clear()
                await asyncio.sleep(BACK_OFF_SECONDS)
        if len(pending) >= at_once:
            await asyncio.gather(*pending)
            pending.clear()
    await asyncio.gather(*pending)


async def _fill(data: Path, *, name: str, streams: int, body: bytes, appends: int) -> None:
    from penstock.config.settings import Settings
    from penstock.log import open_engine
    from penstock.log.requests import Append
    from penstock.protocol.lifecycle import StreamConfig

    engine = open_engine(Settings(data_dir=data))
    await engine.start()
    config = StreamConfig(content_type="application/json", ttl_s=None, expires_at_us=None)
    append = Append(
        body=body,
        content_type="application/json",
        close=False,
        producer=None,
        stream_seq=None,
        expected=None,
    )
    names = [name] if streams == 1 else [f"{name}-{number}" for number in range(streams)]
    first = body if appends else b""
    try:
        await _submit(
            names, len(first), lambda path: engine.create(path, config, first, closed=False)
        )
        more = itertools.chain.from_iterable(itertools.repeat(names, max(0, appends - 1)))
        await _submit(more, len(body), lambda path: engine.append(path, append))
    finally:
        await engine.stop()


def seed(
    data: Path, *, name: str, streams: int, messages: int = 1, size: int = 100, appends: int = 1
) -> float:
    """Fill `data` with `streams` streams, each given `appends` arrays of `messages`; seconds taken.

    In a child process, so that the loader's memory and caches are gone before anything is measured.
    """
    numbers = {"streams": streams, "messages": messages, "size": size, "appends": appends}
    options = [text for key, value in numbers.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "bench.seed", str(data), "--name", name, *options]
    started = time.monotonic()
    subprocess.run(command, check=True, timeout=SEED_SECONDS_MAX, env={**os.environ})
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.seed", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--name", default="seed")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1, help="messages of each append")
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--appends", type=int, default=1, help="appends to each stream")
    options = parser.parse_args()
    body = array(options.size, options.messages)
    asyncio.run(
        _fill(
            options.data,
            name=options.name,
            streams=options.streams,
            body=body,
            appends=options.appends,
        )
    )


if __name__ == "__main__":
    main()
