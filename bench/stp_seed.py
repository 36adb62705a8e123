"""Offline loader for tables: a server declares one, the real engine fills it, in a child process.

What it leaves is what a server would have after its writers have gone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import penstock
from bench import servers
from penstock.errors import Overloaded
from penstock.stp import Table

PATH = "bench"
SCHEMA = "endpoint_manifest"
KEYS = 100_000
BATCH = 20_000
BACK_OFF_SECONDS = 0.2
SEED_SECONDS_MAX = 1800.0


def event(number: int) -> str:
    """A change of about 150 bytes, as the server itself spells them: a key gets a new URL."""
    seconds = number % 86_400
    moment = f"2026-01-08T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
    return (
        f'{{"headers":{{"timestamp":"{moment}","operation":"insert"}},"type":"{SCHEMA}",'
        f'"key":"endpoint-{number % KEYS}","value":"https://provider.example/fhir/r4/{number}"}}'
    )


async def _fill(data: Path, rows: int) -> None:
    from penstock.config.settings import Settings
    from penstock.log import open_engine
    from penstock.log.requests import Append

    engine = open_engine(Settings(data_dir=data))
    await engine.start()
    try:
        for start in range(0, rows, BATCH):
            numbers = range(start, min(start + BATCH, rows))
            body = f"[{','.join(map(event, numbers))}]".encode()
            append = Append(
                body=body,
                content_type="application/json",
                close=False,
                producer=None,
                stream_seq=None,
                expected=None,
            )
            while True:
                try:
                    await engine.append(PATH, append)
                    break
                except Overloaded:  # the checkpoint is behind
                    await asyncio.sleep(BACK_OFF_SECONDS)
    finally:
        await engine.stop()


def seed_table(data: Path, rows: int) -> float:
    """A table of so many rows, ready to be read; seconds taken."""
    started = time.monotonic()
    server = servers.start("ours", data)
    try:
        with penstock.Client(f"http://127.0.0.1:{server.port}") as client:
            Table(client, PATH).create(SCHEMA)
    finally:
        server.stop()
    command = [sys.executable, "-m", "bench.stp_seed", str(data), str(rows)]
    subprocess.run(command, check=True, timeout=SEED_SECONDS_MAX, env={**os.environ})
    # A server that took the rows itself would have indexed their state by now.
    server = servers.start("ours", data)
    try:
        with penstock.Client(
            f"http://127.0.0.1:{server.port}", timeout_s=SEED_SECONDS_MAX
        ) as client:
            keys = min(rows, KEYS)
            if _indexed_keys(client) != keys:
                raise RuntimeError(f"the table has not the {keys:,} keys that were written")
    finally:
        server.stop()
    return time.monotonic() - started


def _indexed_keys(client: penstock.Client) -> int:
    """How many keys there are, once the state index has taken in all rows."""
    deadline = time.monotonic() + SEED_SECONDS_MAX
    while True:
        try:
            return len(Table(client, PATH).state())
        except Overloaded:  # the index is behind
            if time.monotonic() > deadline:
                raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stp_seed", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", type=int)
    options = parser.parse_args()
    asyncio.run(_fill(options.data, options.rows))


if __name__ == "__main__":
    main()
