"""Links of records are followed across the shards of a cluster, through the end of the node that
decides about them and of another one."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from functools import partial

import httpx2

from tests.cluster.workload import QUICK, Cluster, until
from tests.helpers.linked import Hub, Source
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server, running_server

pytestmark = list(ON_POSTGRES)
ARGS = ("--cluster-durability", "single", "--development", *QUICK)
SHARDS = 4


def _hub(cluster: Cluster, stack: ExitStack) -> Hub:
    """Requests go to every node that runs, in turns."""
    turns = itertools.count()

    def client() -> httpx2.Client:
        nodes = cluster.running
        url = nodes[next(turns) % len(nodes)].url
        return stack.enter_context(httpx2.Client(base_url=url, timeout=20))

    return Hub(client)


def _source(stack: ExitStack) -> Source:
    server = stack.enter_context(running_server(args=["--development"], memory=True))
    http = stack.enter_context(httpx2.Client(base_url=server.url, timeout=20))
    return Source(server, http, parts=SHARDS)


def _is_settled(hub: Hub, stays: set[str], after: set[str]) -> bool:
    """Whether what is followed is what is named; what was named all the time never ends."""
    roots = hub.roots()
    assert roots is None or stays <= set(roots), f"{stays - set(roots)} have ended"
    return roots is not None and set(roots) == after


def _owner_of_shard(cluster: Cluster, shard: int) -> Server:
    def owner() -> Server | None:
        node = cluster.names.get(cluster.shard_rows()[shard]["owner"] or "")
        return node if node is not None and node.running else None

    node: Server = until(owner, f"a node owns shard {shard}")
    return node


def test_links_are_true_after_the_end_of_the_node_that_decides_and_of_another() -> None:
    with ExitStack() as stack:
        source = _source(stack)
        cluster = Cluster(stack, shared().fresh_database(), *ARGS, shards=SHARDS)
        cluster.start(2)
        cluster.spread()
        hub = _hub(cluster, stack)
        kept, gone, new = ([source.table(each, "+ k v") for each in range(SHARDS)] for _ in "123")
        # A level deeper, on every shard, are the tables that change.
        middle = [
            source.table(each, f"+ kept @{kept[each - 1]}", f"+ other @{gone[each - 2]}")
            for each in range(SHARDS)
        ]
        roots = ["root-a", "root-b"]
        for root in roots:
            first = source.table(0, *(f"+ {each} @{each}" for each in middle))
            assert hub.follow(root, source.surl(first), links=2).status_code == 201
        stays = {*roots, *map(source.mirror, (*middle, *kept))}
        until(hub.has(*stays, *map(source.mirror, gone)), "all are followed")
        assert hub.links(source.mirror(middle[0]))["followed"] == sorted(
            map(source.mirror, (kept[-1], gone[-2]))
        )
        for victim, after in ((0, new), (1, gone)):
            _owner_of_shard(cluster, victim).kill()
            for each in range(SHARDS):
                source.write(middle[each], f"+ other @{after[each - 2]}")
            cluster.add()
            now = {*stays, *map(source.mirror, after)}
            until(partial(_is_settled, hub, stays, now), f"it is true after the end of {victim}")
        assert hub.unfollow(roots[0]).status_code == 204
        source.write(middle[0], "- other")
        now = {*stays, *map(source.mirror, gone)} - {roots[0], source.mirror(gone[-2])}
        until(partial(_is_settled, hub, stays - {roots[0]}, now), "the other root names all")
        assert hub.unfollow(roots[1]).status_code == 204
        until(hub.has(), "nobody names anything")
