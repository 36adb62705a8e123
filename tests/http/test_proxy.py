"""A server behind a proxy: who the client is, on real connections and with real proxies' ways."""

from __future__ import annotations

import asyncio
import ssl
import struct
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.access.principal import ROOT
from penstock.http.message import Request, Response
from penstock.http.native.proxy_header import SIGNATURE
from tests.helpers.certs import Authority
from tests.helpers.server import running_server
from tests.http.wire import Client, FakeApp, Native, get, native, on_loop, until

TRUSTED = {"trusted_proxies": ("127.0.0.1/32",)}
STRANGER = "127.0.0.2"
V2 = SIGNATURE + b"\x21\x11" + struct.pack(">H4s4sHH", 12, bytes([203, 0, 113, 7]), bytes(4), 1, 2)
LOCAL = SIGNATURE + b"\x20\0\0\0"
V1 = b"PROXY TCP6 2001:db8::7 ::1 1234 443\r\n"


class WhoApp(FakeApp):
    """Answers with the client's address and scheme; lets in by the head, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def refuse(self, head: Request) -> Response | None:
        self.refused.append(head.peer)
        head.principal = ROOT
        return None

    def handle(self, request: Request) -> Response:
        return Response(200, [], f"{request.peer} {request.scheme}".encode())


async def connect(server: Native, source: str = "127.0.0.1", **options: Any) -> Client:
    client = Client(
        *await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0), **options)
    )
    server.clients.append(client)
    return client


@on_loop
async def test_forwarded_headers_count_only_from_a_trusted_proxy() -> None:
    """Equal heads on both kinds of connections, over and over: none takes the other's client."""
    app = WhoApp()
    async with native(app, **TRUSTED) as server:
        proxy, stranger = await connect(server), await connect(server, STRANGER)
        one = get("/", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https")
        two = get("/", "X-Forwarded-For: 203.0.113.8")
        for _ in range(4):
            assert (await proxy.ask(one)).body == b"203.0.113.7 https"
            assert (await stranger.ask(one)).body == b"127.0.0.2 http"
            assert (await proxy.ask(two)).body == b"203.0.113.8 http"
            assert (await proxy.ask(get("/"))).body == b"127.0.0.1 http"
        # The guard has seen every request of the proxy with its real client.
        assert app.refused.count("203.0.113.7") == app.refused.count("203.0.113.8") == 4


@on_loop
async def test_a_proxy_may_have_many_connections() -> None:
    async with native(WhoApp(), **TRUSTED, connections_per_address_max=1) as server:
        for _ in range(3):
            assert (await (await connect(server)).ask(get("/"))).status == 200
        assert (await (await connect(server, STRANGER)).ask(get("/"))).status == 200
        assert (await (await connect(server, STRANGER)).answer()).status == 429


@on_loop
async def test_without_trusted_proxies_the_headers_say_nothing() -> None:
    async with native(WhoApp()) as server:
        answer = await server.ask(get("/", "X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https"))
        assert answer.body == b"127.0.0.1 http"


@pytest.mark.parametrize("asgi", [False, True], ids=["native", "asgi"])
def test_both_transports_count_and_name_the_real_client(asgi: bool) -> None:
    args = ["--trusted-proxies", "127.0.0.0/8", "--rate-limit", "0.01"]
    # uvicorn would believe the headers itself, and hide the proxy.
    env = {"FORWARDED_ALLOW_IPS": "192.0.2.1"}
    with (
        running_server(memory=True, asgi=asgi, args=args, env=env) as server,
        httpx2.Client(base_url=server.url) as client,
    ):
        for n in (1, 2):
            headers = {"X-Forwarded-For": f"203.0.113.{n}", "X-Forwarded-Proto": "https"}
            created = client.put(f"/v1/stream/a{n}", headers=headers)
            assert created.status_code == 201
            assert created.headers["location"].startswith("https://127.0.0.1")
            assert client.get(f"/v1/stream/a{n}", headers=headers).status_code == 429


def test_an_asgi_app_ignores_the_headers_of_strangers() -> None:
    env = {"FORWARDED_ALLOW_IPS": "192.0.2.1"}
    with running_server(memory=True, asgi=True, env=env) as server:
        headers = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https"}
        created = httpx2.put(f"{server.url}/v1/stream/a", headers=headers)
        assert created.headers["location"] == f"{server.url}/v1/stream/a"


# The PROXY protocol

PROXIED = {**TRUSTED, "proxy_protocol": True}


@pytest.mark.parametrize(
    ("header", "expected"),
    [(V2, b"203.0.113.7 http"), (V1, b"2001:db8::7 http"), (LOCAL, b"127.0.0.1 http")],
    ids=["v2", "v1", "local"],
)
@pytest.mark.parametrize("pieces", ["whole", "bytes", "apart"])
@on_loop
async def test_the_header_names_the_client_of_all_requests(
    header: bytes, expected: bytes, pieces: str
) -> None:
    async with native(WhoApp(), **PROXIED) as server:
        client = await connect(server)
        if pieces == "bytes":
            for byte in header:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.001)
        elif pieces == "apart":
            await client.send(header)
            await until(lambda: not server.table.opening)
        start = header if pieces == "whole" else b""
        assert (await client.ask(start + get("/"))).body == expected
        assert (await client.ask(get("/"))).body == expected
        assert not server.table.opening


