"""A real standalone cluster, from the PySpark wheel: one master and two workers on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from penstock.spark.sessions.launchers import provide_java
from tests.helpers.java_classes import java_options

START_TIMEOUT_S = 120.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_JOINED = "Successfully registered with master"


@contextmanager
def standalone_cluster(workers: int = 2, *, held: bool = False) -> Iterator[str]:
    """The URL of a master whose workers have joined; all of it is gone in the end.

    With `held` each worker has one processor of this machine, as if it were a machine of its own.
    """
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-spark-")))
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = cleanup.enter_context(
            _running(scratch / "master", ["master.Master", *common, "--port", "0"])
        )
        url = _wait(master, _MASTER)
        joined = [
            cleanup.enter_context(
                _running(
                    scratch / f"worker-{number}",
                    [
                        "worker.Worker",
                        *common,
                        "--cores",
                        "1",
                        "--memory",
                        "768m",
                        "--work-dir",
                        str(scratch / f"work-{number}"),
                        url,
                    ],
                    processor=number if held else None,
                )
            )
            for number in range(workers)
        ]
        for log in joined:
            _wait(log, re.compile(f"({_JOINED})"))
        yield url


@contextmanager
def _running(log: Path, arguments: list[str], *, processor: int | None = None) -> Iterator[Path]:
    """One daemon of Spark's, as a process; its log is what it writes to stderr."""
    home = Path(pyspark.__file__).parent
    environ = {
        **os.environ,
        "JAVA_HOME": provide_java(),
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{arguments[0]}",
                *arguments[1:],
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environ,
        )
    if processor is not None:  # its executors inherit that
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {allowed[processor % len(allowed)]})
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(log: Path, pattern: re.Pattern[str]) -> str:
    """What a daemon says when it is ready."""
    nothing = threading.Event()
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = pattern.search(log.read_text(errors="replace"))
        if found:
            return found[1]
        nothing.wait(0.05)
    raise AssertionError(f"it did not start:\n{log.read_text(errors='replace')}")
