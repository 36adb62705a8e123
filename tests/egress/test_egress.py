"""Outbound requests over real sockets: what is sent, what is taken, and what is cut off."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trustme
import uvloop

from penstock.config.settings import Settings
from penstock.egress import HEAD_BYTES_MAX, Answer, Egress
from penstock.errors import EgressFailed, EgressRefused, InvalidUrl
from tests.egress.scripted import answer, scripted

Test = Callable[[], Awaitable[None]]


def runs(test: Test) -> Callable[[], None]:
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
            runner.run(asyncio.wait_for(test(), 20))

    run.__name__ = getattr(test, "__name__", "test")
    return run


def egress(**settings: Any) -> Egress:
    return Egress(Settings(**{"memory": True, "development": True, **settings}))


class Names:
    """A resolver with an answer for each call, the last one for all that follow."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> list[str]:
        self.asked.append((name, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@runs
async def test_a_request_is_sent_whole_and_its_answer_taken_whole() -> None:
    async with scripted(answer(b"hello", "X-One: 1", "X-One: 2", status=202)) as server:
        async with egress() as outbound:
            got = await outbound.request(
                "POST", server.url("/a?b=c"), headers={"X-Two": "3"}, body=b"body"
            )
        assert got == Answer(202, {"content-length": "5", "x-one": "1, 2"}, b"hello")
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0] == "POST /a?b=c HTTP/1.1"
        assert f"host: 127.0.0.1:{server.port}" in lines
        assert {"x-two: 3", "connection: close", "content-length: 4"} < set(lines)
        assert body == b"body"


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n",
          b"2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"], b"abcde"),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil the ", b"end"], b"until the end"),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabcdefgh"], b"abc"),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", answer(b"late")], b"late"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
        ([bytes([byte]) for byte in answer(b"drip")], b"drip"),
    ],
)  # fmt: skip
def test_every_framing_of_an_answer_is_understood(parts: list[bytes], body: bytes) -> None:
    @runs
    async def run() -> None:
        async with scripted(*parts) as server:
            got = await egress().request("GET", server.url())
            assert got.body == body
            assert "link" not in got.headers
            assert "x-trailer" not in got.headers

    run()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "before a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "before a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "within a response"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "within a response"),
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "gzip"),
    ],
)
def test_an_answer_that_cannot_be_used_fails_with_the_reason(answer: bytes, reason: str) -> None:
    @runs
    async def run() -> None:
        async with scripted(answer) as server:
            outbound = egress()
            with pytest.raises(EgressFailed, match=reason):
                await outbound.request("GET", server.url())
            assert (outbound.requests, outbound.failures) == (1, 1)

    run()


@runs
async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with scripted(answer(b"secret")) as inner:
        moved = answer(b"", f"Location: {inner.url()}", status=302)
        async with scripted(moved) as server:
            got = await egress().request("GET", server.url())
        assert (got.status, got.body) == (302, b"")
        assert not got.is_success
        assert inner.requests == []


@runs
async def test_the_checked_address_is_the_one_connected_to() -> None:
    """A resolver that turns inwards after the check finds nobody who asks it again."""
    async with scripted(answer(b"ok")) as server:
        names = Names(["127.0.0.1"], ["169.254.169.254"])
        outbound = Egress(Settings(memory=True, development=True), resolver=names)
        got = await outbound.request("GET", server.url(host="turning.example"))
        assert got.body == b"ok"
        assert names.asked == [("turning.example", server.port)]
        assert f"host: turning.example:{server.port}".encode() in server.requests[0]
        # Asked again for the next request, and its new answer is judged anew.
        with pytest.raises(EgressRefused, match=r"169\.254\.169\.254"):
            await outbound.request("GET", server.url(host="turning.example"))
        assert len(server.requests) == 1
        assert outbound.refused == 1


@runs
async def test_one_refused_address_among_several_refuses_the_name() -> None:
    async with scripted(answer(b"ok")) as server:
        names = Names(["127.0.0.1", "10.0.0.1"])
        outbound = Egress(Settings(memory=True, development=True), resolver=names)
        with pytest.raises(EgressRefused):
            await outbound.request("GET", server.url(host="both.example"))
        assert server.requests == []


@runs
async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with scripted(answer(b"ok")) as server:
        names = Names(["127.0.0.2", "127.0.0.1"])  # nobody listens on the first
        outbound = Egress(Settings(memory=True, development=True), resolver=names)
        assert (await outbound.request("GET", server.url(host="two.example"))).body == b"ok"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_loopback_is_refused_without_the_development_flag(host: str) -> None:
    @runs
    async def run() -> None:
        async with scripted(answer(b"ok")) as server:
            for scheme in ("http", "https"):
                with pytest.raises(EgressRefused):
                    await egress(development=False).request(
                        "GET", f"{scheme}://{host}:{server.port}/"
                    )
            assert server.requests == []

    run()


