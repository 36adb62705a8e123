"""Command line of the benchmark: `python -m bench run` and `python -m bench growth`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

from bench import compare, growth, table, tools
from bench.rounds import note
from bench.servers import OURS_COMMAND


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", choices=["run", "growth"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each measurement")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--only", default="", help="comma-separated groups (default: all)")
    parser.add_argument("--quick", action="store_true", help="a try-out: 1 round of 1 s")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--ours-cmd", default=OURS_COMMAND, help="how to start Penstock")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    groups = compare.GROUPS if options.what == "run" else growth.GROUPS
    unknown = [name for name in options.only.split(",") if name and name not in groups]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(groups)}")
    return options


def _stop(*_: object) -> None:
    # Turned into an exception, so that servers are stopped and data folders removed.
    sys.exit(130)


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    only = [name for name in options.only.split(",") if name]
    tools.raise_file_limit()
    started = time.monotonic()
    try:
        tools.program("load")
        tools.program("probe")
    except tools.Unavailable as missing:
        note(f"bench cannot run: {missing}")
        return 1
    # Installed before the first measurement; what stays missing is said by the rows that need it.
    for get in (tools.wrk, tools.node) if options.what == "run" else (tools.wrk,):
        with contextlib.suppress(tools.Unavailable):
            get()
    with tools.work_folder() as folder:
        run = compare.Run(Path(folder), options.ours_cmd, options.rounds, options.seconds)
        run.sample_limits()
        if options.what == "run":
            rows, heads, method = compare.measure_all(run, only), compare.HEADS, compare.METHOD
        else:
            rows, heads, method = growth.measure_all(run, only), growth.HEADS, growth.METHOD
        run.sample_limits()
    took_s = time.monotonic() - started
    name = "latest" if options.what == "run" else "growth"
    good = table.publish(
        name,
        rows,
        heads,
        run.limits(),
        took_s=took_s,
        method=method,
        disturbed=run.disturbed(),
    )
    return 0 if good or not options.strict else 1


if __name__ == "__main__":
    sys.exit(main())
