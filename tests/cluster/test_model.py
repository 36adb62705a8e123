"""Random operations on a cluster of several shards, each at any node, and on one server in memory:
both answer the same. (`tests/model` compares that server with a reference.)"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
import pytest

from tests.cluster.workload import Cluster
from tests.helpers.postgres import WITH_FAULTS, shared
from tests.helpers.server import running_server

pytestmark = list(WITH_FAULTS)

PATHS = [f"{name}/{number}" for name in ("a", "b") for number in range(5)]
TYPES = ("application/json", "text/plain")
STEPS = 400


class Both(NamedTuple):
    """A cluster, and the server that it is compared with."""

    nodes: list[str]
    single: str
    client: httpx.Client


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, "--cluster-durability", "single", shards=6)
        cluster.start(2)
        cluster.spread()
        single = stack.enter_context(running_server(memory=True))
        yield Both(cluster.urls, single.url, cluster.client)


class Script:
    """Sends each request to both, and compares the answers. Offsets differ in their generations:
    what is compared are positions, and each side gets its own."""

    def __init__(self, both: Both, seed: int) -> None:
        self._both = both
        self._chance = random.Random(seed)
        self._prefix = f"/v1/stream/seed-{seed}/"
        self._offsets: dict[str, list[tuple[str, str]]] = {}
        self.statuses: set[int] = set()

    def step(self) -> None:
        chance = self._chance
        path = chance.choice(PATHS)
        choices = (self._create, self._fork, self._delete, self._trim, self._close)
        if chance.random() < 0.3:
            chance.choice(choices)(path)
        elif chance.random() < 0.5:
            self._append(path)
        else:
            self._read(path)

    # -- operations

    def _create(self, path: str) -> None:
        self._send("PUT", path, headers={"content-type": self._chance.choice(TYPES)})

    def _fork(self, path: str) -> None:
        source = self._chance.choice(PATHS)
        self._send("PUT", path, headers={"stream-forked-from": self._prefix + source})

    def _append(self, path: str) -> None:
        headers = {"content-type": self._chance.choice(TYPES)}
        if self._chance.random() < 0.3:
            headers |= {
                "producer-id": "p",
                "producer-epoch": str(self._chance.randrange(2)),
                "producer-seq": str(self._chance.randrange(4)),
            }
        self._send("POST", path, body=b"[%d]" % self._chance.randrange(10**6), headers=headers)

    def _close(self, path: str) -> None:
        self._send("POST", path, headers={"stream-closed": "true"})

    def _delete(self, path: str) -> None:
        self._send("DELETE", path)

    def _trim(self, path: str) -> None:
        self._send("POST", path + "/__ds/trim", json=("before", self._offset(path)))

    def _read(self, path: str) -> None:
        self._send(self._chance.choice(("GET", "GET", "HEAD")), path, offset=self._offset(path))

    def _offset(self, path: str) -> tuple[str, str]:
        known = self._offsets.get(path, [])
        return self._chance.choice([("-1", "-1"), ("now", "now"), *known[-8:]])

    # -- both

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        offset: tuple[str, str] | None = None,
        json: tuple[str, tuple[str, str]] | None = None,
    ) -> None:
        answers = []
        for side, server in enumerate((self._chance.choice(self._both.nodes), self._both.single)):
            more: dict[str, Any] = {"content": body, "headers": headers}
            if json is not None:
                more = {"json": {json[0]: json[1][side]}}
            if offset is not None and method == "GET":
                more["params"] = {"offset": offset[side]}
            url = server + self._prefix + path
            answers.append(self._both.client.request(method, url, timeout=30, **more))
        ours, theirs = answers
        said = f"{method} {path} {headers} {offset} {json}: {ours.text} / {theirs.text}"
        assert _shown(ours) == _shown(theirs) or _is_older(ours, theirs), said
        self.statuses.add(ours.status_code)
        tokens = tuple(answer.headers.get("stream-next-offset", "") for answer in answers)
        if all(tokens) and json is None:
            self._offsets.setdefault(path, []).append((tokens[0], tokens[1]))


def _is_older(ours: httpx.Response, theirs: httpx.Response) -> bool:
    """Whether an offset of a deleted stream is refused, only in other words: ids ascend within a
    shard, and a fork at the path of a stream of another shard may have a lower one."""
    codes = [each.status_code >= 400 and each.json()["code"] for each in (ours, theirs)]
    return codes == ["invalid-offset", "stream-recreated"]


def _shown(answer: httpx.Response) -> dict[str, Any]:
    """What has to be the same: everything but generations, times and texts for people."""
    names = ("stream-closed", "stream-up-to-date", "content-type", "producer-expected-seq")
    shown: dict[str, Any] = {name: answer.headers.get(name) for name in names}
    shown["status"] = answer.status_code
    shown["position"] = answer.headers.get("stream-next-offset", "").rpartition("_")[2]
    if answer.status_code >= 400 and answer.content:
        shown["code"] = answer.json()["code"]
    elif answer.request.method == "GET":
        shown["body"] = answer.content
    return shown


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))]
)
def test_a_cluster_answers_as_one_server(both: Both, seed: int) -> None:
    script = Script(both, seed)
    for _ in range(STEPS):
        script.step()
    # The script gets somewhere: streams are made, read, refused, closed, deleted, forked.
    assert script.statuses >= {200, 201, 204, 404, 409, 410}, script.statuses
