"""A pipeline's driver, with its Java and its workers, killed at random points of a batch: what is
kept and published in the end is what a replay of the log comes to, row for row.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Client
from penstock.spark.config import load_pipeline
from penstock.spark.pipeline.run import PipelineRun
from penstock.state.events import delete, reset, upsert
from tests.helpers.server import Server, running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.clients import close_clients
from tests.spark.drivers import POINTS, Driver, pipeline_process, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
outbox_files = 2
[pipeline.spark]
"spark.sql.shuffle.partitions" = "1"
[types.user]
schema = "name STRING NOT NULL, city STRING"
[publish.cities]
sql = "{CITIES}"
to = "derived/cities"
chunk = 2
"""


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


def kill_and_check(folder: Path, spark: SparkSession, *, kills: int, seed: int) -> None:
    """Kill drivers, of every third one only its Java, and in half of the cases the server, too."""
    chance = random.Random(seed)
    file = folder / "pipeline.toml"
    with ExitStack() as servers:
        server = servers.enter_context(running_server(data_dir=folder / "data"))
        again = ["--port", str(server.port)]
        file.write_text(settings(server.url))
        for number in range(kills):
            _append(server, chance, 40)
            server_too = chance.random() < 0.5
            java_alone = (seed + number) % 3 == 0
            with pipeline_process(file) as driver:
                _reach(driver, folder / "warehouse", chance)
                if server_too:
                    # While the driver works, which has to wait for it; then the driver, too.
                    server.kill()
                    server = servers.enter_context(
                        running_server(data_dir=folder / "data", args=again)
                    )
                    _append(server, chance, 40)
                    _reach(driver, folder / "warehouse", chance)
                if java_alone:
                    assert driver.kill_java() == 1
            strange = _strange(driver.text, file)
            assert len(strange) == java_alone, driver.text
            assert all("Spark's Java process is gone" in line for line in strange), strange
        server.kill()
        servers.enter_context(running_server(data_dir=folder / "data", args=again))
        pipeline = load_pipeline(file)
        PipelineRun(pipeline, spark).run(once=True)
        with Client(server.url) as client:
            check_cities(pipeline, client, check_warehouse(pipeline))
        close_clients()


def _reach(driver: Driver, warehouse: Path, chance: random.Random) -> None:
    """Wait for a random point of one of the next batches."""
    point = chance.choice(list(POINTS.values()))
    there = len(list(warehouse.glob(point)))
    assert wait_for(driver, warehouse, point, there + chance.randrange(1, 3)), driver.text


def _strange(text: str, file: Path) -> list[str]:
    """Lines that a driver printed and that are not ours: Spark and Java are to be silent."""
    return [line for line in text.splitlines() if not line.startswith(str(file))]


def _append(server: Server, chance: random.Random, count: int) -> None:
    with Client(server.url) as client:
        for name in ("shop/one", "shop/two"):
            stream = client.stream(name)
            stream.ensure()
            stream.append_many(list(messages(chance, count // 2)))


def test_a_killed_driver_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(2), "big")
    print(f"seed {seed}")  # noqa: T201 - to do it again if it fails
    kill_and_check(tmp_path, spark, kills=1, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_drivers_killed_twenty_four_times_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    kill_and_check(tmp_path, spark, kills=6, seed=seed)
