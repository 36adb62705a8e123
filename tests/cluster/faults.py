"""What can go wrong with a cluster, one fault at a time, while it is written and read: nodes that
are killed, frozen or stopped, networks that lie, servers of PostgreSQL that fail."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx

from tests.cluster.workload import FEW, LATE, Cluster, Workload, until
from tests.helpers.postgres import Postgres, Trio
from tests.helpers.server import Server
from tests.helpers.tcp_proxy import DOWN, UP, TcpProxy, tcp_proxy

NETWORK: dict[str, Callable[[TcpProxy], None]] = {
    "silent": lambda proxy: proxy.cut(),
    "requests lost": lambda proxy: proxy.cut(UP),
    "answers lost": lambda proxy: proxy.cut(DOWN),
    "slow": lambda proxy: proxy.slow_down(0.05),
}
"""What becomes of a network that tells nobody."""


# -- nodes


def kill_an_owner(cluster: Cluster, work: Workload) -> None:
    cluster.owner(work.paths[0]).kill()
    cluster.add()
    work.goes_on()


def freeze_an_owner(cluster: Cluster, work: Workload) -> None:
    path = work.paths[0]
    frozen = cluster.owner(path)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        until(lambda: cluster.owner(path) is not frozen, "another node has taken over")
        work.goes_on(FEW)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)  # else it could not be stopped
    until(lambda: _append_late(frozen.url, work), "the woken node forwards")
    work.goes_on()


def restart_all(cluster: Cluster, work: Workload) -> None:
    """Restart every node in turn, under load."""
    for node in cluster.running:
        assert node.terminate() == 0, node.stderr
        cluster.add()
        work.goes_on()


def _append_late(url: str, work: Workload) -> bool:
    """Append by a node that was replaced; return whether it has answered that it is done."""
    body = b"[[%d,%d]]" % (LATE, len(work.late))
    try:
        answer = httpx.post(
            f"{url}/v1/stream/{work.paths[0]}",
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


# -- PostgreSQL


def pause_the_standbys(trio: Trio, work: Workload) -> None:
    for standby in trio.standbys:
        standby.pause()
    # What a standby had received before it was paused may still be acknowledged.
    settled = work.total
    deadline = time.monotonic() + 20
    while True:
        time.sleep(0.3)
        if work.total == settled:
            break
        settled = work.total
        assert time.monotonic() < deadline, "appends are acknowledged without a standby"
    before = work.total
    time.sleep(0.5)
    assert work.total == before, "an append was acknowledged without a standby"
    for standby in trio.standbys:
        standby.go_on()
    work.goes_on()


def lose_the_primary(trio: Trio, work: Workload) -> Postgres:
    """Kill the primary, promote a standby, and return what was the primary."""
    lost = trio.primary
    lost.kill()
    trio.fail_over()
    work.goes_on()
    return lost


# -- networks


def behind(proxy: TcpProxy, dsn: str, server: Postgres) -> str:
    """Return the URL of a database through a proxy."""
    return dsn.replace(f"127.0.0.1:{server.port}", proxy.address)


@contextmanager
def before(server: Postgres, dsn: str, name: str) -> Iterator[TcpProxy]:
    """Provide a proxy by which other nodes reach a node meanwhile."""
    database = dsn.rpartition("/")[2]
    (peer,) = server.query(f"SELECT peer FROM penstock.node WHERE name = '{name}'", database)
    host, _, port = peer.rpartition(":")
    move = "UPDATE penstock.node SET peer = '{}' WHERE name = '{}' RETURNING name"
    with tcp_proxy(host, int(port)) as proxy:
        server.query(move.format(proxy.address, name), database)
        yield proxy
        server.query(move.format(peer, name), database)


class RandomFaults:
    """Faults of a trio and three nodes, of which some reach PostgreSQL through proxies."""

    def __init__(
        self, stack: ExitStack, trio: Trio, cluster: Cluster, chance: random.Random
    ) -> None:
        self._trio = trio
        self._cluster = cluster
        self._chance = chance
        self._proxies = [
            stack.enter_context(tcp_proxy("127.0.0.1", server.port)) for server in trio.servers
        ]
        self.proxied_dsn = trio.dsn
        for proxy, server in zip(self._proxies, trio.servers, strict=True):
            self.proxied_dsn = behind(proxy, self.proxied_dsn, server)
        self._behind: list[Server] = []
        self.done: list[str] = []

    def start_behind_proxies(self) -> None:
        """Start a node that reaches PostgreSQL through proxies."""
        self._behind += self._cluster.start(1, dsn=self.proxied_dsn)

    def next(self, work: Workload) -> None:
        """Let something fail and heal, while appends go on."""
        faults = (
            self._kill,
            self._freeze,
            self._restart,
            self._pause_standbys,
            self._pause_one_standby,
            self._fail_over,
            self._cut_from_postgres,
            self._cut_from_nodes,
        )
        fault = self._chance.choice(faults)
        self.done.append(fault.__name__.strip("_"))
        fault(work)

    def _kill(self, work: Workload) -> None:
        kill_an_owner(self._cluster, work)

    def _freeze(self, work: Workload) -> None:
        freeze_an_owner(self._cluster, work)

    def _restart(self, work: Workload) -> None:
        node = self._chance.choice(self._cluster.running)
        is_behind = self._chance.choice((False, True))
        # One has to reach PostgreSQL when all proxies are cut.
        others = [each for each in self._cluster.running if each is not node]
        if is_behind and not all(each in self._behind for each in others):
            self.start_behind_proxies()
        else:
            self._cluster.start(1)
        assert node.terminate() == 0, node.stderr
        work.goes_on()

    def _pause_standbys(self, work: Workload) -> None:
        pause_the_standbys(self._trio, work)

    def _pause_one_standby(self, work: Workload) -> None:
        standby = self._chance.choice(self._trio.standbys)
        standby.pause()
        work.goes_on()
        standby.go_on()

    def _fail_over(self, work: Workload) -> None:
        lost = lose_the_primary(self._trio, work)
        self._trio.rejoin(lost)
        work.goes_on()

    def _cut_from_postgres(self, work: Workload) -> None:
        fault = NETWORK[self._chance.choice([*NETWORK])]
        for proxy in self._proxies:
            fault(proxy)
        work.goes_on(FEW)
        for proxy in self._proxies:
            proxy.heal()
        work.goes_on()

    def _cut_from_nodes(self, work: Workload) -> None:
        names = [name for name, node in self._cluster.names.items() if node.running]
        with before(self._trio.primary, self._trio.dsn, self._chance.choice(names)) as proxy:
            NETWORK[self._chance.choice([*NETWORK])](proxy)
            work.goes_on(FEW)
            proxy.heal()
        work.goes_on()


def owned(cluster: Cluster, node: Server) -> int:
    """Return how many shards a node owns, by the database."""
    return sum(cluster.names.get(each["owner"] or "") is node for each in cluster.shard_rows())
