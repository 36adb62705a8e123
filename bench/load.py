"""Runs the load generators (wrk, load.c, probe.c) and returns what they counted."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import tools

# Above the longest the programs allow themselves: set-up, measured window, drain.
EXTRA_SECONDS_MAX = 120.0
COUNT_SECONDS_MAX = 1_800.0


class LoadFailed(Exception):
    """A load generator failed, or saw errors: the round must not count."""


def _children_cpu_s() -> float:
    """Processor time of children that have ended (running servers are not in it)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: list[str], seconds: float) -> dict[str, Any]:
    before = _children_cpu_s()
    started = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds + EXTRA_SECONDS_MAX,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise LoadFailed(f"{' '.join(command)}: {(done.stderr or done.stdout)[-500:]}")
    # What shows that the generator was not the bottleneck: its share of one core.
    share = (_children_cpu_s() - before) / (time.monotonic() - started)
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "generator_cpu": share}


def wrk(
    port: int,
    path: str,
    *,
    seconds: float,
    connections: int,
    method: str = "POST",
    streams: int = 1,
    messages: int = 1,
    paths: Path | None = None,
) -> dict[str, Any]:
    """Closed-loop requests; each connection sends the next one when it is answered. `paths` is a
    file of paths, of which each request takes one at random, instead of `path`."""
    # wrk takes whole seconds only.
    whole = max(1, round(seconds))
    command = [str(tools.wrk()), "-t1", f"-c{connections}", f"-d{whole}s", "--timeout", "30s"]
    command += ["-s", str(tools.HERE / "requests.lua"), f"http://127.0.0.1:{port}{path}"]
    command += ["--", method, path, str(streams), str(messages)]
    result = _run(command if paths is None else [*command, str(paths)], whole)
    if result["refused"] or result["broken"] or not result["requests"]:
        raise LoadFailed(f"{method} {path} on {connections} connections: {result}")
    return {**result, "rate": result["requests"] / result["seconds"]}


def live(
    port: int,
    path: str,
    *,
    seconds: float,
    readers: int,
    appenders: int = 1,
    streams: int = 1,
    rate: int = 0,
) -> dict[str, Any]:
    """SSE readers and appenders together; rate 0 appends as fast as it is answered."""
    numbers = [readers, appenders, streams, rate, seconds]
    command = [str(tools.program("load")), "live", str(port), path, *map(str, numbers)]
    result = _run(command, seconds)
    if result["missing"] or result["closed"]:
        raise LoadFailed(f"readers lost messages or connections: {result}")
    return result


def count(
    port: int, path: str, *, method: str, streams: int, requests: int, connections: int = 64
) -> dict[str, Any]:
    """Exactly `requests` PUTs or POSTs of one message, over path-0, path-1, ... in turn."""
    numbers = [str(number) for number in (streams, requests, connections)]
    command = [str(tools.program("load")), "count", str(port), path, method, *numbers]
    return _run(command, COUNT_SECONDS_MAX)


def read(port: int, path: str, *, seconds: float, connections: int = 1) -> dict[str, Any]:
    """Whole catch-up reads, one after the other on each connection."""
    command = [str(tools.program("probe")), "read", str(port), path, str(seconds)]
    return _run([*command, str(connections)], seconds)


def loopback_bytes_per_s(seconds: float = 0.5) -> float:
    result = _run([str(tools.program("probe")), "loopback", str(seconds)], seconds)
    return float(result["bytes"] / result["seconds"])


def syncs_per_s(folder: Path, seconds: float = 0.5) -> float:
    command = [str(tools.program("probe")), "sync", str(folder / "sync-probe"), str(seconds)]
    result = _run(command, seconds)
    return float(result["syncs"] / result["seconds"])


class Held:
    """Idle SSE readers that are being held open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ready: dict[str, Any] = self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise LoadFailed("the holder of idle readers failed; its message is above")
        result: dict[str, Any] = json.loads(text)
        return result

    def append(self) -> dict[str, Any]:
        """Append one message and wait until every reader has it (or 10 s)."""
        assert self._process.stdin is not None
        self._process.stdin.write("append\n")
        self._process.stdin.flush()
        return self._line()


@contextlib.contextmanager
def held(port: int, path: str, readers: int, *, seconds: float = 240.0) -> Iterator[Held]:
    """`readers` idle SSE readers, open for the length of the block; `seconds` at the most."""
    process = subprocess.Popen(
        [str(tools.program("load")), "hold", str(port), path, str(readers), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Held(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
