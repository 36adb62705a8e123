"""Command line of the benchmark: `python -m bench run` and `python -m bench growth`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

from bench import compare, growth, rust, table, tools
from bench.rounds import note
from bench.servers import OURS_COMMAND

GROUPS = {"run": {**compare.GROUPS, **rust.GROUPS}, "growth": growth.GROUPS}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", choices=["run", "growth"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each measurement")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument(
        "--only", default="", help="comma-separated groups, or how their names begin (default: all)"
    )
    parser.add_argument(
        "--streams", type=int, default=10_000, help="up to how many streams rust-streams grows"
    )
    parser.add_argument(
        "--journal-mb", type=int, default=64, help="MB of journal that rust-restart replays"
    )
    parser.add_argument("--quick", action="store_true", help="a try-out: 1 round of 1 s")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--ours-cmd", default=OURS_COMMAND, help="how to start Penstock")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    groups = GROUPS[options.what]
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if not compare.chosen(groups, [name])]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(groups)}")
    return options


def _stop(*_: object) -> None:
    # Turned into an exception, so that servers are stopped and data folders removed.
    sys.exit(130)


def _install(options: argparse.Namespace) -> None:
    """Before the first measurement; what stays missing is said by the rows that need it."""
    needed = {tools.wrk}
    if options.what == "run":
        names = compare.chosen(GROUPS["run"], options.only)
        needed |= {tools.rust if name in rust.GROUPS else tools.node for name in names}
    for get in needed:
        with contextlib.suppress(tools.Unavailable):
            get()


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    tools.raise_file_limit()
    started = time.monotonic()
    try:
        tools.program("load")
        tools.program("probe")
    except tools.Unavailable as missing:
        note(f"bench cannot run: {missing}")
        return 1
    _install(options)
    with tools.work_folder() as folder:
        run = compare.Run(
            Path(folder),
            options.ours_cmd,
            options.rounds,
            options.seconds,
            streams=options.streams,
            journal_bytes=options.journal_mb * 1_000_000,
        )
        run.sample_limits()
        rows = compare.measure_groups(run, GROUPS[options.what], options.only)
        run.sample_limits()
    took_s = time.monotonic() - started
    kind = compare if options.what == "run" else growth
    name = "latest" if options.what == "run" else "growth"
    good = table.publish(
        name,
        rows,
        kind.HEADS,
        run.limits(),
        took_s=took_s,
        method=kind.METHOD,
        disturbed=run.disturbed(),
    )
    return 0 if good or not options.strict else 1


if __name__ == "__main__":
    sys.exit(main())
