"""Creations that a node carries out long after its client has gone: the one way in which a stream
may be there again after its deletion."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

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
