"""One Spark session and one server for all tests of the Spark side that need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Client
from tests.helpers.server import Server, running_server
from tests.spark.clients import close_clients
from tests.spark.pipelines import Make, maker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Spark run in one process, so that it is started once."""
    for item in items:
        if "/tests/spark/" not in item.path.as_posix():
            continue  # this hook sees the tests of all folders
        item.add_marker(pytest.mark.spark)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    import penstock.spark

    session = penstock.spark.session(
        "tests",
        master="local[2,2]",  # a task that fails is run once more, as on a cluster
        memory="2g",  # a message of 100 MB takes several times that
        config={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server(args=["--chunk-size", "64k"]) as running:
        yield running


@pytest.fixture
def home(request: pytest.FixtureRequest) -> str:
    """A folder of streams that is this test's own."""
    return str(request.node.name).partition("[")[0]


@pytest.fixture
def make(server: Server, tmp_path: Path, home: str) -> Make:
    """Makes pipelines over the streams of this test."""
    return maker(server.url, tmp_path, home)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