@runs
async def test_names_that_cannot_be_resolved_fail() -> None:
    async def nobody(name: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    settings = Settings(memory=True)
    with pytest.raises(EgressFailed, match="not known"):
        await Egress(settings, resolver=nobody).request("GET", "https://nowhere.example/")
    with pytest.raises(EgressFailed, match="no address"):
        await Egress(settings, resolver=Names([])).request("GET", "https://nowhere.example/")
    with pytest.raises(EgressFailed, match="no address"):
        await Egress(settings, resolver=Names(["x"])).request("GET", "https://nowhere.example/")
    with pytest.raises(InvalidUrl):
        await Egress(settings).request("GET", "https://user@nowhere.example/")


@runs
async def test_tls_is_spoken_in_the_name_of_the_host_and_its_certificate_checked() -> None:
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("good.example").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    settings = Settings(memory=True, egress_networks=("127.0.0.0/8",))
    names = Names(["127.0.0.1"])
    async with scripted(answer(b"safe"), certificates=serving) as server:
        trusted = Egress(settings, resolver=names, certificates=trusting)
        got = await trusted.request("GET", server.url(host="good.example"))
        assert got.body == b"safe"
        assert server.names == ["good.example"]
        with pytest.raises(EgressFailed, match="certificate is not valid"):
            await trusted.request("GET", server.url(host="other.example"))
        with pytest.raises(EgressFailed, match="certificate is not valid"):
            await Egress(settings, resolver=names).request("GET", server.url(host="good.example"))
        with pytest.raises(EgressRefused, match="plain http"):
            await trusted.request("GET", f"http://good.example:{server.port}/")
        assert len(server.requests) == 1


@runs
async def test_a_server_that_never_answers_is_given_up() -> None:
    async with scripted(holds=True) as server:
        with pytest.raises(EgressFailed, match="too long"):
            await egress(egress_timeout_s=0.05).request("GET", server.url())
        await server.closed.wait()


@runs
async def test_a_server_that_drips_is_given_up_at_the_same_time() -> None:
    """Each byte is a sign of life, but the whole has a deadline."""
    forever = asyncio.Event()
    drip: list[bytes | asyncio.Event] = [b"HTTP/1.1 200 OK\r\n", *[b"x"] * 50, forever]
    async with scripted(*drip) as server:
        with pytest.raises(EgressFailed, match="too long"):
            await egress().request("GET", server.url(), timeout_s=0.05)
        forever.set()


@runs
async def test_an_answer_beyond_the_limit_is_not_read_on() -> None:
    async with scripted(answer(b"x" * 1001), holds=True) as server:
        with pytest.raises(EgressFailed, match="more than 1000 bytes"):
            await egress(egress_answer_bytes_max=1000).request("GET", server.url())
        await server.closed.wait()
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001
    async with scripted(endless, holds=True) as server:
        with pytest.raises(EgressFailed, match="more than 1000 bytes"):
            await egress().request("GET", server.url(), bytes_max=1000)
        await server.closed.wait()


@runs
async def test_an_endless_head_is_not_read_on() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (HEAD_BYTES_MAX + 1)
    async with scripted(head, holds=True) as server:
        with pytest.raises(EgressFailed, match="head of a response"):
            await egress().request("GET", server.url())
        await server.closed.wait()


@runs
async def test_a_streamed_answer_is_given_as_it_arrives() -> None:
    more = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    async with (
        scripted(head, b"3\r\none\r\n", more, b"3\r\ntwo\r\n0\r\n\r\n") as server,
        egress().stream(server.url(), headers={"Accept": "text/sequence"}) as streamed,
    ):
        assert (streamed.status, streamed.headers["x-a"]) == (200, "b")
        assert await anext(streamed.pieces) == b"one"
        more.set()
        assert [piece async for piece in streamed.pieces] == [b"two"]
        assert b"accept: text/sequence" in server.requests[0]


@runs
async def test_a_streamed_answer_that_is_cut_off_gives_what_came_and_then_fails() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
    got: list[bytes] = []

    async def take(pieces: AsyncIterator[bytes]) -> None:
        async for piece in pieces:
            got.append(piece)  # noqa: PERF401 - kept although the loop ends with an error

    async with scripted(head) as server, egress().stream(server.url()) as streamed:
        with pytest.raises(EgressFailed, match="within a response"):
            await take(streamed.pieces)
    assert got == [b"one"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"egress_idle_timeout_s": 0.05}, "too long"),
        ({"egress_stream_timeout_s": 0.05}, "too long"),
        ({"egress_stream_bytes_max": 2}, "more than 2 bytes"),
    ],
)
def test_a_streamed_answer_is_bounded(settings: dict[str, Any], reason: str) -> None:
    @runs
    async def run() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\n\r\none", holds=True) as server:
            async with egress(**settings).stream(server.url()) as streamed:
                with pytest.raises(EgressFailed, match=reason):
                    [_ async for _ in streamed.pieces]
            await server.closed.wait()

    run()


@runs
async def test_leaving_a_streamed_answer_closes_its_connection() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\n\r\none", holds=True) as server:
        async with egress().stream(server.url()):
            pass
        await server.closed.wait()


@runs
async def test_requests_beyond_the_limit_wait_their_turn() -> None:
    first = asyncio.Event()
    async with scripted(first, answer(b"ok"), holds=True) as server:
        outbound = egress(egress_connections_max=1)
        waiting = [asyncio.create_task(outbound.request("GET", server.url())) for _ in range(3)]
        while not server.requests:
            await asyncio.sleep(0)
        assert len(server.requests) == 1
        first.set()
        assert [got.body for got in await asyncio.gather(*waiting)] == [b"ok"] * 3


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0"])
def test_a_header_cannot_smuggle_another(value: str) -> None:
    @runs
    async def run() -> None:
        async with scripted(answer()) as server:
            with pytest.raises(ValueError, match="header"):
                await egress().request("GET", server.url(), headers={"X-A": value})
            assert server.requests == []

    run()
