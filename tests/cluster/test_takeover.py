"""Takeovers with real servers: PostgreSQL with two standbys, and node processes that are killed,
frozen and cut off. Nothing acknowledged is lost, doubled or reordered.
`test_soak` has an hour of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.faults import (
    freeze_an_owner,
    kill_an_owner,
    lose_the_primary,
    pause_the_standbys,
)
from tests.cluster.workload import QUICK, Cluster, Workload
from tests.helpers.postgres import WITH_FAULTS, Trio, running_trio, shared

pytestmark = list(WITH_FAULTS)


@pytest.fixture
def trio() -> Iterator[Trio]:
    with running_trio() as trio:
        yield trio


def test_nothing_acknowledged_is_lost_through_kills_freezes_and_failover(trio: Trio) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, trio.dsn, *QUICK)
        cluster.start(3)
        with Workload(cluster) as work:
            work.goes_on()
            kill_an_owner(cluster, work)
            freeze_an_owner(cluster, work)
            pause_the_standbys(trio, work)
            lose_the_primary(trio, work)
        stored = work.check()
        assert sum(map(len, stored.values())) >= work.total > 100
        for reader in work.readers:
            assert len(reader.seen) > 10, reader


def test_no_request_is_refused_while_nodes_join_and_stop_in_order() -> None:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, "--cluster-durability", "single")
        first = cluster.add()
        cluster.spread()
        with Workload(cluster, writers=4, readers=False) as work:
            work.goes_on()
            for _ in range(3):
                second = cluster.add()
                cluster.spread()
                work.goes_on()
                # Clients of the one that stops are gone before: it closes their connections.
                cluster.nodes.remove(first)
                work.goes_on()
                assert first.terminate() == 0
                work.goes_on()
                assert cluster.owner() is second
                first = second
        work.check()
        assert not work.refused, work.refused
