"""nginx with the cache of docs/deployment.md: many readers, one request to the server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.helpers import proxies
from tests.helpers.certs import Authority
from tests.helpers.server import ROOT, Server, running_server

JSON = {"Content-Type": "application/json"}
WAIT_S = 30.0
READERS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True, args=["--trusted-proxies", "127.0.0.1/32"]) as running:
        yield running


@pytest.fixture(scope="module")
def front(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    if proxies.nginx_binary() is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("nginx")
    authority = Authority(folder)
    blocks = re.findall(
        r"```nginx\n(proxy_.*?)```", (ROOT / "docs/deployment.md").read_text(), re.S
    )
    path, rules = blocks
    path = path.replace("/var/cache/nginx/penstock", f"{folder}/cache")
    changes = [("http {\n", f"http {{\n{path}"), ("proxy_buffering off;\n", rules)]
    with (
        proxies.nginx(server.port, authority.issue("nginx"), folder, changes=changes) as port,
        httpx2.Client(
            base_url=f"https://127.0.0.1:{port}", verify=authority.client(), timeout=WAIT_S
        ) as client,
    ):
        yield client


class Meter:
    """What has reached the server, without the questions of the meter itself."""

    def __init__(self, server: Server) -> None:
        self._url = f"{server.url}/metrics"
        self._asked = 0
        self._before = self._gets()

    def _text(self) -> str:
        self._asked += 1
        return httpx2.get(self._url).text

    def _gets(self) -> int:
        lines = re.findall(r'^penstock_requests_total\{method="GET",.*\} (\d+)', self._text(), re.M)
        return sum(map(int, lines)) - self._asked

    def reads(self) -> int:
        return self._gets() - self._before

    def wait_for_long_poll(self) -> None:
        while 'penstock_live_readers{mode="long-poll"} 1.0' not in self._text():
            time.sleep(0.02)


def test_many_reads_of_the_same_bytes_are_one_request(server: Server, front: httpx2.Client) -> None:
    front.put("/v1/stream/a", headers=JSON)
    front.post("/v1/stream/a", json=[1, 2, 3])
    meter = Meter(server)
    answers = [front.get("/v1/stream/a?offset=-1") for _ in range(10)]
    assert [answer.json() for answer in answers] == [[1, 2, 3]] * 10
    assert meter.reads() == 1


def test_long_polls_wait_for_one_request(server: Server, front: httpx2.Client) -> None:
    front.put("/v1/stream/b", headers=JSON)
    tail = front.head("/v1/stream/b").headers["stream-next-offset"]
    meter = Meter(server)
    url = f"/v1/stream/b?offset={tail}&live=long-poll"
    with ThreadPoolExecutor(READERS) as pool:
        polls = [pool.submit(front.get, url) for _ in range(READERS)]
        meter.wait_for_long_poll()
        front.post("/v1/stream/b", json=["news"])
        assert [poll.result().text for poll in polls] == ['["news"]'] * READERS
    assert meter.reads() == 1


def test_what_needs_a_token_is_not_shared(server: Server, front: httpx2.Client) -> None:
    front.put("/v1/stream/c", headers=JSON)
    front.post("/v1/stream/c", json=["secret"])
    meter = Meter(server)
    for _ in range(2):
        front.get("/v1/stream/c?offset=-1", headers={"Authorization": "Bearer mine"})
    assert meter.reads() == 2


def test_events_are_not_buffered(front: httpx2.Client) -> None:
    front.put("/v1/stream/d", headers=JSON)
    with front.stream("GET", "/v1/stream/d?offset=-1&live=sse") as events:
        lines = events.iter_lines()
        front.post("/v1/stream/d", json=["now"])
        assert any('"now"' in line for line in lines)
