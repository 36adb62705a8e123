"""The result table: rows, targets, and the files they are written to."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import tools
from bench.rounds import Sample

RESULTS = tools.HERE / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `met` is None where nothing was promised."""

    metric: str
    ours: str
    reference: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    by_round: list[float] = dataclasses.field(default_factory=list)
    samples: dict[str, list[Sample]] = dataclasses.field(default_factory=dict)


def per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def megabytes_per_second(value: float) -> str:
    return f"{value / 1e6:,.0f} MB/s"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


def kilobytes(value: float) -> str:
    return f"{value / 1e3:,.1f} kB"


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs" if value < 10_000 else f"{value / 1e3:,.1f} ms"


def short_time(value_us: float) -> str:
    """Processor time of one operation."""
    return f"{value_us:,.1f} µs" if value_us < 100 else microseconds(value_us)


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def compared(
    metric: str,
    ours: float,
    reference: float,
    shown: Callable[[float], str],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    samples: dict[str, list[Sample]] | None = None,
    by_round: Sequence[float] = (),
) -> Row:
    """A row whose target is a bound on ours / reference."""
    ratio = ours / reference if reference else float("inf")
    target, met = "", None
    if at_least is not None:
        target, met = f"≥ {at_least:g}×", ratio >= at_least
    if at_most is not None:
        target, met = f"≤ {at_most:g}×", ratio <= at_most
    return Row(
        metric=metric,
        ours=shown(ours),
        reference=shown(reference),
        ratio=ratio,
        target=target,
        met=met,
        samples=samples or {},
        by_round=list(by_round),
    )


def failed(metric: str, reason: str) -> Row:
    """A measurement that could not be made: shown, and counted as not met."""
    return Row(metric=metric, ours=f"failed: {reason[:80]}", met=False)


def _cells(row: Row) -> list[str]:
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    ratio = "" if row.ratio is None else f"{row.ratio:,.2f}×"
    if row.by_round:
        ratio += f" ({min(row.by_round):,.2f} to {max(row.by_round):,.2f})"
    return [row.metric, row.ours, row.reference, ratio, row.target, met, _generator_shares(row)]


def _generator_shares(row: Row) -> str:
    """Of one core, as a median, for each server in the order of their names in the samples."""
    shares = [
        statistics.median(sample["generator_cpu"] for sample in samples)
        for samples in row.samples.values()
        if samples and all("generator_cpu" in sample for sample in samples)
    ]
    return " / ".join(f"{share:.0%}" for share in shares)


def markdown(rows: Sequence[Row], heads: Sequence[str]) -> str:
    """The table with as many columns as there are heads."""
    lines = [list(heads), *(_cells(row)[: len(heads)] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    processors = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*: (.*)$", processors, re.MULTILINE)
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "node": node.stdout.strip(),
        "load_average": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _busiest_generator(rows: Sequence[Row]) -> float:
    shares = [
        sample.get("generator_cpu", 0.0)
        for row in rows
        for samples in row.samples.values()
        for sample in samples
    ]
    return max(shares, default=0.0)


def publish(
    name: str,
    rows: Sequence[Row],
    heads: Sequence[str],
    limits: dict[str, str],
    *,
    took_s: float,
    method: str,
    disturbed: bool,
) -> bool:
    """Print the table, write results/<name>.md and .json; true when every target is met."""
    facts = machine()
    lines = [markdown(rows, heads), ""]
    if disturbed:
        lines.append("- **other programs were busy during this run: not for publication**")
    lines += [f"- machine limit, {key}: {value}" for key, value in limits.items()]
    lines += [
        f"- the busiest load generator used {_busiest_generator(rows):.0%} of one core",
        f"- machine: {facts['cores']} cores ({facts['cpu']}), kernel {facts['kernel']}, "
        f"Python {facts['python']}, Node {facts['node']}; load average at the end "
        f"{facts['load_average']:.1f}; {facts['date']}",
        f"- {method} The run took {took_s / 60:.1f} minutes.",
    ]
    missed = [row.metric for row in rows if row.met is False]
    lines.append(f"- not met: {'; '.join(missed)}" if missed else "- every target is met")
    text = "\n".join(lines) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    record = {
        "machine": facts,
        "limits": limits,
        "disturbed": disturbed,
        "rows": [dataclasses.asdict(row) for row in rows],
        "took_s": took_s,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return not missed
