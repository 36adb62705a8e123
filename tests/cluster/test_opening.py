"""Shards that are opened at the start of a node: those that wait for another one leave room for
it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from penstock.config.settings import Settings
from penstock.http.native.cluster import HANDOVERS
from penstock.log.cluster import schema
from penstock.log.cluster.database import Database
from tests.cluster.workload import Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)

SHARDS = 2 * HANDOVERS
# It lives, by its beat, and is about to leave: nothing is assigned to it, and what it owns is not
# free. It is of another primary, so that nobody looks for its session.
GHOST = """INSERT INTO penstock.node VALUES ('ghost', 'x', 'http://127.0.0.1:9', 'x',
clock_timestamp() + interval '1 hour', 0, NULL, 'epoch', '127.0.0.1:9', true)"""


async def make_tables(dsn: str) -> None:
    session = await Database(Settings(cluster=dsn, cluster_durability="single")).open()
    try:
        await schema.prepare(session, "penstock", SHARDS)
    finally:
        session.abort()
        await asyncio.sleep(0)  # its transport is closed in the next turn


def test_shards_that_wait_for_the_first_one_leave_room_to_open_it() -> None:
    """Each waits for the credentials that the first one has. When that becomes free after more of
    them than are opened at a time, it still has to be opened here."""
    dsn = shared().fresh_database()
    name = dsn.rpartition("/")[2]
    args = ("--cluster-durability", "single", "--token", "sesame")
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *args, shards=SHARDS)
        asyncio.run(make_tables(dsn))
        shared().query(GHOST, name)
        shared().query("UPDATE penstock.shard SET node = 'ghost' WHERE shard = 0", name)
        node = cluster.add()
        claimed = "SELECT count(*) FROM penstock.shard WHERE node = 'node-0'"
        until(lambda: int(shared().query(claimed, name)[0]) >= HANDOVERS, "the others are claimed")
        shared().query("UPDATE penstock.shard SET node = NULL WHERE shard = 0", name)
        cluster.settle()
        headers = {"authorization": "Bearer sesame"}
        answer = cluster.client.get(f"{node.url}/v1/streams", headers=headers)
        assert answer.status_code == 200, answer.text
