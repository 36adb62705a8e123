"""The same pipeline on a real standalone cluster: nothing but the master's URL is different."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Client
from penstock.spark.pipeline_config import load_pipeline
from penstock.spark.server import close_clients
from penstock.state.events import delete, reset, upsert
from tests.helpers.server import ROOT, running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.cluster import standalone_cluster

RUN_TIMEOUT_S = 170.0
EVENTS = 400


def settings(url: str) -> str:
    # Small partitions, all of it read and folded in tasks: both workers have something to do.
    return f"""
[source]
url = "{url}"
streams = ["shop/*"]
max_messages = 300
min_partitions = 4
[warehouse]
path = "warehouse"
[pipeline]
driver_messages = 0
driver_rows = 0
[pipeline.spark]
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
[types.user]
schema = "name STRING NOT NULL, city STRING"
[publish.cities]
sql = "{CITIES}"
to = "derived/cities"
chunk = 3
"""


@pytest.mark.xdist_group("spark")
def test_a_pipeline_on_a_cluster_comes_to_what_a_replay_does(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    with running_server() as server, standalone_cluster() as master:
        file.write_text(settings(server.url))
        with Client(server.url) as client:
            for name in ("shop/one", "shop/two"):
                stream = client.stream(name)
                stream.create()
                stream.append_many(
                    [
                        upsert("user", f"u{number % 30}", {"name": "n", "city": f"c{number % 7}"})
                        for number in range(EVENTS // 2)
                    ]
                    + [reset() if name == "shop/one" else delete("user", "u3")]
                    + [upsert("user", "u1", {"city": "nameless"})]
                )
            arguments = ["pipeline", "run", str(file), "--once", "--master", master]
            done = subprocess.run(
                [sys.executable, "-m", "penstock.cli", *arguments],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            pipeline = load_pipeline(file)
            replay = check_warehouse(pipeline)
            assert len(replay.dead) == 2
            check_cities(pipeline, client, replay)
    close_clients()
