"""A head that comes again is not parsed again, and means exactly what it meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http import heads
from penstock.http.head import Received
from penstock.http.message import Response
from tests.http.wire import FakeApp, Native, chunked, get, native, on_loop, post, until


def parsed(server: Native) -> int:
    """How many requests went through the parser: only those are shown to `refuse`."""
    return len(server.app.heads)


@on_loop
async def test_a_repeated_head_is_parsed_once_for_all_connections() -> None:
    async with native() as server:
        for body in (b"one", b"two", b"six"):
            client = await server.connect()
            assert (await client.ask(post("/a?q=1", body, "X-A: b"))).body == b"/a|" + body
            assert (await client.ask(post("/a?q=1", body, "X-A: b"))).body == b"/a|" + body
        assert parsed(server) == 1
        first, *others = server.app.requests
        for request in others:
            assert request is not first
            assert (request.method, request.path, request.query) == ("POST", b"/a", b"q=1")
            assert (request.headers, request.peer) == (first.headers, "127.0.0.1")


@on_loop
async def test_a_get_without_a_body_is_remembered_too() -> None:
    async with native() as server:
        client = await server.connect()
        for _ in range(3):
            assert (await client.ask(get("/a"))).body == b"/a|"
        assert parsed(server) == 1


@on_loop
async def test_a_known_head_with_less_or_more_behind_it_goes_through_the_parser() -> None:
    request = post("/a", b"abc")
    async with native() as server:
        client = await server.connect()
        await client.ask(request)
        await client.send(request[:-2])
        await until(lambda: any(each._reader.phase for each in server.hub.connections))
        assert (await client.ask(request[-2:])).body == b"/a|abc"
        assert parsed(server) == 2
        answer = await client.ask(request + request)
        assert [answer.body, (await client.answer()).body] == [b"/a|abc"] * 2
        assert parsed(server) == 4
        assert (await client.ask(b"\r\n\r\n" + request)).body == b"/a|abc"
        assert parsed(server) == 5
        assert (await client.ask(request)).body == b"/a|abc"
        assert parsed(server) == 5


@pytest.mark.parametrize(
    "request_bytes",
    [
        chunked("/a", b"abc"),
        post("/a", b"abc", "Expect: 100-continue"),
        post("/a", b"abc", "Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 0"),
        post("/a", b"abc", "Stream-Seq: 1"),
        post("/a", b"abc", 'If-Match: "1"'),
        post("/a", b"abc", "X: " + "y" * heads.HEAD_BYTES_MAX),
    ],
)
@on_loop
async def test_heads_that_do_not_come_again_are_not_kept(request_bytes: bytes) -> None:
    async with native() as server:
        client = await server.connect()
        for _ in range(2):
            assert (await client.ask(request_bytes)).body == b"/a|abc"
        assert parsed(server) == 2


@on_loop
async def test_connection_close_is_never_kept() -> None:
    async with native() as server:
        for _ in range(2):
            client = await server.connect()
            await client.send(get("/a", "Connection: close"))
            assert b"connection: close" in await client.rest()
        assert parsed(server) == 2


@on_loop
async def test_a_refusal_is_decided_every_time() -> None:
    app = FakeApp()
    app.refusals[b"/a"] = Response(401)
    async with native(app) as server:
        client = await server.connect()
        assert (await client.ask(post("/a", b"abc"))).status == 401
        app.refusals.clear()
        assert (await client.ask(post("/a", b"abc"))).status == 200


@on_loop
async def test_with_a_rate_limit_every_request_is_counted() -> None:
    app = FakeApp()
    async with native(app, rate_limit_per_s=5) as server:
        client = await server.connect()
        assert (await client.ask(post("/a", b"abc"))).status == 200
        app.refusals[b"/a"] = Response(429)
        assert (await client.ask(post("/a", b"abc"))).status == 429
        assert (parsed(server), len(app.requests)) == (2, 1)


@on_loop
async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEADS_MAX", 8)
    async with native() as server:
        client = await server.connect()
        for n in range(30):
            assert (await client.ask(get(f"/{n}"))).body == f"/{n}|".encode()
            assert len(server.hub.heads._known) <= 8


class Forgetful(heads.Heads):
    def keep(self, data: bytes, request: Received | None) -> None:
        pass


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


@settings(max_examples=40)
@given(st.lists(st.lists(PIECES, min_size=1, max_size=3), max_size=12))
def test_any_input_means_the_same_with_and_without_memory(
    sends: list[list[tuple[bytes, int]]],
) -> None:
    def seen(*, remember: bool) -> list[tuple[str, bytes, bytes]]:
        app = FakeApp()

        @on_loop
        async def run() -> None:
            async with native(app) as server:
                if not remember:
                    server.hub.heads = Forgetful()
                client = await server.connect()
                for pieces in sends:
                    await client.send(b"".join(data for data, _ in pieces))
                    for _ in range(sum(answers for _, answers in pieces)):
                        assert (await client.answer()).status == 200

        run()
        return [(r.method, r.path, body) for r, body in zip(app.requests, app.bodies, strict=True)]

    assert seen(remember=True) == seen(remember=False)
