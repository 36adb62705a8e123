"""The protocol's official suite against a node that owns the streams, and one that owns nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cluster.workload import Cluster, until
from tests.conformance.suite import run_suite
from tests.conformance.test_server_conformance import LONG_POLL_TIMEOUT_S, TESTS
from tests.helpers.postgres import needs_postgres, running_trio


@needs_postgres
@pytest.mark.soak
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("owns", [True, False], ids=["owner", "standby"])
def test_official_suite_passes_on_every_node(tmp_path: Path, owns: bool) -> None:
    with running_trio() as trio, ExitStack() as stack:
        cluster = Cluster(
            stack,
            trio.dsn,
            *("--long-poll-timeout", str(LONG_POLL_TIMEOUT_S)),
            *("--development", "--cors-origin", "*"),
            *("--active-streams-max", "20"),  # most streams are fetched again and again
        )
        node = cluster.add()
        assert cluster.owner() is node
        if not owns:
            node = cluster.add()
            until(lambda: httpx.get(f"{node.url}/readyz").is_success, "it knows the owner")
            assert cluster.owner() is not node
        report = run_suite(node.url, tmp_path)
    assert not report.failed, report.summary
    assert not report.skipped, report.summary
    assert len(report.passed) == TESTS, report.summary
