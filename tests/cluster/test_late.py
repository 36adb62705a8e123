"""Creations that a node carries out long after its client has gone: the one way in which a stream
may be there again after its deletion."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from penstock.http.forwarding.hop import HEADER, Hops
from penstock.http.sender import NOWHERE
from penstock.protocol.shards import shard_of
from tests.cluster.lives import generation_of
from tests.cluster.workload import JSON, Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)

PATIENCE = ("--cluster-beat", "0.25", "--cluster-lease", "30", "--cluster-takeover", "60")
"""Settings with which a node that is frozen is not replaced in a test."""
WAIT_S = 0.3
"""How long a client waits for a node that does not answer."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, "--cluster-durability", "single", *PATIENCE)
        cluster.start(2)
        cluster.spread()
        yield cluster


@pytest.mark.parametrize("kind", ["stream", "fork"])
def test_a_creation_that_nobody_has_answered_may_be_carried_out_after_a_deletion(
    cluster: Cluster, kind: str
) -> None:
    client = cluster.client
    source = f"source-of-{kind}"
    # All that is about the stream is with one node, and the other one is frozen.
    owner = cluster.owner(source)
    path = next(
        path
        for path in (f"{kind}-{number}" for number in range(100))
        if cluster.owner(path) is owner
    )
    (other,) = [node for node in cluster.running if node is not owner]
    client.put(f"{owner.url}/v1/stream/{source}", content=b"[0, 1]", headers=JSON)
    headers = {**JSON, "stream-forked-from": f"/v1/stream/{source}"} if kind == "fork" else JSON
    url = f"{owner.url}/v1/stream/{path}"
    os.kill(other.pid, signal.SIGSTOP)
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.put(
                f"{other.url}/v1/stream/{path}", headers=headers, timeout=WAIT_S, verify=False
            )
        created = client.put(url, headers=headers)
        assert created.status_code == 201, created.text
        assert client.post(url, content=b"[2]", headers=JSON).status_code == 204
        assert client.delete(url).status_code == 204
        assert client.get(url).status_code == 404
    finally:
        os.kill(other.pid, signal.SIGCONT)
    until(lambda: client.get(url).status_code == 200, "the late creation is carried out")
    late = client.get(url)
    first, second = (generation_of(each.headers["stream-next-offset"]) for each in (created, late))
    assert second > first
    assert late.json() == ([0, 1] if kind == "fork" else [])


class Home:
    """Sends to shards what the home of a path sends them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        (secret,) = self._query("SELECT secret FROM penstock.cluster")
        self._hops = Hops(secret)

    def _query(self, text: str) -> list[str]:
        return shared().query(text, self._cluster.dsn.rpartition("/")[2])

    def send(self, shard: int, method: str, target: str, **more: Any) -> httpx.Response:
        owner = self._cluster.shard_rows()[shard]["owner"]
        (peer,) = self._query(f"SELECT peer FROM penstock.node WHERE name = '{owner}'")
        hop = self._hops.value(NOWHERE, is_local=True, to=f"shard-{shard}").decode()
        headers = {**JSON, **more.pop("headers", {}), HEADER.decode(): hop}
        return self._cluster.client.request(
            method, f"http://{peer}{target}", headers=headers, **more
        )

    def place(self, shard: int, path: str) -> str:
        """Return where the stream of a path is, by the shard that is its home."""
        answer = self.send(shard, "POST", "/peer/locate", content=json.dumps(path))
        place: str = answer.json()["answer"]
        return place


def test_a_fork_is_not_made_late_when_its_path_leads_there_no_more(cluster: Cluster) -> None:
    """It would keep its source, and nobody could read or delete it."""
    client, home = cluster.client, Home(cluster)
    source = "kept"
    shard = shard_of(source, cluster.shards)
    path = next(
        path
        for path in (f"kept-{number}" for number in range(100))
        if shard_of(path, cluster.shards) != shard
    )
    own = shard_of(path, cluster.shards)
    url = f"{cluster.running[0].url}/v1/stream"
    headers = {**JSON, "stream-forked-from": f"/v1/stream/{source}"}
    assert client.put(f"{url}/{source}", headers=JSON).status_code == 201
    assert client.put(f"{url}/{path}", headers=headers).status_code == 201
    assert home.place(own, path) == f"shard-{shard}"
    assert client.delete(f"{url}/{path}").status_code == 204
    until(lambda: home.place(own, path) == f"shard-{own}", "the link to the fork is gone")

    # What its home had sent to the shard of the source comes only now.
    late = home.send(shard, "PUT", f"/v1/stream/{path}", headers=headers)
    assert late.status_code == 503, late.text
    assert client.get(f"{url}/{path}").status_code == 404
    assert client.delete(f"{url}/{source}").status_code == 204
    assert client.get(f"{url}/{source}").status_code == 404, "it is kept for the fork"
