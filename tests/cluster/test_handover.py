"""Shards that another node is to have: one that could not be released is not left behind."""

from __future__ import annotations

from contextlib import ExitStack

from penstock.log.cluster.node import assigned
from tests.cluster.workload import Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)

SHARDS = 6
REFUSE = "ALTER TABLE penstock.shard ADD CONSTRAINT owned CHECK (node IS NOT NULL)"


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
