"""Starts, watches and stops the servers that are compared; knows nothing of what is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from bench import tools

Kind = Literal["ours", "ours-memory", "reference", "reference-memory", "rust"]
OURS_COMMAND = f"{sys.executable} -m penstock.cli serve"
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
# Longer than any measurement: no reader is cycled while it is being counted.
SSE_SECONDS = 600
POLL_SECONDS = 0.002
_URL = re.compile(rb"(?:serving|listening on) http://127\.0\.0\.1:(\d+)\b.*\n")


class ServerFailed(Exception):
    """A server did not start or did not stay up."""


@dataclasses.dataclass(frozen=True)
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    data: Path
    start_s: float

    def rss_bytes(self) -> int:
        """Memory in use, of its child processes, too."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self._family()]
        return sum(int(status.split("VmRSS:")[1].split()[0]) * 1024 for status in statuses)

    def cpu_s(self) -> float:
        """Processor time used so far: all threads, and child processes, running or ended."""
        ticks = 0
        for pid in self._family():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _family(self) -> list[int]:
        """The process and all its descendants."""
        pids = [self.process.pid]
        for pid in pids:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids.extend(map(int, children.read_text().split()))
        return pids

    def check_alive(self) -> None:
        """Raise what is known of its end, if it has ended by itself."""
        code = self.process.poll()
        if code is not None:
            log = self.data.with_suffix(".log").read_text(errors="replace")
            raise ServerFailed(f"{self.name} ended by itself with code {code}: {log[-600:]}")

    def kill(self) -> None:
        """kill -9: what a crash of the process looks like."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def stop(self) -> float:
        """A clean stop; seconds it took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return time.monotonic() - started


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(kind: Kind, data: Path, ours_command: str) -> list[str]:
    if kind == "rust":
        # It prints the port that it was given, so that 0 would not tell the one it has. `wal` is
        # its durable mode: an append is answered after the fdatasync of its group.
        options = ["--port", str(_free_port()), "--data-dir", str(data), "--durability", "wal"]
        return [str(tools.rust()), *options]
    if kind.startswith("reference"):
        where = [str(data)] if kind == "reference" else []
        return [str(tools.node()), str(tools.HERE / "reference.mjs"), *where]
    store = ["--memory"] if kind == "ours-memory" else ["--data-dir", str(data)]
    options = ["--port", "0", "--sse-timeout", str(SSE_SECONDS)]
    return [*ours_command.split(), *options, *store]


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        over = process.poll() is not None
        if found := _URL.search(log.read_bytes()):
            return int(found[1])
        if over:
            break
        time.sleep(POLL_SECONDS)
    raise ServerFailed(f"the server did not start: {log.read_text(errors='replace')[-1500:]}")


def start(
    kind: Kind,
    data: Path,
    *,
    ours_command: str = OURS_COMMAND,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    name: str | None = None,
) -> Server:
    """Start one server and wait until it says where it serves; its log goes next to its data."""
    data.mkdir(parents=True, exist_ok=True)
    log = data.with_suffix(".log")
    started = time.monotonic()
    # A file, not a pipe: nobody reads it while load is on, and a full pipe would stop the server.
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(kind, data, ours_command), *options],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tools.PROJECT,
            env={**os.environ, **(env or {})},
        )
    try:
        port = _wait_for_port(process, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Server(name or kind, port, process, data, time.monotonic() - started)


@contextlib.contextmanager
def running(
    kinds: Sequence[Kind], folder: Path, *, ours_command: str = OURS_COMMAND
) -> Iterator[list[Server]]:
    """The given servers side by side on fresh data folders, stopped and wiped at the end."""
    up: list[Server] = []
    try:
        up.extend(start(kind, folder / kind, ours_command=ours_command) for kind in kinds)
        yield up
    finally:
        for server in up:
            server.stop()
            shutil.rmtree(server.data, ignore_errors=True)
