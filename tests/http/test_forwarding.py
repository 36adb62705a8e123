"""Requests to peers and their way back, against peers whose every byte a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import NotOwner
from penstock.http.forwarding.forwarder import Forwarder, encode
from penstock.http.forwarding.hop import HEADER, Hops
from penstock.http.forwarding.owners import Address, Peer, unowned
from penstock.http.forwarding.relay import BUFFER_BYTES, CutOff
from penstock.http.message import EventBody, RangeBody, Request
from tests.helpers.app import FakeSink
from tests.http.wire import on_loop

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TwoPeers:
    name = "me"

    def __init__(self, one: str, other: str) -> None:
        self._peers = {"one": Peer("one", Address(one)), "other": Peer("other", Address(other))}

    def owner(self, path: str) -> Peer | None:
        return self._peers["one"]

    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    def peer(self, name: str) -> Peer | None:
        if name not in self._peers:
            raise unowned(f"There is no {name}.")
        return self._peers[name]


@asynccontextmanager
async def _forwarder(folder: Path, *serves: Serve) -> AsyncIterator[tuple[Forwarder, Peer]]:
    paths = [str(folder / name) for name in ("one", "other")]
    running: set[asyncio.Task[None]] = set()
    servers = [
        await asyncio.start_unix_server(partial(_run, serve, running), path)
        for path, serve in zip(paths, serves, strict=False)
    ]
    owners = TwoPeers(*paths)
    forwarder = Forwarder(owners, Hops("secret"))
    try:
        yield forwarder, owners.peers()[0]
    finally:
        forwarder.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for server in servers:
            server.close()


async def _run(
    serve: Serve,
    running: set[asyncio.Task[None]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    task = asyncio.current_task()
    assert task is not None
    running.add(task)
    try:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await serve(reader, writer)
            await reader.read()
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def _head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def _read(body: RangeBody) -> int:
    return sum([len(piece) async for piece in body.pieces()])


def _request(method: str = "GET", body: bytes = b"") -> Request:
    return Request(method, b"/v1/stream/s", b"offset=-1", {b"host": b"h"}, body)


def test_a_request_keeps_what_it_says_and_loses_what_belongs_to_its_connection() -> None:
    request = _request("POST", b"body")
    request.headers = {
        b"host": b"h",
        b"connection": b"close",
        b"transfer-encoding": b"chunked",
        b"x": b"1",
        HEADER: b"forged",
    }
    assert encode(request, b"hop").split(b"\r\n") == [
        b"POST /v1/stream/s?offset=-1 HTTP/1.1",
        b"host: h",
        b"x: 1",
        b"penstock-hop: hop",
        b"content-length: 4",
        b"",
        b"body",
    ]


@on_loop
async def test_a_connection_is_kept_for_the_next_request(tmp_path: Path) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for number in range(3):
            head = await _head(reader)
            body = b"" if head.startswith(b"HEAD") else b"%d" % number
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + body)

    async with _forwarder(tmp_path, serve) as (forwarder, peer):
        first = await forwarder.forward(peer, _request())
        head = await forwarder.forward(peer, _request("HEAD"))
        last = await forwarder.forward(peer, _request())
    assert (first.body, last.body) == (b"0", b"2")
    assert isinstance(head.body, RangeBody)
    assert (head.body.length, connections) == (1, 1)


@on_loop
async def test_a_peer_that_is_not_there_or_dies_before_it_answers_is_a_503(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-")
        writer.close()

    async with _forwarder(tmp_path, serve) as (forwarder, peer):
        with pytest.raises(NotOwner) as died:
            await forwarder.forward(peer, _request())
    assert died.value.headers == {"Retry-After": "1"}
    async with _forwarder(tmp_path / "nowhere") as (forwarder, peer):
        with pytest.raises(NotOwner):
            await forwarder.forward(peer, _request())


@on_loop
async def test_a_body_that_is_cut_off_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    size = 4 * BUFFER_BYTES

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size // 2))
        await writer.drain()
        writer.close()

    async with _forwarder(tmp_path, serve) as (forwarder, peer):
        response = await forwarder.forward(peer, _request())
        assert isinstance(response.body, RangeBody)
        assert response.body.length == size
        with pytest.raises(CutOff):
            await _read(response.body)


@on_loop
async def test_a_peer_is_read_no_faster_than_the_client_reads(tmp_path: Path) -> None:
    written = 0
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await _head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                async with asyncio.timeout(0.5):
                    writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
                    await writer.drain()
                written += 65536
        except TimeoutError:
            stuck.set()

    async with _forwarder(tmp_path, serve) as (forwarder, peer):
        response = await forwarder.forward(peer, _request())
        assert isinstance(response.body, EventBody)
        sink = FakeSink(response)
        sink.congested = True
        response.body.attach(sink)
        await stuck.wait()
        assert written < 8 * 1024 * 1024
        response.body.detach()


@on_loop
async def test_a_live_response_ends_as_the_peers_ends(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)  # the head has arrived before the end
        if b"whole" in head:
            writer.write(b"0\r\n\r\n")
        writer.close()

    async with _forwarder(tmp_path, serve) as (forwarder, peer):
        for path, is_whole in ((b"/whole", True), (b"/cut", False)):
            request = Request("GET", path, headers={b"host": b"h"})
            response = await forwarder.forward(peer, request)
            assert isinstance(response.body, EventBody)
            sink = FakeSink(response)
            response.body.attach(sink)
            await sink.until(lambda sink: sink.closed or sink.aborted)
            assert (sink.closed, sink.aborted) == (is_whole, not is_whole)


@on_loop
async def test_the_owner_that_a_peer_names_is_asked_once(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(await _head(reader))
            writer.write(b"HTTP/1.1 503 x\r\npenstock-owner: other\r\ncontent-length: 0\r\n\r\n")

    async with _forwarder(tmp_path, serve, serve) as (forwarder, peer):
        response = await forwarder.forward(peer, _request())
    assert (response.status, len(asked)) == (503, 2)
    hops = [
        Hops("secret").parse(head.split(b"penstock-hop: ")[1].split(b"\r\n")[0]) for head in asked
    ]
    assert [hop is not None and hop.is_local for hop in hops] == [False, True]


class Answering:
    """A peer that answers when a test says so."""

    def __init__(self) -> None:
        self.connections = 0
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            await _head(reader)
            self.asked.set()
            await self.go.wait()
            writer.write(b"HTTP/1.1 204 x\r\n\r\n")


@on_loop
async def test_a_peer_that_has_nothing_any_more_may_answer_what_it_was_asked(
    tmp_path: Path,
) -> None:
    one = Answering()
    async with _forwarder(tmp_path, one.serve) as (forwarder, peer):
        answer = asyncio.create_task(forwarder.forward(peer, _request()))
        await one.asked.wait()
        forwarder.keep(owners=(), living=(peer.address,))
        one.go.set()
        assert (await answer).status == 204
        assert (await forwarder.forward(peer, _request())).status == 204
        assert one.connections == 1
        forwarder.keep(owners=(), living=(peer.address,))
        assert (await forwarder.forward(peer, _request())).status == 204
        assert one.connections == 2  # no idle one is kept


@on_loop
async def test_nobody_waits_for_a_peer_that_is_gone_or_says_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Answering()
    async with _forwarder(tmp_path, one.serve) as (forwarder, peer):
        for living in ((), (peer.address,)):
            answer = asyncio.create_task(forwarder.forward(peer, _request()))
            await one.asked.wait()
            one.asked.clear()
            if living:
                forwarder.keep(owners=(), living=living)
                monkeypatch.setattr("penstock.http.forwarding.forwarder.ANSWER_S", 0.0)
            forwarder.keep(owners=(), living=living)
            with pytest.raises(NotOwner) as lost:
                await answer
            assert not lost.value.is_unsent
            forwarder.keep(owners=(peer.address,), living=(peer.address,))
