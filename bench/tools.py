"""What the benchmark needs on the machine: wrk, the compiled C programs, the reference server.

Missing parts are installed where that is allowed; otherwise `Unavailable` says what to do.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
BUILD = HERE / "build"
INSTALL_SECONDS_MAX = 300
DISTURBED_SHARE = 0.05
"""Of the processors, used by other programs: figures from above that are not for publication."""


class Unavailable(Exception):
    """Something that a measurement needs is missing; the message says how to get it."""


def _run(command: list[str], *, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout)[-800:]}")


def wrk() -> Path:
    """The load generator for appends and small reads."""
    found = shutil.which("wrk")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _run(["apt-get", "install", "-y", "--no-install-recommends", "wrk"], cwd=HERE)
        found = shutil.which("wrk")
    if found is None:
        raise Unavailable("wrk is missing: install it first (Debian: apt-get install wrk)")
    return Path(found)


def program(name: str) -> Path:
    """`load` or `probe`, compiled from its C file when that is newer."""
    source, binary = HERE / f"{name}.c", BUILD / name
    if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unavailable("a C compiler is missing (Debian: apt-get install gcc libc6-dev)")
    BUILD.mkdir(exist_ok=True)
    _run([compiler, "-O2", "-Wall", "-o", str(binary), str(source)], cwd=HERE)
    return binary


def node() -> Path:
    """Node, with the reference server installed from the lock file."""
    found = shutil.which("node")
    if found is None:
        raise Unavailable("Node 18 or newer is missing: the reference server runs on it")
    if not (HERE / "node_modules" / "@durable-streams" / "server").exists():
        _run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE)
    return Path(found)


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for data, on the project's own disk (a RAM disk would flatter every sync)."""
    BUILD.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=BUILD, prefix="data-", ignore_cleanup_errors=True)


def raise_file_limit() -> int:
    """As many open files as the system lets this process and its children have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _processor_ticks() -> tuple[int, int]:
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def busy_share(seconds: float = 0.5) -> float:
    """Share of all processor time that is in use, from 0 to 1."""
    total, idle = _processor_ticks()
    time.sleep(seconds)
    total_later, idle_later = _processor_ticks()
    passed = max(1, total_later - total)
    return 1 - (idle_later - idle) / passed
