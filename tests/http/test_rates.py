"""Limits of rate: requests and bytes a second, by address and by principal; connections and live
readers of one client."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.access.authenticator import Access
from penstock.access.principal import ROOT, Principal, anonymous
from penstock.access.rules import Verb, parse_rules
from penstock.config.settings import Settings
from penstock.errors import ByteRateLimited, PenstockError, RateLimited
from penstock.http.app import App
from penstock.http.asgi.app import AsgiApp
from penstock.http.endpoint import PUBLIC, Endpoint, Need
from penstock.http.guard import Guard
from penstock.http.message import EventBody, Request, Response
from penstock.http.rates import RateLimit, counts_requests, holder, site
from penstock.http.sender import Sender
from penstock.log import open_engine
from tests.helpers.app import Client, FakeSink, make_request, with_app
from tests.http.wire import Native, chunked, get, native, on_loop, post, until
from tests.stp.tables import table

READ = Need(Verb.READ)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_allows_a_second_of_requests_and_refills() -> None:
    clock = Clock()
    rate = RateLimit(5, monotonic=clock)
    for _ in range(5):
        rate.take("a")
    with pytest.raises(RateLimited) as caught:
        rate.take("a")
    assert caught.value.headers == {"Retry-After": "1"}
    rate.take("b")
    clock.now += 0.4
    rate.take("a")
    rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")
    clock.now += 1000
    for _ in range(5):
        rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")


def test_slow_rate_still_lets_one_request_through() -> None:
    clock = Clock()
    rate = RateLimit(0.1, monotonic=clock)
    rate.take("a")
    with pytest.raises(RateLimited) as caught:
        rate.take("a")
    clock.now += int(caught.value.headers["Retry-After"])
    rate.take("a")


def test_refused_requests_do_not_push_the_refill_away() -> None:
    clock = Clock()
    rate = RateLimit(1, monotonic=clock)
    rate.take("a")
    for _ in range(3):
        clock.now += 0.3
        with pytest.raises(RateLimited):
            rate.take("a")
    clock.now += 0.3
    rate.take("a")


def test_table_of_peers_is_bounded() -> None:
    rate = RateLimit(1, monotonic=Clock(), peers_max=10)
    rate.take("kept")
    for n in range(100):
        rate.take(f"peer{n}")
        with pytest.raises(RateLimited):
            rate.take("kept")  # seen again and again, so never the one that is forgotten
        assert len(rate) <= 10


def test_what_is_larger_than_the_bucket_leaves_a_debt() -> None:
    clock = Clock()
    rate = RateLimit(100, monotonic=clock)
    rate.take("a", 350)
    for wait_s in (1.0, 1.0):
        with pytest.raises(RateLimited):
            rate.take("a", 1)
        clock.now += wait_s
    with pytest.raises(RateLimited) as caught:
        rate.take("a", 50)  # 250 of debt, 200 of them paid
    assert caught.value.headers == {"Retry-After": "1"}
    clock.now += 1
    rate.take("a", 50)
    with pytest.raises(RateLimited) as caught:
        rate.take("a", 350)  # only a full bucket lets it in
    clock.now += int(caught.value.headers["Retry-After"])
    rate.take("a", 350)


def test_a_debt_does_not_stop_what_costs_nothing() -> None:
    rate = RateLimit(10, monotonic=Clock())
    rate.take("a", 1000)
    rate.take("a", 0)


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::/64"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_an_ipv6_client_is_counted_by_its_network(address: str, counted_as: str) -> None:
    assert site(address) == counted_as


def test_root_has_no_limits_and_strangers_have_one_each() -> None:
    assert holder(ROOT, "192.0.2.1") is None
    strangers = anonymous()
    assert holder(strangers, "192.0.2.1") != holder(strangers, "192.0.2.2")
    token = Principal("anonymous 192.0.2.1", parse_rules([]))
    assert holder(token, "192.0.2.1") == holder(token, "192.0.2.2")
    assert holder(token, "192.0.2.1") != holder(strangers, "192.0.2.1")


RATES = ("rate_limit_per_s", "principal_rate_per_s", "address_bytes_per_s", "principal_bytes_per_s")


def test_off_costs_nothing_and_any_limit_counts_every_request() -> None:
    assert not counts_requests(Settings())
    assert Guard(Settings(), Access(Settings())).rates is None
    for name in RATES:
        options: dict[str, Any] = {name: 1}
        settings = Settings(**options)
        assert counts_requests(settings)
        assert Guard(settings, Access(settings)).rates is not None


class Rated:
    """A guard with a clock, and the tokens `one` and `two`."""

    def __init__(self, **settings: Any) -> None:
        options = Settings(auth_token="root", anonymous_allow=("read:public/**",), **settings)
        access = Access(options)
        principals = {
            name: Principal(name, parse_rules(["read:**", "append:**"])) for name in ("one", "two")
        }
        access.add_bearer(principals.get)
        self.clock = Clock()
        self.guard = Guard(options, access, monotonic=self.clock)

    def ask(
        self,
        token: str | None = "one",
        peer: str = "192.0.2.1",
        size: int | None = None,
        *,
        path: str = "public/a",
        need: Need = READ,
    ) -> Request:
        headers = {} if token is None else {b"authorization": b"Bearer " + token.encode()}
        if size is not None:
            headers[b"content-length"] = b"%d" % size
        method = "GET" if size is None else "POST"
        request = Request(method, b"/", b"", headers, b"", Sender(peer))
        assert self.guard.refuse(request) is None
        self.guard.admit(request, Endpoint(lambda path, request: Response(200), need), path)
        return request

    def refused(self, **options: Any) -> PenstockError:
        with pytest.raises((RateLimited, ByteRateLimited)) as caught:
            self.ask(**options)
        return caught.value


def test_requests_are_counted_per_principal_wherever_they_come_from() -> None:
    rated = Rated(principal_rate_per_s=2)
    rated.ask(peer="192.0.2.1")
    rated.ask(peer="192.0.2.2")
    error = rated.refused(peer="192.0.2.3")
    assert (error.status, error.code) == (429, "rate-limited")
    assert "principal_rate_per_s" in error.detail
    assert error.headers == {"Retry-After": "1"}
    rated.ask("two")
    rated.clock.now += 1
    rated.ask()


def test_root_and_public_routes_are_not_counted_per_principal() -> None:
    rated = Rated(principal_rate_per_s=1, principal_bytes_per_s=1)
    for _ in range(5):
        rated.ask("root", size=100)
        rated.ask(need=PUBLIC)


def test_requests_without_credentials_are_counted_by_address() -> None:
    rated = Rated(principal_rate_per_s=1)
    rated.ask(None, peer="192.0.2.1")
    rated.ask(None, peer="192.0.2.2")
    assert rated.refused(token=None, peer="192.0.2.1").status == 429


def test_requests_that_are_not_allowed_are_counted_too() -> None:
    rated = Rated(principal_rate_per_s=1)
    with pytest.raises(PenstockError) as caught:
        rated.ask(need=Need(Verb.ADMIN))
    assert caught.value.status == 403
    assert rated.refused().status == 429


@pytest.mark.parametrize("name", ["address_bytes_per_s", "principal_bytes_per_s"])
def test_bytes_are_counted_by_the_announced_length(name: str) -> None:
    rated = Rated(**{name: 1000})
    rated.ask(size=600)
    error = rated.refused(size=600)
    assert (error.status, error.code) == (429, "byte-rate-limited")
    assert name in error.detail
    assert error.headers == {"Retry-After": "1"}
    rated.ask(size=400)
    rated.ask()  # A read has no body.
    rated.ask("two", "192.0.2.2", size=600)
    rated.clock.now += 1
    rated.ask(size=5000)
    rated.clock.now += 4
    assert rated.refused(size=1).status == 429
    rated.clock.now += 1
    rated.ask(size=1)


def test_a_body_that_is_too_large_is_not_charged() -> None:
    rated = Rated(address_bytes_per_s=1000, body_bytes_max=500)
    for _ in range(3):
        with pytest.raises(PenstockError) as caught:
            rated.ask(size=501)
        assert caught.value.status == 413
    rated.ask(size=500)


@on_loop
async def test_a_chunked_body_is_charged_when_it_is_there() -> None:
    async with serving(address_bytes_per_s=1000) as (server, _):
        assert (await server.ask(put("/v1/stream/a"))).status == 201
        assert (await server.ask(chunked_text("/v1/stream/a", b"x" * 5000))).status == 204
        answer = await server.ask(chunked_text("/v1/stream/a", b"x"))
        assert (answer.status, answer.headers["retry-after"]) in ((429, "4"), (429, "5"))
        assert json.loads(answer.body)["code"] == "byte-rate-limited"
        assert (await server.ask(get("/v1/stream/a"))).status == 200


@on_loop
async def test_a_cached_head_is_counted_like_any_other() -> None:
    async with serving(address_bytes_per_s=1000) as (server, _):
        assert (await server.ask(put("/v1/stream/a"))).status == 201
        client = await server.connect()
        small, large = (
            post("/v1/stream/a", b"x" * size, "Content-Type: text/plain") for size in (100, 9000)
        )
        statuses = [(await client.ask(each)).status for each in (small, small, large, small)]
        assert statuses == [204, 204, 429, 204]
        await asyncio.sleep(1)  # A full bucket lets the large one in, and is empty for 8 s then.
        statuses = [(await client.ask(each)).status for each in (large, small, large)]
        assert statuses == [204, 429, 429]


# -- connections


@on_loop
async def test_an_address_has_so_many_connections() -> None:
    async with native(connections_per_address_max=2) as server:
        first, second = await server.connect(), await server.connect()
        for client in (first, second):
            assert (await client.ask(get("/a"))).status == 200
        third = await server.connect()
        answer = await third.answer()
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        problem = json.loads(answer.body)
        assert problem["code"] == "too-many-connections"
        assert "connections_per_address_max" in problem["detail"]
        await third.close()
        assert (await first.ask(get("/a"))).status == 200
        await second.close()
        await until(lambda: len(server.table.connections) == 1)
        assert (await server.ask(get("/a"))).status == 200


@on_loop
async def test_a_flood_from_one_address_is_cut_without_an_answer() -> None:
    async with native(connections_per_address_max=1) as server:
        clients = [await server.connect() for _ in range(30)]
        answered = [bool(await client.rest()) for client in clients[1:]]
        assert sum(answered) == 8
        assert (await clients[0].ask(get("/a"))).status == 200


@on_loop
async def test_a_connection_counts_until_it_is_gone_whatever_it_has_become() -> None:
    async with serving(connections_per_address_max=1) as (server, _):
        client = await server.connect()
        assert (await client.ask(put("/v1/stream/a"))).status == 201
        await client.send(get("/v1/stream/a?offset=-1&live=sse"))
        assert (await client.head()).status == 200
        other = await server.connect()
        assert (await other.answer()).status == 429
        other.reset()
        client.reset()
        await until(lambda: not server.table.events)
        await until(lambda: not server.table.connections)
        assert server.table._per_address == {}
        assert server.table._addresses == {}
        assert (await server.ask(get("/v1/stream/a"))).status == 200


# -- live readers

LIVE = {"live_readers_max": 3, "live_readers_per_principal_max": 2, "long_poll_timeout_s": 30}
PATHS = {"auth_token": "root", "anonymous_allow": ("read:**", "create:**", "append:**")}


async def sse(client: Client, path: str = "a", **headers: str) -> FakeSink | PenstockError | int:
    target = f"/v1/stream/{path}?offset=-1&live=sse"
    response = await client.respond("GET", target, b"", **headers)
    if not isinstance(response.body, EventBody):
        return response.status
    sink = FakeSink(response)
    response.body.attach(sink)
    return sink


@with_app(**PATHS, live_readers_per_principal_max=2)
async def test_a_principal_has_so_many_live_readers(client: Client) -> None:
    await client.put("a", b"x", content_type="text/plain")
    first, second = await sse(client), await sse(client)
    answer = await client.get("a", "offset=-1&live=sse")
    assert (answer.status, answer.json()["code"]) == (429, "too-many-live-readers")
    assert "live_readers_per_principal_max" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "5"
    assert isinstance(await sse(client, authorization="Bearer root"), FakeSink)
    assert isinstance(first, FakeSink)
    first.body.detach()
    assert isinstance(await sse(client), FakeSink)
    assert isinstance(second, FakeSink)
    second.body.finish()
    assert isinstance(await sse(client), FakeSink)
    assert await sse(client) == 429


@with_app(**PATHS, live_readers_per_principal_max=1)
async def test_strangers_at_another_address_are_others(client: Client) -> None:
    await client.put("a", b"x", content_type="text/plain")
    sinks = [await sse(client)]
    request = make_request("GET", "/v1/stream/a?offset=-1&live=sse")
    request.sender = Sender("192.0.2.9")
    assert client.app.refuse(request) is None
    response = client.app.handle(request)
    assert isinstance(response, Response)
    assert response.status == 200
    assert await sse(client) == 429
    assert len(sinks) == 1


@with_app(live_readers_max=2)
async def test_a_server_has_so_many_live_readers(client: Client) -> None:
    await client.put("a", b"x", content_type="text/plain")
    sinks = [await sse(client), await sse(client)]
    answer = await client.get("a", "offset=-1&live=sse")
    assert (answer.status, answer.json()["code"]) == (503, "live-readers-full")
    assert "live_readers_max" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "5"
    assert (await client.get("a", "offset=-1")).status == 200
    assert isinstance(sinks[0], FakeSink)
    sinks[0].body.detach()
    assert isinstance(await sse(client), FakeSink)


@with_app(live_readers_max=2, live_readers_per_principal_max=2, **PATHS)
async def test_a_long_poll_counts_while_it_waits(client: Client) -> None:
    created = await client.put("a", b"x", content_type="text/plain")
    query = f"offset={created.offset}&live=long-poll"
    waiting = [asyncio.ensure_future(client.get("a", query)) for _ in range(2)]
    await until(lambda: client.app.traffic.long_polls == 2)
    assert (await client.get("a", query)).status == 503
    # What is there already is no live read.
    assert (await client.get("a", "offset=-1&live=long-poll")).status == 200
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    third = asyncio.ensure_future(client.get("a", query))
    await until(lambda: client.app.traffic.long_polls == 2)
    await client.post("a", b"y", content_type="text/plain")
    assert [(await each).status for each in (waiting[1], third)] == [200, 200]
    assert client.app.readers._waiting == 0
    assert client.app.readers.count(client.app.access.anonymous) == 0


@with_app(live_readers_max=1)
async def test_what_never_reaches_its_client_is_not_counted(client: Client) -> None:
    await client.put("a", b"x", content_type="text/plain")
    for method in ("GET", "HEAD", "GET"):
        response = await client.respond(method, "/v1/stream/a?offset=-1&live=sse")
        assert response.status == 200
        del response  # The client was gone before the head was sent.
    await table(client, "t")
    assert (await client.respond("HEAD", "/v1/table/t")).status == 200
    response = await client.respond("GET", "/v1/table/t")
    assert isinstance(response.body, EventBody)
    del response
    gc.collect()
    assert isinstance(await sse(client), FakeSink)


@on_loop
async def test_readers_that_reset_their_connection_are_not_counted_any_more() -> None:
    async with serving(live_readers_max=2) as (server, app):
        await server.ask(put("/v1/stream/a"))
        for _ in range(5):
            client = await server.connect()
            await client.send(get("/v1/stream/a?offset=-1&live=sse"))
            client.reset()
        await until(lambda: not server.table.events and len(server.table.connections) == 1)
        readers = [await server.connect() for _ in range(3)]
        statuses = []
        for client in readers:
            await client.send(get("/v1/stream/a?offset=-1&live=sse"))
            statuses.append((await client.head()).status)
        assert statuses == [200, 200, 503]
        assert app.readers.count(ROOT) == 2


@with_app(live_readers_max=1)
async def test_a_response_over_several_streams_is_one_live_read(client: Client) -> None:
    await client.put("a", b"x", content_type="text/plain")
    await client.put("b", b"x", content_type="text/plain")
    target = "/v1/streams/live?stream=a@now&stream=b@now"
    response = await client.respond("GET", target)
    assert isinstance(response.body, EventBody)
    sink = FakeSink(response)
    response.body.attach(sink)
    assert (await client.send("GET", target)).json()["code"] == "live-readers-full"
    response.body.detach()
    assert (await client.respond("GET", target)).status == 200


@on_loop
async def test_an_asgi_client_that_is_gone_before_the_head_is_not_counted() -> None:
    app = AsgiApp(Settings(memory=True, live_readers_max=1))
    await app.startup()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def ask(method: str, query: bytes = b"", *, gone: bool = False) -> int:
        sent.clear()

        async def send(message: Any) -> None:
            if gone:
                raise ConnectionResetError
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": "/v1/stream/a",
            "query_string": query,
            "headers": [(b"host", b"localhost"), (b"content-type", b"text/plain")],
            "client": ("127.0.0.1", 1),
        }
        try:
            await app(scope, receive, send)
        except ConnectionResetError:
            return 0
        status: int = sent[0]["status"]
        return status

    assert await ask("PUT") == 201
    live = b"offset=-1&live=sse"
    for _ in range(3):
        assert await ask("GET", live, gone=True) == 0
        assert await ask("GET", live) == 200  # It disconnects right after the head.
    await app.shutdown()


# -- helpers


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Native, App]]:
    """A native server over a real App in memory."""
    settings = Settings(memory=True, **options)
    engine = open_engine(settings)
    await engine.start()
    app = App(engine, settings)
    try:
        async with native(app, **options) as server:
            yield server, app
    finally:
        app.close()
        await engine.stop()


def put(path: str) -> bytes:
    return post(path, b"", "Content-Type: text/plain").replace(b"POST", b"PUT", 1)


def chunked_text(path: str, *chunks: bytes) -> bytes:
    return chunked(path, *chunks).replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n", 1)
