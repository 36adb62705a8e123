"""Processor time of this program, of every process that it started, and of servers: unlike the time
of a clock it says the same on a machine that others use."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(*roots: int) -> float:
    """Seconds that these processes and their descendants have used, with those that have ended."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        number = int(folder.name)
        parents.setdefault(int(fields[1]), []).append(number)
        ticks[number] = sum(map(int, fields[11:15]))
    total, pending = 0, list(dict.fromkeys(roots))
    while pending:
        number = pending.pop()
        total += ticks.pop(number, 0)
        pending += parents.get(number, [])
    return total / _TICKS_PER_S
