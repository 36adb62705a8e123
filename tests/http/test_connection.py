"""The native connection: requests in order, bodies, keep-alive, answers of every kind."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest

from penstock.errors import DiskFull, Overloaded
from penstock.http.message import Later, RangeBody, Request, Response
from penstock.http.native import unsent
from penstock.http.native.connection import _TURN_REQUESTS
from penstock.http.native.request_parser import CHUNKS_PER_CALL, SLICE_BYTES, RequestParser
from penstock.http.native.response_encoder import ResponseEncoder, chunk
from penstock.http.problems import problem
from tests.http import wire
from tests.http.wire import Events, FakeApp, chunked, get, native, on_loop, post, until


@on_loop
async def test_answer_carries_length_date_and_the_fixed_headers() -> None:
    async with native() as server:
        answer = await server.ask(get("/a?x=%20"))
    assert (answer.status, answer.body) == (200, b"/a|")
    assert answer.headers["content-length"] == "3"
    assert answer.headers["date"].endswith("GMT")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@on_loop
async def test_request_value_is_raw_and_headers_are_joined() -> None:
    async with native() as server:
        await server.ask(get("/a%2Fb//c?q=%41&z", "X-One: 1", "x-one: 2  ", "X-Tab:\tv\t"))
    request = server.app.requests[0]
    assert (request.method, request.path, request.query) == ("GET", b"/a%2Fb//c", b"q=%41&z")
    assert request.headers == {b"host": b"localhost", b"x-one": b"1, 2", b"x-tab": b"v"}
    assert request.peer == "127.0.0.1"
    assert server.app.heads == [request]


@on_loop
async def test_one_connection_serves_many_requests() -> None:
    async with native() as server:
        client = await server.connect()
        for n in range(5):
            answer = await client.ask(post(f"/{n}", b"x" * n))
            assert answer.body == f"/{n}|".encode() + b"x" * n
            assert "connection" not in answer.headers


@on_loop
async def test_head_that_does_not_know_the_length_does_not_say_zero() -> None:
    async with native() as server:
        server.app.routes[b"/a"] = lambda _: Response(200)
        client = await server.connect()
        head = await client.ask(get("/a").replace(b"GET", b"HEAD"), body=False)
        assert (head.status, "content-length" in head.headers) == (200, False)
        assert (await client.ask(get("/b"))).body == b"/b|"


@on_loop
async def test_head_has_the_length_of_get_and_no_body() -> None:
    async with native() as server:
        client = await server.connect()
        answer = await client.ask(get("/abc").replace(b"GET", b"HEAD"), body=False)
        assert answer.headers["content-length"] == "5"
        assert (await client.ask(get("/next"))).body == b"/next|"


@pytest.mark.parametrize("status", [204, 304])
@on_loop
async def test_bodiless_status_has_no_length(status: int) -> None:
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(status, [(b"etag", b'"1"')])
        client = await server.connect()
        answer = await client.ask(get("/x"))
        assert answer.status == status
        assert not {"content-length", "transfer-encoding"} & set(answer.headers)
        assert (await client.ask(get("/y"))).body == b"/y|"


@pytest.mark.parametrize(
    ("version", "header", "stays_open"),
    [
        ("1.1", None, True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: foo, Close", False),
        ("1.0", None, False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
@on_loop
async def test_keep_alive_follows_version_and_header(
    version: str, header: str | None, stays_open: bool
) -> None:
    async with native() as server:
        client = await server.connect()
        request = get("/", *([header] if header else []), version=version)
        answer = await client.ask(request)
        if stays_open:
            assert answer.headers.get("connection", "") == (
                "" if version == "1.1" else "keep-alive"
            )
            assert (await client.ask(request)).status == 200
        else:
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""


@on_loop
async def test_bytes_after_connection_close_are_not_answered() -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(get("/a", "Connection: close") + get("/b") * 3)
        assert (await client.answer()).body == b"/a|"
        assert await client.rest() == b""
        assert len(server.app.requests) == 1


@on_loop
async def test_half_closed_client_gets_all_its_answers() -> None:
    async with native() as server:
        answers: list[asyncio.Future[Response]] = []

        def later(request: Request) -> Later:
            answers.append(asyncio.get_running_loop().create_future())
            return Later(answers[-1], lambda future: future.result())

        server.app.routes[b"/later"] = later
        client = await server.connect()
        await client.send(get("/later") + get("/second"))
        client.writer.write_eof()
        await until(lambda: answers)
        answers[0].set_result(Response(200, [], b"first"))
        assert (await client.answer()).body == b"first"
        second = await client.answer()
        assert (second.body, second.headers["connection"]) == (b"/second|", "close")
        assert await client.rest() == b""


def _has(items: list[asyncio.Future[None]], count: int) -> bool:
    return len(items) == count


@on_loop
async def test_pipelined_requests_run_one_at_a_time_and_answer_in_order() -> None:
    async with native() as server:
        futures: list[asyncio.Future[None]] = []

        def later(request: Request) -> Later:
            futures.append(asyncio.get_running_loop().create_future())
            return Later(futures[-1], lambda _: Response(200, [], request.query))

        server.app.routes[b"/later"] = later
        client = await server.connect()
        requests = [get(f"/later?{n}") if n % 2 else get(f"/now{n}") for n in range(10)]
        await client.send(b"".join(requests))
        for n in range(10):
            if n % 2:
                await until(partial(_has, futures, n // 2 + 1))
                assert len(server.app.requests) == n + 1
                futures[-1].set_result(None)
            answer = await client.answer()
            assert answer.body == (b"%d" % n if n % 2 else b"/now%d|" % n)


class Turns:
    """Counts the turns of the event loop, and what happens in each."""

    def __init__(self) -> None:
        self._turn = 0
        self._counts: Counter[int] = Counter()
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._turn += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def note(self) -> None:
        self._counts[self._turn] += 1

    def stop(self) -> int:
        """Return how much has happened in one turn, at most."""
        self._handle.cancel()
        return max(self._counts.values())


@on_loop
async def test_a_pipeline_of_quick_requests_leaves_turns_to_others() -> None:
    async with native() as server:
        turns = Turns()

        def handle(request: Request) -> Response:
            turns.note()
            return Response(200, [], b"")

        server.app.routes[b"/quick"] = handle
        client = await server.connect()
        sending = asyncio.ensure_future(client.send(get("/quick") * 3000))
        for _ in range(3000):
            assert (await client.answer()).status == 200
        await sending
        # What is left of one read may be answered in the same turn as the next one.
        assert turns.stop() <= 3 * _TURN_REQUESTS


@on_loop
async def test_tiny_chunks_leave_turns_to_others() -> None:
    async with native() as server:
        turns = Turns()
        with pytest.MonkeyPatch.context() as patch:
            on_chunk = RequestParser.on_chunk_header

            def counted(parser: RequestParser) -> None:
                turns.note()
                on_chunk(parser)

            patch.setattr(RequestParser, "on_chunk_header", counted)
            answer = await server.ask(chunked("/a", *[b"x"] * 100_000))
        assert answer.body == b"/a|" + b"x" * 100_000
        slice_chunks = SLICE_BYTES // len(b"1\r\nx\r\n")
        assert turns.stop() <= 2 * max(slice_chunks, CHUNKS_PER_CALL)


@on_loop
async def test_a_client_that_has_sent_everything_gets_all_its_answers() -> None:
    async with native() as server:
        client = await server.connect()
        await client.send(get("/a") * 500)
        client.writer.write_eof()
        assert (await client.rest()).count(b"HTTP/1.1 200") == 500


@on_loop
async def test_reading_stops_above_pipeline_max_and_goes_on_after() -> None:
    async with native(pipeline_max=4) as server:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.app.routes[b"/first"] = lambda _: Later(first, lambda _: Response(200, [], b"go"))
        client = await server.connect()
        count = 20_000
        client.writer.write(get("/first") + b"".join(get(f"/{n}") for n in range(count)))
        await until(lambda: len(server.app.heads) > 4)
        (connection,) = server.table.connections
        await until(lambda: not connection._reading)
        queued = len(server.app.heads)
        assert queued < 1000  # one slice of input, not all of it
        assert len(server.app.requests) == 1
        first.set_result(None)
        assert (await client.answer()).body == b"go"
        for n in range(count):
            assert (await client.answer()).body == b"/%d|" % n


@on_loop
async def test_client_that_sends_but_never_reads_is_not_served_without_end() -> None:
    async with native(pipeline_max=4) as server:
        server.app.routes[b"/big"] = lambda _: Response(200, [], bytes(1 << 20))
        client = await server.connect()
        client.writer.write(get("/big") * 1000)
        await until(lambda: server.table._stalled)
        (connection,) = server.table.connections
        assert len(server.app.requests) < 20
        assert connection._transport.get_write_buffer_size() < 4 << 20


@pytest.mark.parametrize("size", [0, 1, 3, 16_384, 70_000, 3_000_000])
@on_loop
async def test_body_arrives_whole(size: int) -> None:
    body = bytes(n % 251 for n in range(size))
    async with native() as server:
        client = await server.connect()
        await client.send(post("/a", body) + post("/b", body[:10]))
        assert (await client.answer()).body == b"/a|" + body
        assert (await client.answer()).body == b"/b|" + body[:10]
    assert server.app.bodies == [body, body[:10]]


@on_loop
async def test_chunked_body_of_many_small_chunks_is_joined() -> None:
    chunks = [b"%04d" % n for n in range(5_000)]
    async with native() as server:
        client = await server.connect()
        await client.send(chunked("/a", *chunks) + get("/next"))
        assert (await client.answer()).body == b"/a|" + b"".join(chunks)
        assert (await client.answer()).body == b"/next|"


@on_loop
async def test_request_may_arrive_byte_by_byte() -> None:
    async with native() as server:
        client = await server.connect()
        for byte in post("/drip", b"abc", "X-Y: z"):
            await client.send(bytes([byte]))
        assert (await client.answer()).body == b"/drip|abc"


@on_loop
async def test_later_is_answered_by_callback_and_its_error_becomes_an_answer() -> None:
    async with native() as server:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def render(done: asyncio.Future[None]) -> Response:
            error = done.exception()
            assert isinstance(error, DiskFull)
            return problem(error)

        server.app.routes[b"/x"] = lambda _: Later(future, render)
        client = await server.connect()
        await client.send(get("/x"))
        await until(lambda: server.app.requests)
        future.set_exception(DiskFull("no room"))
        answer = await client.answer()
        assert answer.status == 507
        assert answer.headers["content-type"] == "application/problem+json"
        assert (await client.ask(get("/y"))).status == 200


@on_loop
async def test_later_that_fails_after_its_client_left_is_not_reported_as_unhandled() -> None:
    unhandled: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    async with native() as server:
        futures: list[asyncio.Future[None]] = [loop.create_future()]
        server.app.routes[b"/x"] = lambda _: Later(futures[0], lambda _: Response(200))
        client = await server.connect()
        await client.send(get("/x"))
        await until(lambda: server.app.requests)
        client.reset()
        await until(lambda: not server.table.connections)
        called = asyncio.Event()
        futures[0].add_done_callback(lambda _: called.set())  # after the connection's own
        futures[0].set_exception(DiskFull("no room"))
        await called.wait()
        futures.clear()  # the last reference: now an exception nobody asked for would be told
    assert unhandled == []


@pytest.mark.parametrize("how", ["reset", "close"])
@on_loop
async def test_waiting_coroutine_is_cancelled_when_its_client_leaves(how: str) -> None:
    async with native() as server:
        cancelled = asyncio.Event()

        async def wait() -> Response:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return Response(200)

        server.app.routes[b"/x"] = lambda _: wait()
        client = await server.connect()
        await client.send(get("/x"))
        await until(lambda: server.app.requests)
        client.reset() if how == "reset" else await client.close()
        await cancelled.wait()


@pytest.mark.parametrize("kind", ["sync", "coroutine"])
@on_loop
async def test_bug_in_a_handler_is_a_500_that_tells_nothing(kind: str) -> None:
    def fail(_: Request) -> Response:
        raise ZeroDivisionError("secret")

    async def fail_later() -> Response:
        raise ZeroDivisionError("secret")

    async with native() as server:
        server.app.routes[b"/x"] = fail if kind == "sync" else lambda _: fail_later()
        client = await server.connect()
        answer = await client.ask(get("/x"))
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert (await client.ask(get("/y"))).status == 200


# Expect and early refusals


@on_loop
async def test_continue_is_sent_only_when_the_body_is_wanted() -> None:
    async with native() as server:
        server.app.refusals[b"/no"] = Response(404, [], b"no")
        head = post("/yes", b"12345", "Expect: 100-continue")[:-5]
        client = await server.connect()
        assert (await client.ask(head)).status == 100
        assert (await client.ask(b"12345")).body == b"/yes|12345"
        answer = await client.ask(head.replace(b"/yes", b"/no"))
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert await client.rest() == b""


@on_loop
async def test_continue_waits_for_the_answers_before_it() -> None:
    async with native() as server:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.app.routes[b"/a"] = lambda _: Later(future, lambda _: Response(200, [], b"a"))
        client = await server.connect()
        await client.send(get("/a") + post("/b", b"12345", "Expect: 100-continue")[:-5])
        await until(lambda: len(server.app.heads) == 2)
        future.set_result(None)
        assert (await client.answer()).body == b"a"
        assert (await client.answer()).status == 100
        assert (await client.ask(b"12345")).body == b"/b|12345"


@on_loop
async def test_small_body_of_a_refused_request_is_skipped() -> None:
    async with native() as server:
        server.app.refusals[b"/no"] = Response(401, [], b"no")
        client = await server.connect()
        await client.send(post("/no", b"x" * 5000) + get("/yes"))
        assert (await client.answer()).status == 401
        assert (await client.answer()).body == b"/yes|"
        assert [request.path for request in server.app.requests] == [b"/yes"]


@on_loop
async def test_refusal_reaches_a_client_that_is_still_sending_a_large_body() -> None:
    async with native() as server:
        server.app.refusals[b"/no"] = Response(413, [], b"too large")
        client = await server.connect()
        size = 50_000_000
        head = f"POST /no HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        await client.send(head)
        client.writer.write(bytes(8_000_000))  # more than the sockets can hold
        answer = await client.answer()
        assert (answer.status, answer.body) == (413, b"too large")
        assert answer.headers["connection"] == "close"
        # An orderly end, no reset: a reset can overtake the answer.
        await client.writer.drain()
        assert await client.reader.read() == b""


# Bodies from the log


class Pieces(RangeBody):
    __slots__ = ("closed", "fail_at", "lazy", "made", "pieces_made")

    def __init__(self, count: int, *, fail_at: int = -1, lazy: bool = True) -> None:
        self.length = count * 65536
        self.made = count
        self.pieces_made = 0
        self.fail_at = fail_at
        self.lazy = lazy
        self.closed = 0

    def _make(self) -> bytes:
        if self.pieces_made == self.fail_at:
            raise Overloaded("later")
        self.pieces_made += 1
        return bytes([self.pieces_made % 256]) * 65536

    def first(self) -> bytes | None:
        return None if self.lazy else self._make()

    async def pieces(self) -> AsyncIterator[bytes]:
        while self.pieces_made < self.made:
            yield self._make()

    def close(self) -> None:
        self.closed += 1


class Views(Pieces):
    """A body whose bytes may be sent from where they lie, but not looked at."""

    __slots__ = ()

    def parts(self) -> list[bytes | memoryview] | None:
        left = self.made - self.pieces_made
        return [memoryview(self._make()) for _ in range(min(left, 3))] or None


@on_loop
async def test_bytes_are_sent_from_where_they_lie_unless_tls_would_look_at_them() -> None:
    body, asked = Views(8), []
    expected = b"".join(bytes([number]) * 65536 for number in range(1, 9))
    parts = Views.parts

    def noted(self: Views) -> list[bytes | memoryview] | None:
        asked.append(self)
        return parts(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Views, "parts", noted)
        async with native() as server:
            server.app.routes[b"/large"] = lambda _: Response(200, [], body)
            assert (await server.ask(get("/large"))).body == expected
    assert (len(asked) > 2) is (wire.tls is None)


@on_loop
async def test_the_kernel_may_hold_more_of_a_large_body_but_not_of_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[int] = []

    limit = unsent.limit

    def noted(sock: socket.socket, size: int) -> None:
        limit(sock, size)
        held.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT))

    async with native() as server:
        monkeypatch.setattr(unsent, "limit", noted)
        server.app.routes[b"/small"] = lambda _: Response(200, [], Pieces(2))
        server.app.routes[b"/large"] = lambda _: Response(200, [], Pieces(8))
        server.app.routes[b"/events"] = lambda _: Response(200, [], Events())
        client = await server.connect()
        await client.ask(get("/small"))
        assert held == []
        for _ in range(2):
            await client.ask(get("/large"))
        assert held == [unsent.BYTES_OF_LARGE]
        await client.send(get("/events"))
        await client.head()
        assert held == [unsent.BYTES_OF_LARGE, unsent.BYTES]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("count", [1, 2, 40])
@on_loop
async def test_range_is_sent_whole(count: int, lazy: bool) -> None:
    body = Pieces(count, lazy=lazy)
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, [], body)
        client = await server.connect()
        answer = await client.ask(get("/x"))
        assert answer.body == b"".join(bytes([n + 1]) * 65536 for n in range(count))
        assert (await client.ask(get("/y"))).status == 200
    assert body.closed == 1


@on_loop
async def test_range_is_not_read_ahead_of_a_stalled_reader() -> None:
    body = Pieces(10_000)
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, [], body)
        client = await server.connect()
        client.reader._limit = 1024  # type: ignore[attr-defined]
        await client.send(get("/x"))
        await until(lambda: server.table._stalled)
        (connection,) = server.table.connections
        assert connection._transport.get_write_buffer_size() <= 3 * 65536
        assert body.pieces_made < 1000
        client.reset()
        await until(lambda: body.closed)
    assert body.closed == 1


@pytest.mark.parametrize("lazy", [True, False])
@on_loop
async def test_range_that_fails_at_its_first_piece_is_a_clean_error(lazy: bool) -> None:
    body = Pieces(3, fail_at=0, lazy=lazy)
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, [], body)
        client = await server.connect()
        assert (await client.ask(get("/x"))).status == 503
        assert (await client.ask(get("/y"))).status == 200
    assert body.closed == 1


@on_loop
async def test_range_that_fails_later_cuts_the_connection_short() -> None:
    body = Pieces(30, fail_at=10)
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, [], body)
        client = await server.connect()
        await client.send(get("/x"))
        assert (await client.head()).headers["content-length"] == str(30 * 65536)
        assert len(await client.rest()) <= 10 * 65536
    assert body.closed == 1


@on_loop
async def test_head_of_a_range_reads_nothing() -> None:
    body = Pieces(30)
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: Response(200, [], body)
        client = await server.connect()
        answer = await client.ask(get("/x").replace(b"GET", b"HEAD"), body=False)
        assert answer.headers["content-length"] == str(30 * 65536)
        assert (await client.ask(get("/y"))).status == 200
    assert (body.pieces_made, body.closed) == (0, 1)


# Encoding


def test_chunk_of_the_same_object_is_encoded_once() -> None:
    data = b"data: x\n\n"
    assert chunk(data) == b"9\r\ndata: x\n\n\r\n"
    assert chunk(data) is chunk(data)
    assert chunk(b"other") == b"5\r\nother\r\n"


def test_date_is_renewed_each_second() -> None:
    now = [0.0]
    encoder = ResponseEncoder([], wall=lambda: now[0])
    first = encoder.whole(Response(200), b"")
    assert b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in first
    now[0] = 1.5
    assert b"00:00:01 GMT" in encoder.whole(Response(200), b"")


def test_fake_app_is_an_application() -> None:
    app = FakeApp()
    assert app.refuse(Request("GET", b"/")) is None
