"""Requests that two servers could read differently are refused, and the connection is closed."""

from __future__ import annotations

import pytest

from tests.http.wire import chunked, get, native, on_loop

NEXT = get("/smuggled")


def raw(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([*lines, b"", b""]) + body


POST = b"POST / HTTP/1.1"
TEST = b"Host: localhost"
CHUNKED = b"Transfer-Encoding: chunked"

REFUSED = {
    # Where does the body end?
    "length and chunked": raw(POST, TEST, b"Content-Length: 3", CHUNKED, body=b"0\r\n\r\n"),
    "chunked and length": raw(POST, TEST, CHUNKED, b"Content-Length: 3", body=b"0\r\n\r\n"),
    "two lengths": raw(POST, TEST, b"Content-Length: 3", b"Content-Length: 4", body=b"abc"),
    "same length twice": raw(POST, TEST, b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "length list": raw(POST, TEST, b"Content-Length: 3, 3", body=b"abc"),
    "signed length": raw(POST, TEST, b"Content-Length: +3", body=b"abc"),
    "negative length": raw(POST, TEST, b"Content-Length: -1", body=b"abc"),
    "hex length": raw(POST, TEST, b"Content-Length: 0x3", body=b"abc"),
    "empty length": raw(POST, TEST, b"Content-Length:", body=b"abc"),
    "huge length": raw(POST, TEST, b"Content-Length: " + b"9" * 30),
    "gzip, chunked": raw(POST, TEST, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunked, identity": raw(POST, TEST, b"Transfer-Encoding: chunked, identity"),
    "chunked twice": raw(POST, TEST, CHUNKED, CHUNKED, body=b"0\r\n\r\n"),
    "xchunked": raw(POST, TEST, b"Transfer-Encoding: xchunked"),
    "identity": raw(POST, TEST, b"Transfer-Encoding: identity", b"Content-Length: 0"),
    "tab before chunked": raw(POST, TEST, b"Transfer-Encoding:\x0bchunked"),
    "no coding": raw(POST, TEST, b"Transfer-Encoding:"),
    "chunked in 1.0": raw(b"POST / HTTP/1.0", TEST, CHUNKED, body=b"0\r\n\r\n"),
    "space before colon": raw(POST, TEST, b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "folded header": raw(POST, TEST, b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n"),
    "bare LF": b"POST / HTTP/1.1\nHost: localhost\n\n",
    "bare LF in a header": b"GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "NUL in a header": raw(b"GET / HTTP/1.1", TEST, b"X: a\0b"),
    "control character in a header": raw(b"GET / HTTP/1.1", TEST, b"X: a\x01b"),
    "chunk size with a sign": raw(POST, TEST, CHUNKED, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "chunk size in 0x form": raw(POST, TEST, CHUNKED, body=b"0x3\r\nabc\r\n0\r\n\r\n"),
    "chunk size overflow": raw(POST, TEST, CHUNKED, body=b"f" * 17 + b"\r\nabc"),
    "chunk size with a bare LF": raw(POST, TEST, CHUNKED, body=b"3\nabc\r\n0\r\n\r\n"),
    "chunk longer than said": raw(POST, TEST, CHUNKED, body=b"2\r\nabc\r\n0\r\n\r\n"),
    # Whom is it for?
    "no host": raw(b"GET / HTTP/1.1"),
    "two hosts": raw(b"GET / HTTP/1.1", TEST, b"Host: other"),
    "same host twice": raw(b"GET / HTTP/1.1", TEST, TEST),
    "two hosts in 1.0": raw(b"GET / HTTP/1.0", TEST, b"Host: other"),
    "empty host": raw(b"GET / HTTP/1.1", b"Host:"),
    "host with a path": raw(b"GET / HTTP/1.1", b"Host: a/b"),
    "host list": raw(b"GET / HTTP/1.1", b"Host: a, b"),
    "host with a user": raw(b"GET / HTTP/1.1", b"Host: user@a"),
    "host with a space": raw(b"GET / HTTP/1.1", b"Host: a b"),
    # Is it HTTP/1.1 at all?
    "0.9 without version": b"GET /\r\n\r\n",
    "0.9": raw(b"GET / HTTP/0.9", TEST),
    "2.0": raw(b"GET / HTTP/2.0", TEST),
    "2.0 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "1.2": raw(b"GET / HTTP/1.2", TEST),
    "lower-case method": raw(b"get / HTTP/1.1", TEST),
    "unknown method": raw(b"FOO / HTTP/1.1", TEST),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "absolute URL": raw(b"GET http://test/ HTTP/1.1", TEST),
    "authority": raw(b"CONNECT test:80 HTTP/1.1", TEST),
    "tunnel to a path": raw(b"CONNECT /a HTTP/1.1", TEST),
    "tunnel with a body": raw(b"CONNECT /a HTTP/1.1", TEST, b"Content-Length: 1", body=b"x"),
    "fragment": raw(b"GET /a#b HTTP/1.1", TEST),
    "asterisk": raw(b"GET * HTTP/1.1", TEST),
    "NUL in the path": raw(b"GET /a\0b HTTP/1.1", TEST),
    "bytes above 127 in the path": raw(b"GET /\xc3\xa9 HTTP/1.1", TEST),
    "space in the path": raw(b"GET /a b HTTP/1.1", TEST),
    "two spaces before the path": raw(b"GET  / HTTP/1.1", TEST),
    "two spaces after the path": raw(b"GET /  HTTP/1.1", TEST),
    "space before the method": raw(b" GET / HTTP/1.1", TEST),
    "tab for a space": raw(b"GET\t/ HTTP/1.1", TEST),
    "space after the version": raw(b"GET / HTTP/1.1 ", TEST),
    "another protocol": raw(b"GET / RTSP/1.0", TEST),
    "yet another protocol": raw(b"SOURCE / ICE/1.0", TEST),
}


@pytest.mark.parametrize("name", REFUSED)
@on_loop
async def test_ambiguous_request_is_refused_and_nothing_after_it_runs(name: str) -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(REFUSED[name] + NEXT)
        client.writer.write_eof()
        answer = await client.answer()
        assert answer.status == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert await client.rest() == b""
        assert server.app.requests == []


@pytest.mark.parametrize("name", REFUSED)
@on_loop
async def test_it_is_refused_the_same_when_it_comes_byte_by_byte(name: str) -> None:
    async with native() as server:
        client = await server.connect()
        try:
            for byte in REFUSED[name] + NEXT:
                await client.send(bytes([byte]))
            client.writer.write_eof()
        except OSError:
            pass  # already refused
        assert (await client.answer()).status == 400
        assert server.app.requests == []


@on_loop
async def test_answers_before_a_bad_request_are_still_given() -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(get("/a") + get("/b") + REFUSED["two lengths"])
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "first", [get("/a"), chunked("/a", b"\n0\r\n\r\n", b"GET / HTTP/1.1\r\n", trailers="X: y\r\n")]
)
@on_loop
async def test_the_line_of_a_pipelined_request_is_checked_too(first: bytes) -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(first + b"\r\n" + REFUSED["two spaces before the path"])
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]
        assert await client.rest() == b""


@pytest.mark.parametrize("host", ["a", "a.b:80", "127.0.0.1:4437", "[::1]:80", "a_b.c", "a:"])
@on_loop
async def test_proper_hosts_are_accepted(host: str) -> None:
    async with native() as server:
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert (await server.ask(request)).status == 200


@on_loop
async def test_http_1_0_needs_no_host_and_options_may_ask_about_everything() -> None:
    async with native() as server:
        assert (await server.ask(b"GET / HTTP/1.0\r\n\r\n")).status == 200
        assert (await server.ask(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200


@on_loop
async def test_trailers_are_dropped() -> None:
    async with native() as server:
        client = await server.connect()
        trailers = "Stream-Closed: true\r\nHost: other\r\nHost: third\r\n"
        await client.send(chunked("/a", b"abc", trailers=trailers) + get("/b", "X-Own: 1"))
        assert (await client.answer()).body == b"/a|abc"
        assert (await client.answer()).body == b"/b|"
    first, second = server.app.requests
    assert first.headers == {b"host": b"localhost", b"transfer-encoding": b"chunked"}
    assert second.headers == {b"host": b"localhost", b"x-own": b"1"}


UPGRADES = {
    "curl": ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"],
    "websocket": ["Connection: keep-alive, Upgrade", "Upgrade: websocket"],
}


@pytest.mark.parametrize("cut", [None, 1, 30])
@pytest.mark.parametrize("name", UPGRADES)
@on_loop
async def test_request_that_asks_for_an_upgrade_keeps_its_body(name: str, cut: int | None) -> None:
    lines = ["POST /up HTTP/1.1", "Host: localhost", *UPGRADES[name], "X-Own: 1"]
    request = "\r\n".join([*lines, "Content-Length: 3", "", "abc"]).encode() + get("/next")
    async with native() as server:
        client = await server.connect()
        for at in range(0, len(request), cut or len(request)):
            await client.send(request[at : at + (cut or len(request))])
        assert (await client.answer()).body == b"/up|abc"
        assert (await client.answer()).body == b"/next|"
    assert [head.path for head in server.app.heads] == [b"/up", b"/next"]
    assert server.app.requests[0].headers[b"x-own"] == b"1"
    assert b"upgrade" not in server.app.requests[0].headers


@on_loop
async def test_many_pipelined_upgrades_are_all_answered() -> None:
    one = get("/up", "Connection: Upgrade", "Upgrade: h2c")
    async with native() as server:
        client = await server.connect()
        client.writer.write(one * 2000)
        for _ in range(2000):
            assert (await client.answer()).body == b"/up|"


@on_loop
async def test_upgrade_hides_no_smuggling() -> None:
    upgrade = ["Connection: Upgrade", "Upgrade: h2c"]
    bad = [b"Content-Length: 3", CHUNKED, b"Host: localhost"]
    for extra in (bad[:2], bad[2:], [b"Transfer-Encoding: gzip, chunked"]):
        request = get("/up", *upgrade).removesuffix(b"\r\n")
        async with native() as server:
            client = await server.connect()
            answer = await client.ask(request + b"\r\n".join([*extra, b"", b"abc"]))
            assert answer.status == 400
            assert server.app.requests == []
