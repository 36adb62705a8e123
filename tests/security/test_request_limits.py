"""Nobody makes the server hold more bytes, or wait longer, than its settings say."""

from __future__ import annotations

import asyncio

import pytest

from tests.http.wire import Client, Native, chunked, get, native, on_loop, post, until


async def next_tick(server: Native) -> None:
    tick = server.table.now
    await until(lambda: server.table.now != tick)


async def send_until_answered(client: Client, pieces: int, piece: bytes) -> int:
    """Send pieces until the server has had enough; the status of its answer."""
    answer = asyncio.ensure_future(client.answer())
    try:
        for _ in range(pieces):
            if answer.done():
                break
            await client.send(piece)
    except OSError:
        pass
    return (await answer).status


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/" + "a" * 999), 200),
        (get("/" + "a" * 1000), 414),
        (get("/a?" + "q" * 1000), 414),
        (get("/", "X: " + "v" * 1900), 200),
        (get("/", "X: " + "v" * 2100), 431),
        (get("/", *(f"X-{n}: v" for n in range(49))), 200),
        (get("/", *(f"X-{n}: v" for n in range(50))), 431),
        (get("/", *["X: v"] * 200), 431),
        (post("/", b"x" * 5000), 200),
        (post("/", b"x" * 5001), 413),
        (chunked("/", b"x" * 2500, b"x" * 2500), 200),
        (chunked("/", b"x" * 2500, b"x" * 2501), 413),
    ],
    ids=lambda value: value if isinstance(value, int) else "",
)
@on_loop
async def test_limits_are_exact(request_bytes: bytes, status: int) -> None:
    async with native(
        request_line_bytes_max=1000, header_bytes_max=2000, header_count_max=50, body_bytes_max=5000
    ) as server:
        client = await server.connect()
        await client.send(request_bytes + get("/next"))
        answer = await client.answer()
        assert answer.status == status
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert await client.rest() == b""
        else:
            assert (await client.answer()).body == b"/next|"


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (b"GET /", b"a" * 1000, 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"v" * 1000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"n" * 1000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X: v\r\n" * 100, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"e" * 1000, 400),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"Trailer: v\r\n" * 100,
            400,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1;" + b"e" * 200 + b"\r\nx\r\n",
            400,
        ),
    ],
    ids=["line", "value", "name", "headers", "extension", "trailers", "extensions"],
)
@on_loop
async def test_endless_input_is_cut_off(start: bytes, piece: bytes, status: int) -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(start)
        assert await send_until_answered(client, 100_000, piece) == status
        assert server.app.requests == []


@on_loop
async def test_long_extension_in_one_packet_with_its_head_is_refused() -> None:
    async with native() as server:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await server.ask(head + b"3;" + b"e" * 100_000 + b"\r\nabc\r\n0\r\n\r\n")
        assert answer.status == 400
        assert server.app.requests == []


@on_loop
async def test_large_head_before_a_chunked_body_is_not_mistaken_for_an_extension() -> None:
    async with native() as server:
        request = chunked("/", b"abc").replace(b"Host:", b"X: " + b"v" * 15_000 + b"\r\nHost:")
        assert (await server.ask(request)).body == b"/|abc"


# Deadlines


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"G", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"v"),
        (post("/", bytes(10_000_000))[:-10_000_000], b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["nothing", "headers", "body", "chunks"],
)
@on_loop
async def test_drip_fed_request_gets_408(start: bytes, piece: bytes) -> None:
    async with native(header_timeout_s=0.1, body_timeout_s=0.1, header_bytes_max=1 << 30) as server:
        client = await server.connect()
        await client.send(start)
        answer = asyncio.ensure_future(client.answer())
        connection = next(iter(server.table.connections))
        await until(lambda: connection._phase)
        try:
            while piece and not answer.done():
                await client.send(piece)
                # One byte a tick of the sweep: progress alone buys no time.
                await next_tick(server)
        except OSError:
            pass
        assert (await answer).status == 408
        assert (await answer).headers["connection"] == "close"
        await client.close()
        await until(lambda: not server.table.connections)
        assert server.app.requests == []


@on_loop
async def test_connection_that_says_nothing_is_closed_without_an_answer() -> None:
    async with native(header_timeout_s=0.05) as server:
        client = await server.connect()
        assert await client.rest() == b""


@on_loop
async def test_client_that_lingers_after_its_error_is_cut() -> None:
    async with native() as server:
        server.table.linger_s = 0.02
        client = await server.connect()
        answer = await client.ask(b"nonsense\r\n\r\n")
        assert answer.status == 400
        await until(lambda: not server.table.connections)
