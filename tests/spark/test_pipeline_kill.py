"""A pipeline's driver, with its Java and its workers, killed at random points of a batch: what is
kept and published in the end is what a replay of the log comes to, row for row.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Client
from penstock.spark.pipeline import PipelineRun
from penstock.spark.pipeline_config import load_pipeline
from penstock.spark.server import close_clients
from penstock.state.events import delete, reset, upsert
from tests.helpers.server import ROOT, Server, running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINT_TIMEOUT_S = 150.0
# What a batch leaves behind, in this order: planned, events committed, state folded, results
# committed to the outbox (and after that sent), known as done by Spark.
POINTS = {
    "planned": "_checkpoint/offsets/[0-9]*",
    "events": "events/_delta_log/*.json",
    "state": "state/user/_delta_log/*.json",
    "outbox": "outbox/_delta_log/*.json",
    "done": "_checkpoint/commits/[0-9]*",
}


def settings(url: str) -> str:
    return f"""
[source]
url = "{url}"
streams = ["shop/*"]
max_messages = 20
[warehouse]
path = "warehouse"
[pipeline]
interval_s = 0
[pipeline.spark]
"spark.sql.shuffle.partitions" = "1"
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
[types.user]
schema = "name STRING NOT NULL, city STRING"
[publish.cities]
sql = "{CITIES}"
to = "derived/cities"
chunk = 2
"""


@contextmanager
def pipeline_process(file: Path) -> Iterator[subprocess.Popen[str]]:
    """`penstock pipeline run`, in a group of its own that is gone in the end."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "pipeline", "run", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            cwd=file.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _kill(process)
            log.seek(0)
            process.text = log.read()  # type: ignore[attr-defined]


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait_for(process: subprocess.Popen[str], folder: Path, pattern: str, count: int) -> bool:
    """Until so many files are there; false if the pipeline has ended by itself."""
    nothing = threading.Event()
    deadline = time.monotonic() + POINT_TIMEOUT_S
    while len(list(folder.glob(pattern))) < count:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, f"no {pattern}"
        nothing.wait(0.002)
    return True


def messages(chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        key, city = f"u{chance.randrange(12)}", f"c{chance.randrange(4)}"
        event: Any = upsert("user", key, {"name": "n", "city": city})
        kind = chance.random()
        if kind < 0.15:
            event = delete("user", key)
        elif kind < 0.17:
            event = reset()
        elif kind < 0.25:
            event = upsert("flag", key, chance.random() < 0.5)
        found = json.loads(event.to_json())
        if kind > 0.95:
            found["value"] = {"city": 7}
        elif kind > 0.92:
            found = {"no": "event"}
        yield found


def kill_and_check(
    folder: Path, spark: SparkSession, *, kills: int, seed: int, server_kills: bool = False
) -> None:
    chance = random.Random(seed)
    warehouse = folder / "warehouse"
    with running_server(data_dir=folder / "data") as server:
        file = folder / "pipeline.toml"
        file.write_text(settings(server.url))
        for _ in range(kills):
            _append(server, chance, 40)
            point = chance.choice(list(POINTS))
            there = len(list(warehouse.glob(POINTS[point])))
            with pipeline_process(file) as process:
                more = chance.randrange(1, 3)
                alive = wait_for(process, warehouse, POINTS[point], there + more)
            assert alive, process.text  # type: ignore[attr-defined]
        port = server.port
        if server_kills:
            server.kill()
    again = ["--port", str(port)] if server_kills else []
    with running_server(data_dir=folder / "data", args=again) as server:
        file.write_text(settings(server.url))
        pipeline = load_pipeline(file)
        PipelineRun(pipeline, spark).run(once=True)
        with Client(server.url) as client:
            check_cities(pipeline, client, check_warehouse(pipeline))
        close_clients()


def _append(server: Server, chance: random.Random, count: int) -> None:
    with Client(server.url) as client:
        for name in ("shop/one", "shop/two"):
            stream = client.stream(name)
            stream.ensure()
            stream.append_many(list(messages(chance, count // 2)))


@pytest.mark.parametrize("number", range(3))
def test_a_driver_killed_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    seed = int.from_bytes(os.urandom(2), "big")
    print(f"seed {seed}")  # noqa: T201 - to do it again if it fails
    kill_and_check(tmp_path, spark, kills=1, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_drivers_killed_twenty_times_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    kill_and_check(tmp_path, spark, kills=6, seed=seed, server_kills=True)
