"""A pipeline that reads from a cluster of Penstock nodes, and publishes to it, while they die: what
is kept and published is what a replay of the log comes to, row for row."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Client
from penstock.spark.config import Pipeline
from penstock.spark.pipeline.run import PipelineRun
from tests.cluster.workload import Cluster
from tests.helpers.balancer import balancing
from tests.helpers.postgres import needs_postgres, running_postgres
from tests.spark.checking import check_cities, check_warehouse
from tests.spark.clients import close_clients
from tests.spark.pipelines import maker
from tests.spark.test_pipeline_kill import messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = needs_postgres

PATIENCE_S = 120.0


class Following:
    """A run that goes on in a thread, and how many events it has committed."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self.run = PipelineRun(pipeline, spark, on_progress=self._notify)
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        try:
            self.run.run()
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._error = error
            self._notify()

    def _notify(self, _: object = None) -> None:
        with self._changed:
            self._changed.notify_all()

    def reach(self, events: int) -> None:
        """Wait until so many events are committed."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._error is not None or self.run.meter.last.events >= events, PATIENCE_S
            )
        if self._error is not None:
            raise self._error
        assert there, f"{self.run.meter.last.events} of {events} events"

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.run.stop()
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.soak)])
def test_nodes_that_die_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    chance, home = random.Random(kills), "shop"
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        cluster = Cluster(stack, postgres.dsn, "--cluster-durability", "single")
        cluster.add()
        cluster.owner()
        balancer = stack.enter_context(balancing(lambda: cluster.urls))
        client = stack.enter_context(Client(balancer.url))
        streams = [client.stream(f"{home}/{name}") for name in ("one", "two")]
        producers = []
        for stream in streams:
            stream.ensure()
            producers.append(stack.enter_context(stream.producer("shop", auto_claim=True)))
        pipeline = maker(balancer.url, tmp_path, home)(
            source={"max_messages": 40}, pipeline={"interval_s": 0}
        )
        following = Following(pipeline, spark)
        total = 0

        def append(count: int) -> None:
            nonlocal total
            for producer in producers:
                for message in messages(chance, count):
                    producer.append(message)
            total += count * len(producers)

        with following.going_on():
            append(20)
            for number in range(kills):
                cluster.add()
                following.reach(total - chance.randrange(1, 20))  # some batches are to come
                append(20)
                owner = cluster.owner()
                if number % 2:
                    owner.terminate()  # it hands over
                else:
                    owner.kill()
                append(20)
            for producer in producers:
                producer.flush()
            following.reach(total)
        replay = check_warehouse(pipeline)
        assert len(replay.events) == total
        check_cities(pipeline, client, replay)
        assert balancer.connections > kills
        close_clients()
