"""HTTP/2: nginx and Caddy with the configurations of `deploy/`, and hypercorn by ASGI."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.helpers import proxies
from tests.helpers.certs import Authority
from tests.helpers.http2 import Http2
from tests.helpers.server import ROOT, Server, running_server

Proxy = Callable[[int, Path, Path], AbstractContextManager[int]]
PROXIES: dict[str, tuple[Proxy, Callable[[], str | None]]] = {
    "nginx": (proxies.nginx, proxies.nginx_binary),
    "caddy": (proxies.caddy, proxies.caddy_binary),
}
READERS = 20  # more than the six connections of a browser
WAIT_S = 30.0


class Front:
    """The URL of something that speaks HTTP/2, and whom its clients trust."""

    def __init__(self, name: str, port: int, trust: ssl.SSLContext) -> None:
        self.name = name
        self.port = port
        self.url = f"https://127.0.0.1:{port}"
        self.trust = trust

    def client(self, source: str = "127.0.0.1", **options: Any) -> httpx2.Client:
        transport = httpx2.HTTPTransport(http2=True, verify=self.trust, local_address=source)
        return httpx2.Client(base_url=self.url, transport=transport, timeout=WAIT_S, **options)

    def http2(self) -> Http2:
        return Http2(self.port, self.trust)

    def async_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, http2=True, verify=self.trust, timeout=WAIT_S)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("front"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    args = ["--trusted-proxies", "127.0.0.1/32", "--long-poll-timeout", "3"]
    with running_server(memory=True, args=args) as running:
        yield running


@pytest.fixture(scope="module", params=[*PROXIES, "hypercorn"])
def front(
    request: pytest.FixtureRequest,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Front]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    cert = authority.issue(name)
    if name == "hypercorn":
        if find_spec("hypercorn") is None:
            pytest.skip("the package hypercorn is not installed")
        settings = json.dumps({"memory": True, "long_poll_timeout_s": 3})
        env = {
            "CONFORMANCE_SETTINGS": settings,
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
        }
        with proxies.hypercorn("tests.conformance.asgi_app:app", cert, folder, env) as port:
            yield Front(name, port, authority.client())
        return
    proxy, binary = PROXIES[name]
    if binary() is None:
        pytest.skip(f"{name} is not installed")
    server = request.getfixturevalue("server")
    with proxy(server.port, cert, folder) as port:
        yield Front(name, port, authority.client())


def test_requests_are_http_2_and_urls_https(front: Front) -> None:
    with front.client() as client:
        created = client.put(
            f"/v1/stream/first-{front.name}", headers={"Content-Type": "application/json"}
        )
        assert (created.status_code, created.http_version) == (201, "HTTP/2")
        assert created.headers["location"] == f"{front.url}/v1/stream/first-{front.name}"
        assert client.post(f"/v1/stream/first-{front.name}", json=[1, 2]).status_code == 204
        assert client.get(f"/v1/stream/first-{front.name}").json() == [1, 2]
        assert client.get("/readyz").status_code == 200


def test_many_live_readers_share_a_connection_and_get_events_at_once(front: Front) -> None:
    path = f"/v1/stream/live-{front.name}"
    with front.client() as writer, front.http2() as connection:
        writer.put(path, headers={"Content-Type": "application/json"})
        target = f"{path}?offset=now&live=sse"
        readers = [connection.request("GET", target, {}) for _ in range(READERS)]
        connection.until(lambda: all(b"control" in connection.bodies[n] for n in readers))
        writer.post(path, json="hello")
        connection.until(lambda: all(b"hello" in connection.bodies[n] for n in readers))
        assert not connection.ended


def test_a_long_poll_waits_and_returns_what_comes(front: Front) -> None:
    async def scenario() -> None:
        async with front.async_client() as client:
            await client.put(
                f"/v1/stream/poll-{front.name}", headers={"Content-Type": "application/json"}
            )
            params = {"offset": "now", "live": "long-poll"}
            empty = await client.get(f"/v1/stream/poll-{front.name}", params=params)
            assert empty.status_code == 204
            params["offset"] = empty.headers["stream-next-offset"]
            waiting = asyncio.ensure_future(
                client.get(f"/v1/stream/poll-{front.name}", params=params)
            )
            await asyncio.sleep(0.2)
            await client.post(f"/v1/stream/poll-{front.name}", json=7)
            assert (await waiting).json() == [7]

    asyncio.run(scenario())


def test_large_bodies_pass_and_larger_ones_get_413(front: Front) -> None:
    body = os.urandom((1 if front.name == "hypercorn" else 15) << 20)  # which is slow
    path, octets = f"/v1/stream/large-{front.name}", {"content-type": "application/octet-stream"}
    with front.http2() as connection:
        assert connection.status(connection.request("PUT", path, octets)) == 201
        assert connection.status(connection.request("POST", path, octets, body)) == 204
    with front.client() as client:
        read, offset = b"", "-1"
        while len(read) < len(body):
            page = client.get(path, params={"offset": offset})
            read, offset = read + page.content, page.headers["stream-next-offset"]
        assert read == body
    if front.name == "hypercorn":
        return  # it ends the connection in place of a response that comes before the body
    with front.http2() as connection:
        assert connection.status(connection.request("POST", path, octets, bytes(17 << 20))) == 413


@pytest.mark.parametrize("name", PROXIES)
def test_the_server_counts_the_client_and_not_the_proxy(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    proxy, binary = PROXIES[name]
    if binary() is None:
        pytest.skip(f"{name} is not installed")
    args = ["--trusted-proxies", "127.0.0.1/32", "--rate-limit", "0.01"]
    with (
        running_server(memory=True, args=args) as server,
        proxy(server.port, authority.issue(f"{name}-count"), tmp_path) as port,
    ):
        front = Front(name, port, authority.client())
        for source in ("127.0.0.2", "127.0.0.3"):
            with front.client(source) as client:
                assert client.get("/v1/stream/none").status_code == 404
                # A client that names another address, in whichever header, is still itself.
                for headers in (
                    {},
                    {"X-Forwarded-For": "203.0.113.7"},
                    {"Forwarded": "for=203.0.113.7;proto=http"},
                ):
                    assert client.get("/v1/stream/none", headers=headers).status_code == 429
