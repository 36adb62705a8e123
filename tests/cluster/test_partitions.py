"""Networks that fail without saying so, between nodes and between a node and PostgreSQL: silent,
slow, deaf in one direction. Nothing acknowledged is lost, doubled or reordered, and no reader is
misled."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from penstock.log.cluster.node import assigned
from penstock.protocol.shards import shard_of
from tests.cluster.faults import NETWORK, before, behind, owned
from tests.cluster.workload import FEW, QUICK, Cluster, Workload, until
from tests.helpers.postgres import WITH_FAULTS, shared
from tests.helpers.server import Server
from tests.helpers.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = list(WITH_FAULTS)

SINGLE = ("--cluster-durability", "single")
SHARDS = 10
"""So many that each of three nodes owns some."""


@pytest.mark.parametrize(
    ("engine", "peers"),
    [
        (["answers lost"], ["requests lost"]),
        pytest.param([*NETWORK], [*NETWORK], marks=pytest.mark.soak),
    ],
    ids=["one each", "all"],
)
def test_nothing_is_lost_and_nobody_misled(engine: list[str], peers: list[str]) -> None:
    """Writers and readers at three nodes, of which one is cut off from PostgreSQL and is replaced,
    and which then do not reach each other."""
    server = shared()
    dsn = server.fresh_database()
    with ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy("127.0.0.1", server.port))
        cluster = Cluster(stack, dsn, *SINGLE, *QUICK, shards=SHARDS)
        (victim,) = cluster.start(1, dsn=behind(proxy, dsn, server))
        cluster.start(2)
        cluster.spread()
        between = [stack.enter_context(before(server, dsn, name)) for name in cluster.names]
        with Workload(cluster, writers=2) as work:
            for name in engine:
                cut_off(cluster, victim, proxy, work, name)
            for number, name in enumerate(peers):
                NETWORK[name](between[number % len(between)])
                work.goes_on(FEW)
                between[number % len(between)].heal()
            work.goes_on(FEW)
        work.check()
        for reader in work.readers:
            assert reader.seen, reader


def cut_off(cluster: Cluster, victim: Server, proxy: TcpProxy, work: Workload, name: str) -> None:
    """Let a network fail between a node that owns something and PostgreSQL, and heal."""
    until(lambda: owned(cluster, victim) > 0, "it owns something")
    work.goes_on(FEW)
    paths = [path for path in work.paths if cluster.owner(path) is victim]
    NETWORK[name](proxy)
    if name != "slow":
        until(lambda: owned(cluster, victim) == 0, f"it is replaced: {name}")
        # It can still say what it has, but not that this is all.
        assert not any(says_all(victim, path) for path in paths)
    work.goes_on(FEW)
    proxy.heal()


def says_all(node: Server, path: str) -> bool:
    try:
        answer = httpx.get(f"{node.url}/v1/stream/{path}?offset=-1", timeout=0.3, verify=False)
    except httpx.HTTPError:
        return False
    return "stream-up-to-date" in answer.headers


@pytest.mark.parametrize("fault", ["answers lost", pytest.param("silent", marks=pytest.mark.soak)])
def test_events_go_on_after_an_owner_was_silent(fault: str) -> None:
    """The relay hears nothing, though the owner is there: it asks again when it is."""
    server = shared()
    dsn = server.fresh_database()
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *SINGLE, shards=6)
        cluster.start(2)
        cluster.spread()
        owner = cluster.owner("log-0")
        name = next(each for each, node in cluster.names.items() if node is owner)
        other = next(node for node in cluster.nodes if node is not owner)
        proxy = stack.enter_context(before(server, dsn, name))
        client, path = cluster.client, "/v1/stream/log-0"
        headers = {"content-type": "text/plain"}
        assert client.put(owner.url + path, headers=headers).is_success
        until(lambda: client.get(other.url + path).is_success and proxy.opened, "proxied")
        with client.stream("GET", f"{other.url}{path}?offset=-1&live=sse", timeout=30) as answer:
            lines = answer.iter_lines()
            client.post(owner.url + path, content=b"<before>", headers=headers)
            assert any("<before>" in line for line in lines)
            opened = proxy.opened
            NETWORK[fault](proxy)
            client.post(owner.url + path, content=b"<meanwhile>", headers=headers)
            until(lambda: proxy.opened > opened, "the silent owner is asked anew")
            proxy.heal()
            assert any("<meanwhile>" in line for line in lines)
            client.post(owner.url + path, content=b"<after>", headers=headers)
            assert any("<after>" in line for line in lines)


def test_a_reader_begins_after_what_was_written_before_though_the_relay_is_behind() -> None:
    """The owner has said how far the stream is before its bytes have come: they are waited for."""
    server = shared()
    dsn = server.fresh_database()
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *SINGLE, shards=6)
        cluster.start(2)
        cluster.spread()
        owner = cluster.owner("log-0")
        name = next(each for each, node in cluster.names.items() if node is owner)
        other = next(node for node in cluster.nodes if node is not owner)
        proxy = stack.enter_context(before(server, dsn, name))
        client, path = cluster.client, "/v1/stream/log-0"
        headers = {"content-type": "text/plain"}
        assert client.put(owner.url + path, headers=headers).is_success
        until(lambda: client.get(other.url + path).is_success and proxy.opened, "proxied")
        url = f"{other.url}{path}?offset=now&live=sse"
        with client.stream("GET", url, timeout=30) as first:
            assert any("upToDate" in line for line in first.iter_lines())
            # Every 64 KB of the tail take so long, and a question no longer than two of them.
            proxy.slow_down(0.05)
            answer = client.post(owner.url + path, content=b"x" * 1_000_000, headers=headers)
            end = answer.headers["stream-next-offset"]
            with client.stream("GET", url, timeout=30) as second:
                control = next(line for line in second.iter_lines() if "streamNextOffset" in line)
                assert end in control
                assert "upToDate" in control


def test_a_shard_that_is_being_opened_does_not_wait_for_a_node_that_is_gone() -> None:
    """It asks the first shard for credentials, at a node that does not answer and is replaced."""
    server = shared()
    dsn = server.fresh_database()
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *SINGLE, *QUICK, shards=SHARDS)
        other, first = cluster.start(2)
        other.terminate()
        until(lambda: owned(cluster, first) == cluster.shards, "the first node has all shards")
        name, added = "node-1", "node-2"
        theirs = [shard for shard in range(SHARDS) if assigned(shard, [name, added]) == added]
        assert theirs, "the second node opens some"
        assert 0 not in theirs, "the first shard stays with the first node"
        with before(server, dsn, name) as proxy:
            proxy.cut()
            second = cluster.add()
            until(lambda: owned(cluster, second) == len(theirs), "the second has claimed its own")
            until(lambda: proxy.silenced >= len(theirs), "all of them ask the first shard")
            first.kill()
            until(lambda: owned(cluster, second) == cluster.shards, "the second has all shards")
            until(lambda: has_all(cluster, second), "it serves all of them")


def has_all(cluster: Cluster, node: Server) -> bool:
    """Whether a node creates streams in every shard."""
    paths = {shard_of(f"s-{number}", cluster.shards): f"s-{number}" for number in range(200)}
    assert len(paths) == cluster.shards
    try:
        return all(
            cluster.client.put(f"{node.url}/v1/stream/{path}").is_success for path in paths.values()
        )
    except httpx.HTTPError:
        return False
