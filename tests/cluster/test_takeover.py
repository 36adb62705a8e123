"""Takeovers with real servers: PostgreSQL with two standbys, and node processes that are killed,
frozen and cut off. Nothing acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.cluster.workload import FEW, LATE, QUICK, Cluster, Workload, until
from tests.helpers.postgres import ON_POSTGRES, Trio, running_trio, shared

pytestmark = list(ON_POSTGRES)


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
            _kill_an_owner(cluster, work)
            _freeze_an_owner(cluster, work)
            _pause_the_standbys(trio, work)
            _lose_the_primary(trio, work)
        stored = work.check()
        assert sum(map(len, stored.values())) >= work.total > 100
        for reader in work.readers:
            assert len(reader.seen) > 10, reader


def _kill_an_owner(cluster: Cluster, work: Workload) -> None:
    cluster.owner().kill()
    cluster.add()
    work.goes_on()


def _freeze_an_owner(cluster: Cluster, work: Workload) -> None:
    frozen = cluster.owner()
    os.kill(frozen.pid, signal.SIGSTOP)
    until(lambda: cluster.owner() is not frozen, "another node has taken over")
    work.goes_on(FEW)
    os.kill(frozen.pid, signal.SIGCONT)
    until(lambda: _append(frozen.url, work), "the woken node forwards")
    work.goes_on()


def _restart_all(cluster: Cluster, work: Workload) -> None:
    """Restart every node in turn, under load."""
    for node in cluster.running:
        assert node.terminate() == 0, node.stderr
        cluster.add()
        work.goes_on()


def _append(url: str, work: Workload) -> bool:
    """Append by a node that was replaced; return whether it has answered that it is done."""
    body = b"[[%d,%d]]" % (LATE, len(work.late))
    try:
        answer = httpx.post(
            f"{url}/v1/stream/log-0",
            content=body,
            headers={"content-type": "application/json"},
            verify=False,
        )
    except httpx.HTTPError:
        return False  # it was closed with the connections of the former owner
    if answer.status_code == 503:
        assert answer.json()["code"] in ("not-owner", "cluster-unavailable")
        return False
    assert answer.status_code == 204, answer.text
    work.late.append(len(work.late))
    return True


def _pause_the_standbys(trio: Trio, work: Workload) -> None:
    for standby in trio.standbys:
        standby.pause()
    # What a standby had received before it was paused may still be acknowledged.
    settled = work.total
    deadline = time.monotonic() + 20
    while True:
        time.sleep(0.5)
        if work.total == settled:
            break
        settled = work.total
        assert time.monotonic() < deadline, "appends are acknowledged without a standby"
    before = work.total
    time.sleep(0.7)
    assert work.total == before, "an append was acknowledged without a standby"
    for standby in trio.standbys:
        standby.go_on()
    work.goes_on()


def _lose_the_primary(trio: Trio, work: Workload) -> None:
    trio.primary.kill()
    trio.fail_over()
    work.goes_on()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_nothing_acknowledged_is_lost_in_many_faults(trio: Trio, seed: int) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, trio.dsn)
        cluster.start(3)
        with Workload(cluster, writers=6) as work:
            for _ in range(10):
                work.goes_on(100)
                _kill_an_owner(cluster, work)
                _freeze_an_owner(cluster, work)
                _restart_all(cluster, work)
                _pause_the_standbys(trio, work)
            _lose_the_primary(trio, work)
        work.check()


def test_no_request_is_refused_while_nodes_join_and_stop_in_order() -> None:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, "--cluster-durability", "single")
        first = cluster.add()
        cluster.spread()
        with Workload(cluster, writers=2, readers=False) as work:
            work.goes_on()
            second = cluster.add()
            cluster.spread()
            work.goes_on()
            # Clients of the one that stops are gone before: it closes their connections.
            cluster.nodes.remove(first)
            work.goes_on()
            assert first.terminate() == 0
            work.goes_on()
            assert cluster.owner() is second
        work.check()
        assert not work.refused, work.refused
