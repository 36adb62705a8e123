"""A head that comes again is not parsed again, and means exactly what it meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.access.principal import ROOT
from penstock.http.message import Request, Response
from penstock.http.native import head_cache
from penstock.http.native.request_head import NativeRequest
from penstock.http.route_stats import RouteStats
from tests.http.wire import FakeApp, Native, chunked, get, native, on_loop, post, until


class Counting(head_cache.HeadCache):
    """Counts the requests that did not need the parser."""

    __slots__ = ("matched",)

    def __init__(self) -> None:
        super().__init__(line_bytes_max=8192)
        self.matched = 0

    def match(self, data: bytes) -> NativeRequest | None:
        request = super().match(data)
        self.matched += request is not None
        return request


STATS = RouteStats("POST", "/{path}")


class Forgetful(Counting):
    __slots__ = ()

    def add(self, data: bytes, request: NativeRequest | None, *, is_shared: bool = True) -> None:
        pass

    def add_head(self, data: bytes, request: NativeRequest) -> None:
        pass


class RoutedApp(FakeApp):
    """Finds a route for what it lets in, as the real one does."""

    def refuse(self, head: Request) -> Response | None:
        head.route = ("handler", head.path, STATS)
        head.principal = ROOT
        return super().refuse(head)


@asynccontextmanager
async def counting(app: FakeApp | None = None, **settings: Any) -> AsyncIterator[Native]:
    async with native(app or RoutedApp(), **settings) as server:
        server.table.heads = Counting()
        yield server


@on_loop
async def test_a_repeated_head_is_parsed_once_for_all_connections() -> None:
    async with counting() as server:
        for body in (b"one", b"two", b"six"):
            client = await server.connect()
            assert (await client.ask(post("/a?q=1", body, "X-A: b"))).body == b"/a|" + body
            assert (await client.ask(post("/a?q=1", body, "X-A: b"))).body == b"/a|" + body
        assert server.table.heads.matched == 5
        assert len(server.app.heads) == 1  # what was let in once is not asked again
        first, *others = server.app.requests
        for request in others:
            assert request is not first
            assert (request.method, request.path, request.query) == ("POST", b"/a", b"q=1")
            assert (request.headers, request.peer) == (first.headers, "127.0.0.1")
            assert request.route == ("handler", b"/a", STATS)


@on_loop
async def test_repeated_headers_are_parsed_once_whatever_the_path() -> None:
    async with counting() as server:
        client = await server.connect()
        for n, line in enumerate(("/a", "/b%2F", "/c/d?offset=-1", "/e?", "/f?a=b&c?/")):
            body = b"%d" % n
            await client.ask(post(line, body, "X-A: b"))
        assert server.table.heads.matched == 4
        assert len(server.app.heads) == 5  # every new head is looked at
        seen = [(r.method, r.path, r.query) for r in server.app.requests]
        assert seen == [
            ("POST", b"/a", b""),
            ("POST", b"/b%2F", b""),
            ("POST", b"/c/d", b"offset=-1"),
            ("POST", b"/e", b""),
            ("POST", b"/f", b"a=b&c?/"),
        ]
        assert (await client.ask(get("/a"))).body == b"/a|"
        assert (await client.ask(get("/b"))).body == b"/b|"
        assert server.table.heads.matched == 5


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /a#b HTTP/1.1", 400),
        ("GET http://test/a HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET /a HTTP/1.1 ", 400),
        ("GET /a HTTP/2.0", 400),
        ("get /a HTTP/1.1", 400),
        ("GET /a\x7f HTTP/1.1", 400),
        ("GET /" + "a" * 20000 + " HTTP/1.1", 414),
    ],
)
@on_loop
async def test_known_headers_do_not_let_a_bad_line_in(line: str, status: int) -> None:
    async with counting() as server:
        client = await server.connect()
        await client.ask(get("/a"))
        assert (await client.ask(f"{line}\r\nHost: localhost\r\n\r\n".encode())).status == status
        assert server.table.heads.matched == 0


@on_loop
async def test_a_known_head_with_less_or_more_behind_it_goes_through_the_parser() -> None:
    request = post("/a", b"abc")
    async with counting() as server:
        client = await server.connect()
        await client.ask(request)
        await client.send(request[:-2])
        await until(lambda: any(each._parser.phase for each in server.table.connections))
        assert (await client.ask(request[-2:])).body == b"/a|abc"
        answer = await client.ask(request + request)
        assert [answer.body, (await client.answer()).body] == [b"/a|abc"] * 2
        assert (await client.ask(b"\r\n\r\n" + request)).body == b"/a|abc"
        assert server.table.heads.matched == 0
        assert (await client.ask(request)).body == b"/a|abc"
        assert server.table.heads.matched == 1


@on_loop
async def test_headers_after_an_empty_line_do_not_become_the_headers_of_another_line() -> None:
    async with counting() as server:
        client = await server.connect()
        assert (await client.ask(b"\r\n" + get("/a"))).status == 200
        answer = await client.ask(b"DELETE /b HTTP/1.1\r\n" + get("/a"))
        assert answer.status == 400
        assert [request.method for request in server.app.requests] == ["GET"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        chunked("/a", b"abc"),
        post("/a", b"abc", "Expect: 100-continue"),
        post("/a", b"abc", "Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 0"),
        post("/a", b"abc", "Stream-Seq: 1"),
        post("/a", b"abc", 'If-Match: "1"'),
        post("/a", b"abc", "X: " + "y" * head_cache.HEAD_BYTES_MAX),
    ],
)
@on_loop
async def test_heads_that_do_not_come_again_are_not_kept(request_bytes: bytes) -> None:
    async with counting() as server:
        client = await server.connect()
        for _ in range(2):
            assert (await client.ask(request_bytes)).body == b"/a|abc"
        assert server.table.heads.matched == 0


@on_loop
async def test_connection_close_is_never_kept() -> None:
    async with counting() as server:
        for _ in range(2):
            client = await server.connect()
            await client.send(get("/a", "Connection: close"))
            assert b"connection: close" in await client.rest()
        assert server.table.heads.matched == 0


@on_loop
async def test_a_refusal_is_decided_every_time() -> None:
    app = RoutedApp()
    app.refusals[b"/a"] = Response(401)
    async with counting(app) as server:
        client = await server.connect()
        assert (await client.ask(post("/a", b"abc"))).status == 401
        app.refusals.clear()
        assert (await client.ask(post("/a", b"abc"))).status == 200
        app.refusals[b"/b"] = Response(401)
        assert (await client.ask(post("/b", b"abc"))).status == 401
        assert (await client.ask(post("/b", b"abc"))).status == 401


@on_loop
async def test_with_a_rate_limit_every_request_is_counted() -> None:
    app = RoutedApp()
    async with counting(app, rate_limit_per_s=5) as server:
        client = await server.connect()
        assert (await client.ask(post("/a", b"abc"))).status == 200
        app.refusals[b"/a"] = Response(429)
        assert (await client.ask(post("/a", b"abc"))).status == 429
        assert server.table.heads.matched == 1
        assert (len(app.heads), len(app.requests)) == (2, 1)


@on_loop
async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_cache, "ENTRIES_MAX", 8)
    monkeypatch.setattr(head_cache, "MISSES_MAX", 16)
    async with counting() as server:
        client = await server.connect()
        for n in range(30):
            assert (await client.ask(get(f"/{n}", f"X: {n}"))).body == f"/{n}|".encode()
            assert len(server.table.heads._heads) <= 8
            assert len(server.table.heads._blocks) <= 8
        assert len(server.app.heads) == 30
        for _ in range(20):  # new ones find their way in, in time
            await client.ask(get("/new"))
        assert len(server.app.heads) < 50


PIECES = st.sampled_from(
    [
        (post("/a", b"abc"), 1),
        (post("/a", b"xyz"), 1),
        (post("/a", b"abcd"), 1),
        (post("/a", post("/b", b"")), 1),  # a body that looks like a request
        (post("/b", b""), 1),
        (get("/a"), 1),
        (post("/a", b"abc", "Upgrade: h2c", "Connection: Upgrade", "HTTP2-Settings: AAA"), 1),
        (chunked("/a", b"abc", b"de"), 1),
        (b"\r\n", 0),
    ]
)


@settings(max_examples=20)
@given(st.lists(st.lists(PIECES, min_size=1, max_size=3), max_size=12))
def test_any_input_means_the_same_with_and_without_memory(
    sends: list[list[tuple[bytes, int]]],
) -> None:
    def seen(*, remember: bool) -> list[tuple[str, bytes, bytes]]:
        app = RoutedApp()

        @on_loop
        async def run() -> None:
            async with native(app) as server:
                if not remember:
                    server.table.heads = Forgetful()
                client = await server.connect()
                for pieces in sends:
                    await client.send(b"".join(data for data, _ in pieces))
                    for _ in range(sum(answers for _, answers in pieces)):
                        assert (await client.answer()).status == 200

        run()
        return [(r.method, r.path, body) for r, body in zip(app.requests, app.bodies, strict=True)]

    assert seen(remember=True) == seen(remember=False)
