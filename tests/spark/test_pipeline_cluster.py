"""A pipeline on a cluster: nothing but the master's URL changes. A driver is killed, another one
repeats its batch on the cluster, and Delta's own engine reads the same tables.

In `make soak` the cluster is a standalone one, with a master and workers as processes. Otherwise
one driver is its own master (`local-cluster`), with executors that are processes all the same, and
forgets its last batch instead of being killed: six Javas less. It runs nothing but the pipeline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from penstock import Client
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.sessions.launchers import unzipped_python
from penstock.state.events import delete, reset, upsert
from tests.helpers.java_classes import java_options
from tests.helpers.server import ROOT, running_server
from tests.spark.checking import CITIES, check_cities, check_warehouse, replay_of
from tests.spark.clients import close_clients
from tests.spark.cluster import standalone_cluster
from tests.spark.delta_jar import delta_jars
from tests.spark.drivers import POINTS, pipeline_process, wait_for
from tests.spark.replay import Replay

pytestmark = pytest.mark.xdist_group("spark-apart")  # with no use for the shared session

JOB_TIMEOUT_S = 800.0
EVENTS = 400
STANDALONE = pytest.mark.parametrize(
    "ran", [pytest.param("standalone", marks=pytest.mark.soak)], indirect=True
)
IN_ONE_PROCESS = "local-cluster[2,1,768]"  # workers, cores and MB of each


def settings(url: str) -> str:
    # Small partitions, all of it read and folded in tasks: both workers have something to do.
    return f"""
[source]
url = "{url}"
streams = ["shop/*"]
max_messages = 300
min_partitions = 2
[warehouse]
path = "warehouse"
[pipeline]
interval_s = 0
driver_messages = 0
driver_rows = 0
[pipeline.spark]
"spark.executor.memory" = "512m"
"spark.cores.max" = "2"
"spark.scheduler.minRegisteredResourcesRatio" = "1"
"spark.pyspark.python" = "{unzipped_python()}"
"spark.executor.extraJavaOptions" = "{java_options()}"
"spark.sql.shuffle.partitions" = "2"
"spark.databricks.delta.snapshotPartitions" = "1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
[types.user]
schema = "name STRING NOT NULL, city STRING"
[publish.cities]
sql = "{CITIES}"
to = "derived/cities"
chunk = 3
"""


class Ran(NamedTuple):
    """A cluster's work, while its server is still there."""

    pipeline: Pipeline
    client: Client
    replay: Replay
    report: dict[str, Any]


@pytest.fixture(
    scope="module", params=["short", pytest.param("standalone", marks=pytest.mark.soak)]
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One cluster for all tests here. Of two drivers of a standalone one the first is killed in the
    middle of a batch, after its results were committed to the outbox."""
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "pipeline.toml"
    jars = delta_jars() if request.param == "standalone" else ""
    with running_server() as server, Client(server.url) as client:
        file.write_text(settings(server.url))
        _fill(client)
        with ExitStack() as stack:
            master = IN_ONE_PROCESS
            if request.param == "standalone":
                master = stack.enter_context(standalone_cluster())
                with pipeline_process(file, "--master", master) as process:
                    found = wait_for(process, folder / "warehouse", POINTS["outbox"], 2)
                assert found, process.text
            pipeline = load_pipeline(file)
            replay = replay_of(pipeline)
            words = [master, str(file), str(folder / "report.json")]
            if request.param == "standalone" and not isinstance(jars, str):
                words += map(str, jars)
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.cluster_job", *words],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
                timeout=JOB_TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        report = json.loads((folder / "report.json").read_text())
        yield Ran(pipeline, client, replay, report)
        close_clients()


def _fill(client: Client) -> None:
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


def test_a_pipeline_on_a_cluster_comes_to_what_a_replay_does(ran: Ran) -> None:
    assert ran.report["executors"] == 2
    assert len(ran.replay.dead) == 2
    check_warehouse(ran.pipeline, ran.replay)


def test_a_batch_that_is_repeated_on_a_cluster_is_published_once(ran: Ran) -> None:
    check_cities(ran.pipeline, ran.client, ran.replay)


@STANDALONE
def test_only_sorted_rows_have_the_same_order_in_a_repeated_batch(ran: Ran) -> None:
    """The limit of the plain sink: after a shuffle on a cluster the order is whatever it is."""
    report = ran.report["orders"]
    wanted = sorted(f"{stream}:{n}" for stream in ("shop/one", "shop/two") for n in range(202))
    for run in report["shuffled"] + report["ordered"]:
        assert sorted(row for part in run for row in part) == wanted
    for run in report["shuffled"]:
        assert [set(part) for part in run] == [set(part) for part in report["shuffled"][0]]
    assert all(run == report["ordered"][0] for run in report["ordered"])


@STANDALONE
def test_the_plain_sink_stores_a_repeated_batch_once_if_it_is_sorted(ran: Ran) -> None:
    found = ran.client.stream("derived/sink").read().messages
    assert sorted((row["from"], row["seq"]) for row in found) == sorted(
        (stream, n) for stream in ("shop/one", "shop/two") for n in range(202)
    )


@STANDALONE
def test_deltas_own_engine_reads_the_tables(ran: Ran) -> None:
    jars = delta_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    report = ran.report["delta"]
    assert report["protocol"] == [1, 2], "every engine reads them"
    assert report["events"] == sorted(map(list, ran.replay.events), key=str)
    assert report["state"] == sorted(map(list, ran.replay.state_rows("user")))


@STANDALONE
def test_deltas_own_engine_is_noticed_when_it_writes(ran: Ran) -> None:
    jars = delta_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    assert "was changed by another engine" in ran.report["refused"]
    assert "DELETE by Apache-Spark" in ran.report["refused"]
