"""A quota is one budget for all shards of a cluster, whichever nodes have them, and through the end
of a node."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from functools import partial

import httpx

from tests.cluster.workload import QUICK, Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server

pytestmark = list(ON_POSTGRES)
JSON = {"content-type": "application/json"}
ARGS = ("--cluster-durability", "single", "--quotas", "few/=30streams,6000B", *QUICK)
BODY = json.dumps(["x" * 10]).encode()


def _create(url: str, path: str) -> httpx.Response:
    with httpx.Client(timeout=20, verify=False) as client:
        return client.put(f"{url}/v1/stream/{path}", content=BODY, headers=JSON)


def _listed(cluster: Cluster, node: Server) -> list[str]:
    answer = cluster.client.get(f"{node.url}/v1/streams?prefix=few/&limit=1000", timeout=20)
    assert answer.status_code == 200, answer.text
    return [each["path"] for each in answer.json()["streams"]]


def _is_full(cluster: Cluster, count: int) -> None:
    """Check that there are as many streams as may be, and that no shard takes one more."""
    cluster.settle()
    for node in cluster.running:
        assert len(_listed(cluster, node)) == count
        for number in range(2 * cluster.shards):
            path = f"few/late-{number}"
            answer = until(partial(_decided, node, path), "an answer")
            assert answer.status_code == 429, answer.text
            assert answer.json()["code"] == "quota-exceeded"
            assert f"'few/' has {count} streams, and may have {count}" in answer.json()["detail"]


def _decided(node: Server, path: str) -> httpx.Response | None:
    answer = _create(node.url, path)
    return None if answer.status_code == 503 else answer


def test_shards_share_a_quota_through_handovers_and_the_end_of_a_node() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, shared().fresh_database(), *ARGS)
        first, second = cluster.start(2)
        cluster.spread()
        for number in range(12):
            node = (first, second)[number % 2]
            assert _create(node.url, f"few/first-{number}").status_code == 201
        statuses: list[int] = []
        ending = threading.Event()

        def write(number: int) -> None:
            turn = 0
            while not ending.is_set():
                turn += 1
                nodes = cluster.running
                node = nodes[(number + turn) % len(nodes)]
                try:
                    answer = _create(node.url, f"few/w-{number}-{turn}")
                except httpx.HTTPError:
                    continue
                statuses.append(answer.status_code)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: 201 in statuses, "a stream is created")
            cluster.owner("few/first-0").kill()
            cluster.add()  # shards move to it, those of the node that has ended as well
            until(lambda: statuses.count(429) > 10, "the quota is used up")
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        assert set(statuses) <= {201, 429, 503}
        cluster.spread()
        _is_full(cluster, 30)
        gone = _listed(cluster, cluster.running[0])[7]
        assert (
            cluster.client.delete(f"{cluster.running[0].url}/v1/stream/{gone}").status_code == 204
        )
        answer = until(lambda: _decided(cluster.running[1], "few/after"), "an answer")
        assert answer.status_code == 201
        _is_full(cluster, 30)
