"""What a look for data that is kept too long costs, with many streams that have nothing to give:
the group `retention` of `make bench-growth`, or any number of streams by hand.

    python -m bench.retention 1000000

Drives the engine itself, with a clock that can be set: the streams are eight days old, their data
two, and seven days are kept. A few streams have data that is due.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import table
from bench.compare import Run
from bench.seed import _submit
from bench.table import Row, compared

DAY_S = 86_400
DUE = 1_000
FEW, MANY = 1_000, 100_000


def retention(run: Run) -> list[Row]:
    """A look at many streams that are older than what is kept, and whose data is not."""
    found = {count: _looked(run.folder / f"retention-{count}", count) for count in (FEW, MANY)}
    what = f"look for what is kept too long, {MANY:,} streams vs {FEW:,}"
    return [
        compared(
            f"{what}, {DUE:,} due: CPU",
            found[MANY]["first: CPU seconds"] * 1e6,
            found[FEW]["first: CPU seconds"] * 1e6,
            table.microseconds,
        ),
        compared(
            f"{what}, none due: CPU",
            found[MANY]["second: CPU seconds"] * 1e6,
            found[FEW]["second: CPU seconds"] * 1e6,
            table.microseconds,
        ),
        Row(
            metric=f"streams loaded by a look at {MANY:,}, none due",
            ours=f"{found[MANY]['second: streams loaded']:,}",
            target="0",
            met=found[MANY]["second: streams loaded"] == 0,
        ),
    ]


def _looked(folder: Path, streams: int) -> dict[str, Any]:
    _fill_apart(folder, streams)
    try:
        return asyncio.run(look(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill_apart(folder: Path, streams: int) -> None:
    """In a process of its own, so that its memory is not counted."""
    made = multiprocessing.get_context("spawn").Process(target=_fill, args=(folder, streams))
    made.start()
    made.join()
    if made.exitcode:
        raise RuntimeError(f"the folder could not be filled: {made.exitcode}")


async def fill(data: Path, streams: int) -> None:
    from penstock.clock import ManualClock
    from penstock.config.settings import Settings
    from penstock.log import open_engine
    from penstock.log.requests import Append
    from penstock.protocol.lifecycle import StreamConfig

    clock = ManualClock()
    engine = open_engine(Settings(data_dir=data), clock=clock)
    await engine.start()
    config = StreamConfig("application/json", None, None)
    body = b'[{"padding":"' + b"x" * 80 + b'"}]'
    append = Append(body, "application/json", False, None, None, None)
    names = [f"s-{number}" for number in range(streams)]
    due = [f"due-{number}" for number in range(DUE)]
    await _submit([*names, *due], 100, lambda path: engine.create(path, config, body, closed=False))
    clock.advance(6 * DAY_S)
    await _submit(names, 100, lambda path: engine.append(path, append))
    await engine.stop()


def _fill(data: Path, streams: int) -> None:
    asyncio.run(fill(data, streams))


async def look(data: Path) -> dict[str, Any]:
    from penstock.clock import ManualClock
    from penstock.config.settings import Settings
    from penstock.log import open_engine, retention

    retention.REST = 0  # the cost is of interest here, not how it is spread
    clock = ManualClock()
    clock.advance(8 * DAY_S)
    engine = open_engine(Settings(data_dir=data, retention="=7d"), clock=clock)
    await engine.start()
    found: dict[str, Any] = {}
    for name in ("first", "second"):
        loaded, begun, cpu = engine.stats.loaded, time.perf_counter(), time.process_time()
        found[f"{name}: trimmed"] = await engine.retention.enforce()
        found[f"{name}: seconds"] = round(time.perf_counter() - begun, 3)
        found[f"{name}: CPU seconds"] = round(time.process_time() - cpu, 5)
        found[f"{name}: streams loaded"] = engine.stats.loaded - loaded
    found["MiB of memory at most"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    await engine.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.retention", description=__doc__)
    parser.add_argument("streams", type=int, nargs="?", default=100_000)
    parser.add_argument("--data", type=Path, help="use, or make, this folder")
    options = parser.parse_args()
    folder = options.data or Path(tempfile.mkdtemp(prefix="penstock-retention-"))
    try:
        if not (folder / "PENSTOCK").exists():
            begun = time.perf_counter()
            _fill_apart(folder, options.streams)
            print(f"seeding {options.streams:,} streams took {time.perf_counter() - begun:.1f} s")
        for name, value in asyncio.run(look(folder)).items():
            print(f"{name:26} {value:>12,}")
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
