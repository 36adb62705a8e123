"""How long `penstock pipeline run` takes to be ready, and `--once` where there is nothing new.

Java is warm: its files are in memory, and its classes in the archive in the user's cache.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.rounds import Sample, interleave, median
from bench.spark_events import SCHEMA, STREAM, fill
from bench.table import Row, compared, seconds
from tests.helpers.server import running_server

READY_S = 6.0
ONCE_S = 8.0
_EVENTS = 1000
_READY = "reading "
_SETTINGS = """
[source]
url = "{url}"
streams = ["{stream}"]
[warehouse]
path = "warehouse"
[types.user]
schema = "{schema}"
"""


def measure(rounds: int) -> list[Row]:
    with running_server() as server, tempfile.TemporaryDirectory() as folder:
        fill(server.url, _EVENTS, _EVENTS)
        file = Path(folder) / "pipeline.toml"
        file.write_text(_SETTINGS.format(url=server.url, stream=STREAM, schema=SCHEMA))
        _once(file)

        def timed(kind: str, _: int) -> Sample:
            return {"s": _once(file) if kind == "once" else _ready(file)}

        found = interleave([("ready", "ready"), ("once", "once")], timed, rounds=rounds)
    words = {
        "ready": "penstock pipeline run, until it reads",
        "once": "penstock pipeline run --once, nothing new",
    }
    bounds = {"ready": READY_S, "once": ONCE_S}
    return [
        compared(
            f"{words[name]}, beside {bounds[name]:.0f} s",
            median(found[name], "s"),
            bounds[name],
            seconds,
            at_most=1.0,
            samples={"ours": found[name]},
            by_round=[each["s"] / bounds[name] for each in found[name]],
        )
        for name in words
    ]


def _started(file: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "pipeline", "run", str(file), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=file.parent,
    )


def _once(file: Path) -> float:
    began = time.perf_counter()
    with _started(file, "--once") as process:
        _, text = process.communicate()
    if process.returncode:
        raise RuntimeError(text)
    return time.perf_counter() - began


def _ready(file: Path) -> float:
    began = time.perf_counter()
    with _started(file) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if _READY in line:
                break
        else:
            raise RuntimeError("the pipeline ended before it was ready")
        took = time.perf_counter() - began
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    return took
