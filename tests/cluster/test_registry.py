"""`__registry__` is one stream with the streams of all shards, through handovers and the end of a
node."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

import httpx

from tests.cluster.workload import QUICK, Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server

pytestmark = list(ON_POSTGRES)
TEXT = {"content-type": "text/plain"}
ARGS = ("--cluster-durability", "single", "--registry", *QUICK)


def _listed(cluster: Cluster, node: Server) -> set[str] | None:
    """Return the fold of the registry's events, as a node shows them."""
    paths: set[str] = set()
    offset = "-1"
    while True:
        answer = cluster.client.get(f"{node.url}/v1/stream/__registry__?offset={offset}")
        if answer.status_code != 200:
            return None
        for event in answer.json():
            (paths.remove if event["headers"]["operation"] == "delete" else paths.add)(event["key"])
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return paths


def _is_true(cluster: Cluster, node: Server) -> bool:
    page = cluster.client.get(f"{node.url}/v1/streams?limit=1000")
    if page.status_code != 200:
        return False
    paths = {each["path"] for each in page.json()["streams"]}
    listed = _listed(cluster, node)
    return listed is not None and {path for path in paths if path.startswith("s/")} == {
        path for path in listed if path.startswith("s/")
    }


def test_the_registry_is_true_after_the_end_of_its_owner_and_of_another_node() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, shared().fresh_database(), *ARGS)
        cluster.start(2)
        cluster.spread()
        ending = threading.Event()
        done: list[int] = []

        def work() -> None:
            with httpx.Client(timeout=5, verify=False) as client:
                turn = 0
                while not ending.is_set():
                    turn += 1
                    nodes = cluster.running
                    url = f"{nodes[turn % len(nodes)].url}/v1/stream/s/{turn}"
                    try:
                        done.append(client.put(url, headers=TEXT).status_code)
                        if turn % 3:
                            done.append(client.delete(url).status_code)
                    except httpx.HTTPError:
                        continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for path in ("__registry__", "s/1"):
                until(lambda: done[-20:].count(201) > 4, "the work goes on")
                cluster.owner(path).kill()
                cluster.add()
                done.clear()
            until(lambda: done[-20:].count(201) > 4, "the work goes on")
        finally:
            ending.set()
            thread.join()
        cluster.spread()
        for node in cluster.running:
            until(partial(_is_true, cluster, node), "the registry is true")
