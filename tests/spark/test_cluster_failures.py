"""A standalone cluster of three workers: an executor is killed in the middle of a run, executors
come and go (dynamic allocation), and what Spark does not allow is refused by Spark itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from penstock import Client
from penstock.spark.config import load_pipeline
from penstock.spark.sessions.launchers import provide_java, unzipped_python
from penstock.state.events import delete, upsert
from tests.helpers.java_classes import java_options
from tests.helpers.server import running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.clients import close_clients
from tests.spark.cluster import standalone_cluster
from tests.spark.drivers import POINTS, pipeline_process, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("spark-apart")]

EVENTS = 3000
TIMEOUT_S = 420
SETTINGS = """
[source]
url = "{url}"
streams = ["shop/*"]
max_messages = 150
min_partitions = 6
[warehouse]
path = "warehouse"
[pipeline]
interval_s = 0
driver_messages = 0
driver_rows = 0
[pipeline.spark]
"spark.executor.memory" = "512m"
"spark.executor.cores" = "1"
"spark.dynamicAllocation.enabled" = "true"
"spark.dynamicAllocation.minExecutors" = "1"
"spark.dynamicAllocation.maxExecutors" = "3"
"spark.dynamicAllocation.executorIdleTimeout" = "5s"
"spark.pyspark.python" = "{python}"
"spark.executor.extraJavaOptions" = "{java}"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
[types.user]
schema = "name STRING NOT NULL, city STRING"
[publish.cities]
sql = "{sql}"
to = "derived/cities"
"""


def parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def executors() -> list[int]:
    """The executors of workers that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it may have ended meanwhile
            if b"CoarseGrainedExecutorBackend" not in (folder / "cmdline").read_bytes():
                continue
            process = ancestor = int(folder.name)
            while ancestor not in (0, 1, os.getpid()):
                ancestor = parent(ancestor)
            if ancestor == os.getpid():
                found.append(process)
    return found


def fill(client: Client) -> None:
    for name in ("shop/one", "shop/two"):
        stream = client.stream(name)
        stream.create()
        stream.append_many(
            [
                delete("user", f"u{number % 90}")
                if number % 11 == 0
                else upsert("user", f"u{number % 90}", {"name": "n", "city": f"c{number % 7}"})
                for number in range(EVENTS // 2)
            ]
        )


def test_a_killed_executor_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    with running_server() as server, Client(server.url) as client:
        values = {"url": server.url, "python": unzipped_python(), "java": java_options()}
        file.write_text(SETTINGS.format(sql=CITIES, **values))
        fill(client)
        with standalone_cluster(3) as master:
            with pipeline_process(file, "--once", "--master", master) as driver:
                for commits in (4, 9):  # among twenty batches
                    pattern = POINTS["events"]
                    assert wait_for(driver, tmp_path / "warehouse", pattern, commits), driver.text
                    victims = executors()
                    assert victims
                    os.kill(victims[0], signal.SIGKILL)
                code = driver.process.wait(TIMEOUT_S)
            assert code == 0, driver.text
            refused = submit_in_cluster_mode(master, tmp_path)
        assert "Cluster deploy mode is currently not supported for python applications" in refused
        pipeline = load_pipeline(file)
        replay = check_warehouse(pipeline)
        assert len(replay.events) == EVENTS
        check_cities(pipeline, client, replay)
        close_clients()


def submit_in_cluster_mode(master: str, folder: Path) -> str:
    """What Spark says of a Python driver that should run on a worker."""
    script = folder / "driver.py"
    script.write_text("")
    home = Path(pyspark.__file__).parent
    words = ["--master", master, "--deploy-mode", "cluster", str(script)]
    done = subprocess.run(
        [str(home / "bin" / "spark-submit"), *words],
        env={**os.environ, "JAVA_HOME": provide_java(), "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr
