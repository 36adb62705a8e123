"""What the benchmark needs on the machine: wrk, compiled C programs, the servers to compare with.

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
# One crate after the other with link-time optimisation; longer on a busy machine.
CARGO_SECONDS_MAX = 1_800
RUST_VERSION = "0.1.5"
DISTURBED_SHARE = 0.05
"""Of the processors, used by other programs: figures from above that are not for publication."""


class Unavailable(Exception):
    """Something that a measurement needs is missing; the message says how to get it."""


def _run(command: list[str], *, cwd: Path, seconds_max: float = INSTALL_SECONDS_MAX) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=seconds_max, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(command)}` took over {seconds_max:.0f} s") from None
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


def _cargo() -> str:
    at_home = Path.home() / ".cargo" / "bin" / "cargo"
    found = shutil.which("cargo") or (str(at_home) if at_home.exists() else None)
    if found is None:
        raise Unavailable(
            "cargo 1.75 or newer is missing: it builds the crate "
            f"durable-streams {RUST_VERSION} to compare with"
        )
    return found


_rust_failure: list[Unavailable] = []
"""Why the crate cannot be had, so that only the first measurement tries to build it."""


def rust() -> Path:
    """The server of the crate durable-streams, built once with the versions of its lock file."""
    root = BUILD / f"durable-streams-{RUST_VERSION}"
    binary = root / "bin" / "durable-streams-server"
    if binary.exists():
        return binary
    if _rust_failure:
        raise _rust_failure[0]
    BUILD.mkdir(exist_ok=True)
    try:
        command = [_cargo(), "install", "--quiet", "--locked", "--root", str(root)]
        command += ["--version", RUST_VERSION, "durable-streams"]
        _run(command, cwd=BUILD, seconds_max=CARGO_SECONDS_MAX)
    except Unavailable as failure:
        _rust_failure.append(failure)
        raise
    return binary


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
