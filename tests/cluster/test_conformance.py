"""The protocol's official suite against a node that owns everything, one that owns nothing, and one
that owns some of the shards."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.workload import Cluster
from tests.conformance.suite import run_suite
from tests.conformance.test_server_conformance import LONG_POLL_TIMEOUT_S, TESTS
from tests.helpers.postgres import needs_postgres, running_trio


@needs_postgres
@pytest.mark.soak
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize(
    ("shards", "nodes"), [(1, 1), (6, 1), (1, 2), (6, 3)], ids=["one", "all", "none", "some"]
)
def test_official_suite_passes_on_every_node(tmp_path: Path, shards: int, nodes: int) -> None:
    with running_trio() as trio, ExitStack() as stack:
        cluster = Cluster(
            stack,
            trio.dsn,
            *("--long-poll-timeout", str(LONG_POLL_TIMEOUT_S)),
            *("--development", "--cors-origin", "*"),
            *("--active-streams-max", "20"),  # most streams are fetched again and again
            shards=shards,
        )
        cluster.start(nodes)
        cluster.spread()
        node = next(each for each in cluster.nodes if nodes == 1 or each is not cluster.owner())
        report = run_suite(node.url, tmp_path)
    assert not report.failed, report.summary
    assert not report.skipped, report.summary
    assert len(report.passed) == TESTS, report.summary
