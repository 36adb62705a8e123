"""Drivers of pipelines as processes of their own, and the points of a batch to kill them at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.server import ROOT

POINT_TIMEOUT_S = 240.0
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])  # the code beside these tests
# What a batch leaves behind, in this order: planned, events committed, state folded, results
# written and committed to the outbox (and after that sent), known as done by Spark.
POINTS = {
    "planned": "_checkpoint/offsets/[0-9]*",
    "events": "events/_delta_log/*.json",
    "state": "state/user/_delta_log/*.json",
    "results": "outbox/*.parquet",
    "outbox": "outbox/_delta_log/*.json",
    "done": "_checkpoint/commits/[0-9]*",
}


class Driver:
    """A `penstock pipeline run`; `text` is all that it said, once it is gone."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""

    def kill(self) -> None:
        """It, its Java and its workers, at once: they are a group of their own."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def kill_java(self) -> int:
        """Only that, as a system does that is out of memory; the exit code of the rest."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may have ended meanwhile
                if os.getpgid(int(folder.name)) != self.process.pid:
                    continue
                if (folder / "comm").read_text().strip() == "java":
                    os.kill(int(folder.name), signal.SIGKILL)
        return self.process.wait(POINT_TIMEOUT_S)


@contextmanager
def pipeline_process(file: Path, *arguments: str) -> Iterator[Driver]:
    """A pipeline that is gone in the end, with all that it has started."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "pipeline", "run", str(file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            cwd=file.parent,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        driver = Driver(process)
        try:
            yield driver
        finally:
            driver.kill()
            log.seek(0)
            driver.text = log.read()


def wait_for(driver: Driver, folder: Path, pattern: str, count: int) -> bool:
    """Until so many files are there; false if the pipeline has ended by itself."""
    nothing = threading.Event()
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while len(list(folder.glob(pattern))) < count:
        if driver.process.poll() is not None:
            return False
        assert time.monotonic() < deadline, f"no {pattern}"
        nothing.wait(0.002)
    return True