@on_loop
async def test_a_trusted_proxy_must_send_the_header() -> None:
    async with native(WhoApp(), **PROXIED) as server:
        for data in (
            get("/"),
            b"\x16\3\1",
            SIGNATURE[:-1] + b"X",
            V2.replace(b"\x21\x11", b"\x31\x11"),
        ):
            client = await connect(server)
            await client.send(data)
            assert await client.rest() == b""
        await until(lambda: server.table.count() == 0)


@on_loop
async def test_a_stranger_must_not_send_the_header() -> None:
    async with native(WhoApp(), **PROXIED) as server:
        client = await connect(server, STRANGER)
        assert (await client.ask(get("/"))).body == b"127.0.0.2 http"
        for header in (V1, V2):
            client = await connect(server, STRANGER)
            answer = await client.ask(header + get("/"))
            assert answer.status == 400


@on_loop
async def test_a_header_that_does_not_come_in_time_ends_the_connection() -> None:
    async with native(WhoApp(), **PROXIED, header_timeout_s=0.1) as server:
        for start in (b"", V2[:5], V1[:-1]):
            client = await connect(server)
            await client.send(start)
            assert await client.rest() == b""
        assert server.table.count() == 0


@on_loop
async def test_a_stop_does_not_wait_for_a_header() -> None:
    async with native(WhoApp(), **PROXIED, shutdown_timeout_s=20) as server:
        client = await connect(server)
        await until(lambda: server.table.opening)
        await asyncio.wait_for(server.server.stop(), 5)
        assert await client.rest() == b""


@on_loop
async def test_a_proxy_named_by_a_proxy_is_believed_in_turn() -> None:
    nets = {"trusted_proxies": ("127.0.0.1/32", "203.0.113.0/24"), "proxy_protocol": True}
    async with native(WhoApp(), **nets) as server:
        client = await connect(server)
        answer = await client.ask(V2 + get("/", "X-Forwarded-For: 198.51.100.9"))
        assert answer.body == b"198.51.100.9 http"


@on_loop
async def test_an_ended_tls_of_the_proxy_makes_the_scheme_https() -> None:
    content = V2[16:] + b"\x20\0\5\1\0\0\0\0"
    header = V2[:14] + struct.pack(">H", len(content)) + content
    async with native(WhoApp(), **PROXIED) as server:
        client = await connect(server)
        assert (await client.ask(header + get("/"))).body == b"203.0.113.7 https"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("proxy")))


@pytest.mark.parametrize("together", [True, False])
@on_loop
async def test_tls_follows_the_header(authority: Authority, together: bool) -> None:
    """A proxy that passes TLS through: first its header, then the client's own handshake."""

    async with native(WhoApp(), **PROXIED, tls_cert=authority.issue("server")) as server:
        client = await connect(server)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        header = V2
        if not together:
            await client.send(header)
            header = b""

        async def exchange(step: Any) -> Any:
            nonlocal header
            while True:
                try:
                    result = step()
                except ssl.SSLWantReadError:
                    await client.send(header + outgoing.read())
                    header = b""
                    incoming.write(await client.reader.read(65536))
                else:
                    await client.send(outgoing.read())
                    return result

        await exchange(session.do_handshake)
        await exchange(lambda: session.write(get("/")))
        received = await exchange(lambda: session.read(65536))
        assert received.endswith(b"203.0.113.7 https")
