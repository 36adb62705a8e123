"""Arbitrary bytes mean the same to the head cache as to the parser, and the same in any pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.http.message import Request, Response
from penstock.http.native import request_parser
from penstock.http.native.head_cache import HeadCache
from penstock.http.native.request_head import NativeRequest
from penstock.http.native.request_parser import ParserLimits, RequestParser
from penstock.http.sender import NOWHERE
from tests.http.wire import chunked, get, post

LIMITS = ParserLimits(Settings(memory=True))
READY_MAX = 3
Seen = list[tuple[object, ...]]


class Input:
    """One connection's input as `Connection` treats it: the cache first if there is one."""

    def __init__(self, cache: HeadCache | None = None) -> None:
        self.cache = cache
        self.parser = RequestParser(LIMITS, _refuse, NOWHERE)
        self.seen: Seen = []
        self.failed = False

    def arrive(self, data: bytes) -> None:
        if self.failed or not data:
            return
        parser, cache = self.parser, self.cache
        if cache is None or not parser.is_idle:
            self._feed(data)
        elif (request := cache.match(data)) is not None:
            if request.route is None:
                request.refusal = _refuse(request)
                cache.add_head(data, request)
            self._note(request)
        else:
            self._feed(data)
            cache.add(data, parser.last)

    def _feed(self, data: bytes) -> None:
        parser = self.parser
        while data:
            try:
                data = parser.feed(data, READY_MAX)
            except PenstockError as error:
                self.failed, data = True, b""
                reason: tuple[object, ...] = (error.status,)
            while parser.ready:
                self._note(parser.pop())
            if self.failed:
                self.seen.append(reason)

    def _note(self, request: NativeRequest) -> None:
        refused = None if request.refusal is None else request.refusal.status
        body = request.body if refused is None else b""
        line = (request.method, request.path, request.query)
        # Refusing a body may mean to close, and where its pieces end may decide which.
        kept = request.keep_alive if refused is None else None
        self.seen.append((*line, request.headers, body, kept, request.http_1_0, refused))


def _refuse(head: Request) -> Response | None:
    head.route = ("handler", head.path)
    return Response(401) if head.path.startswith(b"/no") else None


def seen(arrivals: Sequence[bytes], cache: HeadCache | None = None) -> Seen:
    reader = Input(cache)
    for data in arrivals:
        reader.arrive(data)
    return reader.seen


WHOLE = [
    get("/a"),
    get("/a?offset=-1", "X-A: b"),
    get("/no"),
    get("/a", "Connection: close"),
    get("/a", version="1.0"),
    get("/up", "Connection: Upgrade", "Upgrade: h2c"),
    post("/a", b"abc"),
    post("/a", b"\r\n\r\n"),
    post("/a", get("/b")),
    post("/no", b"abc"),
    post("/up", b"abc", "Connection: Upgrade", "Upgrade: h2c"),
    chunked("/a", b"abc", b"de"),
    chunked("/a", b"\n0\r\n\r\n", b"0\r\n\r\n" * 3, trailers="X-T: 1\r\n"),
    chunked("/a"),
]
FRAGMENTS = [
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b":",
    b"0\r\n\r\n",
    b"DELETE /b HTTP/1.1\r\n",
    b"CONNECT /b HTTP/1.1\r\n",
    b"GET  /b HTTP/1.1\r\n",
    b"Host: localhost\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"X: y\r\n",
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request with bytes removed, inserted or repeated."""
    data = draw(st.sampled_from(WHOLE))
    at = draw(st.integers(0, len(data)))
    count = draw(st.integers(0, 4))
    insert = draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=2))
    return data[:at] + insert + data[at + count :]


PIECES = st.sampled_from(WHOLE) | st.sampled_from(FRAGMENTS) | damaged()
ARRIVALS = st.lists(st.lists(PIECES, min_size=1, max_size=3).map(b"".join), max_size=6)


@settings(max_examples=300)
@given(st.lists(ARRIVALS, min_size=1, max_size=4))
@example([[b"\r\n" + get("/a")], [b"DELETE /b HTTP/1.1\r\n" + get("/a")]])
@example([[b"\n" + get("/a")], [b"DELETE /b HTTP/1.1\n" + get("/a")]])
@example([[get("/a")], [get("/a").replace(b" /a ", b"  /a ")]])
def test_the_head_cache_reads_bytes_as_the_parser_does(connections: list[list[bytes]]) -> None:
    _compare_cache(connections)


@settings(max_examples=300)
@given(ARRIVALS, st.randoms(use_true_random=False), st.sampled_from([7, 40, 16 * 1024]))
@example([get("/a") + b"GE", b"T /b HTTP/1.1\r\nHost: localhost\r\n\r\n"], random.Random(1), 7)
def test_input_means_the_same_in_any_pieces(
    arrivals: list[bytes], rng: random.Random, slice_bytes: int
) -> None:
    _compare_pieces(arrivals, rng, slice_bytes)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(st.lists(ARRIVALS, min_size=1, max_size=6))
def test_the_head_cache_reads_many_bytes_as_the_parser_does(
    connections: list[list[bytes]],
) -> None:
    _compare_cache(connections)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(ARRIVALS, st.randoms(use_true_random=False), st.sampled_from([7, 40, 16 * 1024]))
def test_much_input_means_the_same_in_any_pieces(
    arrivals: list[bytes], rng: random.Random, slice_bytes: int
) -> None:
    _compare_pieces(arrivals, rng, slice_bytes)


def _compare_cache(connections: list[list[bytes]]) -> None:
    cache = HeadCache(line_bytes_max=LIMITS.line_bytes_max)
    for _ in range(2):  # the second time with everything in the cache that gets there
        for arrivals in connections:
            assert seen(arrivals, cache) == seen(arrivals)


def _compare_pieces(arrivals: list[bytes], rng: random.Random, slice_bytes: int) -> None:
    data = b"".join(arrivals)
    cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(1, 8)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    whole = seen([data])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_parser, "SLICE_BYTES", slice_bytes)
        assert seen(pieces) == whole
        assert seen([data[at : at + 1] for at in range(len(data))]) == whole
