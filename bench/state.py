"""The state benchmark: `python -m bench.state`, one run and one table.

Decoding and applying events beside the npm package in Node; a live state on SQLite beside a bare
loop; a bootstrap from `/v1/state` beside a replay of the log; and how each of them grows.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from pathlib import Path

from bench import arguments, state_apply, state_events, state_growth, state_live, table, tools
from bench.rounds import note
from bench.table import Row

HEADS = ("metric", "ours", "reference", "ratio", "target", "met")
METHOD = (
    "Events of about 200 bytes; all keys are inserted, then changed at random, a tenth deleted and "
    "set again. Rounds alternate, medians are compared. Replay and bootstrap go over HTTP on "
    "loopback, from an empty live state to up to date."
)
GROUPS = ("apply", "sqlite", "bootstrap", "growth")
SMALL, MIDDLE, LARGE = (100_000, 10_000), (1_000_000, 100_000), (1_000_000, 1_000_000)


def measure_all(
    folder: Path, rounds: int, groups: list[str], scale: int, busy: list[float]
) -> list[Row]:
    """All rows; between the groups the share of the processors that others use is taken."""
    small, middle, large = (
        (events // scale, keys // scale) for events, keys in (SMALL, MIDDLE, LARGE)
    )
    rows: list[Row] = []

    def begin(group: str) -> bool:
        busy.append(tools.busy_share())
        if group in groups:
            note(f"  {group}")
        return group in groups

    if begin("apply"):
        for size in (middle, small):
            rows += state_apply.measure(folder, rounds, *size)
    sizes = [small, middle, *([large] if "growth" in groups else [])]
    with state_events.serving(folder, sizes if groups != ["apply"] else []) as filled:
        if begin("sqlite"):
            for each, target in ((filled[1], True), (filled[0], False)):
                rows += state_live.sqlite_rows(each, folder, rounds, target=target)
        if begin("bootstrap"):
            for each, target in ((filled[1], True), (filled[0], False)):
                rows += state_live.bootstrap_rows(each, folder, rounds, target=target)
        if begin("growth"):
            rows += state_growth.bootstrap_rows(filled, folder, rounds)
            rows += state_growth.past_rows(filled, rounds)
            rows += state_growth.lookup_rows(filled, rounds)
            rows += state_growth.index_rows(filled)
        busy.append(tools.busy_share())
    return rows


def main() -> int:
    options = arguments.parse("bench.state", __doc__, GROUPS, rounds=5)
    # Turned into an exception, so that servers are stopped and data folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    groups = [name for name in options.only.split(",") if name] or list(GROUPS)
    started = time.monotonic()
    busy: list[float] = []
    try:
        tools.node()
    except tools.Unavailable as missing:
        note(f"bench cannot run: {missing}")
        return 1
    with tools.work_folder() as folder:
        rounds, scale = (1, 10) if options.quick else (options.rounds, 1)
        rows = measure_all(Path(folder), rounds, groups, scale, busy)
    share = statistics.median(busy)
    good = table.publish(
        "state",
        rows,
        HEADS,
        {"processor time taken by other programs": f"{share:.0%} (at most {max(busy):.0%})"},
        took_s=time.monotonic() - started,
        method=METHOD,
        disturbed=share > tools.DISTURBED_SHARE,
    )
    return 0 if good or not options.strict else 1


if __name__ == "__main__":
    sys.exit(main())
