"""Shards that another node is to have: one that could not be released is not left behind."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from penstock.http.native.cluster import ClusterNode
from penstock.log.cluster.node import assigned
from penstock.protocol.shards import shard_of
from tests.cluster.faults import before
from tests.cluster.workload import Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)

SHARDS = 6
LAST_OF_ALL: Any = object()
REFUSE = "ALTER TABLE penstock.shard ADD CONSTRAINT owned CHECK (node IS NOT NULL)"


def test_a_shard_is_served_until_it_is_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests would wait for all that are handed over before it."""
    withdrawn = []

    async def close(node: ClusterNode, host: Any, **_: Any) -> None:
        withdrawn.append(host)

    async def run() -> None:
        monkeypatch.setattr(ClusterNode, "_close", close)
        node = ClusterNode.__new__(ClusterNode)  # without its sockets and sessions
        node._room = asyncio.Semaphore(0)  # others are handed over
        moving = asyncio.create_task(node._hand_over(LAST_OF_ALL))
        await asyncio.sleep(0)
        assert withdrawn == []
        node._room.release()
        await moving
        assert withdrawn == [LAST_OF_ALL]

    asyncio.run(run())


def test_a_shard_whose_release_failed_is_handed_over_later() -> None:
    """The database says that it belongs to a node that lives, so that nobody else would claim
    it."""
    dsn = shared().fresh_database()
    name = dsn.rpartition("/")[2]

    def owned(by: str) -> dict[int, int]:
        """The shards of a node, with their epochs."""
        statement = f"SELECT shard, epoch FROM penstock.shard WHERE node = '{by}'"
        rows = [row.split("|") for row in shared().query(statement, name)]
        return {int(shard): int(epoch) for shard, epoch in rows}

    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, "--cluster-durability", "single", shards=SHARDS)
        cluster.add()
        cluster.settle()
        before = owned("node-0")
        assert len(before) == SHARDS
        shared().query(REFUSE, name)
        cluster.add()
        moving = {
            shard for shard in range(SHARDS) if assigned(shard, ["node-0", "node-1"]) == "node-1"
        }
        until(
            lambda: all(owned("node-0").get(shard, 0) > before[shard] for shard in moving),
            "what could not be released is served again",
        )
        shared().query("ALTER TABLE penstock.shard DROP CONSTRAINT owned", name)
        until(lambda: owned("node-1").keys() == moving, "it is handed over")
        cluster.spread()


def test_a_node_that_cannot_reach_the_first_shard_leaves_others_to_those_that_can() -> None:
    """Shards learn from the first one who may do what, before they answer anybody."""
    dsn = shared().fresh_database()
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, "--cluster-durability", "single", shards=SHARDS)
        cluster.start(2)
        cluster.spread()
        (first,) = (each["owner"] for each in cluster.shard_rows() if each["shard"] == 0)
        names = [*cluster.names, "node-2"]
        moving = [shard for shard in range(SHARDS) if assigned(shard, names) == "node-2"]
        assert moving
        assert 0 not in moving
        with before(shared(), dsn, first) as proxy:
            proxy.cut()
            cluster.add()
            until(lambda: _leaving(cluster) == ["node-2"], "it has noticed")
            until(
                lambda: all(_is_served(cluster, shard) for shard in moving),
                "the others serve what they had",
            )
            proxy.heal()
            cluster.spread()
        assert _leaving(cluster) == []


def _leaving(cluster: Cluster) -> list[str]:
    return [each["name"] for each in cluster.status()["nodes"] if each["leaving"]]


def _is_served(cluster: Cluster, shard: int) -> bool:
    """Whether a stream of a shard can be created at the node that owns it."""
    path = next(name for name in map(str, range(1000)) if shard_of(name, SHARDS) == shard)
    owner = cluster.names.get(cluster.shard_rows()[shard]["owner"] or "")
    if owner is None:
        return False
    try:
        answer = cluster.client.put(f"{owner.url}/v1/stream/{path}", timeout=1.0)
    except httpx.TimeoutException:
        return False  # a request waits while its shard changes hands
    return answer.status_code in (200, 201)
