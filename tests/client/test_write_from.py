"""`write_from`: what a generator yields is stored as it comes, once and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest

import penstock
from penstock import Retry
from penstock.client.aio.asgi import AsgiTransport
from penstock.client.writing import WriteProgress, Written
from penstock.errors import StaleEpoch, StreamClosed
from tests.client.driver import Connect
from tests.helpers.faults import fault_proxy, seeded
from tests.helpers.server import Server

TYPES: dict[str, tuple[list[Any], Any]] = {
    "application/json": ([{"n": 1}, "two", 3], [{"n": 1}, "two", 3]),
    "text/plain": (["one ", "", "twö"], "one twö"),
    "application/octet-stream": ([b"\x00", bytearray(b"\xff")], b"\x00\xff"),
}


class SourceFailed(Exception):
    """What the generators of these tests raise."""


def read(stream: Any, content_type: str) -> Any:
    if content_type == "application/json":
        return stream.read_json()
    return stream.read_text() if content_type == "text/plain" else stream.read_bytes()


@pytest.mark.parametrize("content_type", TYPES)
def test_items_are_written_by_content_type_and_the_stream_is_closed(
    stream: Any, content_type: str
) -> None:
    stream.create(content_type)
    items, whole = TYPES[content_type]
    written = stream.write_from(iter(items))
    head = stream.head()
    assert (written.offset, written.count) == (head.offset, len([item for item in items if item]))
    assert head.closed
    assert read(stream, content_type) == whole


def test_without_close_the_stream_stays_open(json_stream: Any) -> None:
    written = json_stream.write_from([1, 2], close=False)
    assert written.offset == json_stream.head().offset
    json_stream.append(3)
    assert json_stream.read_json() == [1, 2, 3]
    assert json_stream.write_from([], close=False) == Written(json_stream.head().offset, 0)


def failing(items: list[Any], ended: list[str] | None = None) -> Iterator[Any]:
    try:
        yield from items
        raise SourceFailed("the key is sk-secret")
    finally:
        if ended is not None:
            ended.append("ended")


ERROR = {"type": "failed", "message": "The source of this stream failed."}


@pytest.mark.parametrize(
    ("content_type", "record"),
    [
        ("application/json", '[1,\n{"error":{"type":"failed","message":"%s"}}]'),
        ("application/x-ndjson", '1{"error":{"type":"failed","message":"%s"}}\n'),
        (
            "text/event-stream",
            '1event: error\ndata: {"type":"error","error":{"type":"failed","message":"%s"}}\n\n',
        ),
        ("text/plain", "1"),
        ("application/octet-stream", "1"),
    ],
)
def test_a_source_that_raises_closes_the_stream_with_a_record_of_its_type(
    stream: Any, content_type: str, record: str
) -> None:
    stream.create(content_type)
    with pytest.raises(SourceFailed):
        stream.write_from(failing([1 if content_type == "application/json" else b"1"]))
    assert stream.head().closed
    text = stream.read_text()
    assert text == (record % ERROR["message"] if "%s" in record else record)


def test_the_record_can_be_ones_own(json_stream: Any) -> None:
    with pytest.raises(SourceFailed):
        json_stream.write_from(failing([1]), error_record=lambda error: {"why": str(error)[:11]})
    assert json_stream.read_json() == [1, {"why": "the key is "}]


def test_left_open_a_second_run_continues_after_what_is_stored(json_stream: Any) -> None:
    progress = WriteProgress()
    with pytest.raises(SourceFailed):
        json_stream.write_from(
            failing([1, 2]), on_error="leave", producer_id="answer-1", progress=progress
        )
    assert not json_stream.head().closed
    assert progress.stored == 2
    again = json_stream.write_from(
        [1, 2, 3, 4], producer_id="answer-1", skip=progress.stored, progress=progress
    )
    assert json_stream.read_json() == [1, 2, 3, 4]
    assert (again.count, progress.stored) == (2, 4)


def test_an_item_that_is_no_message_fails_like_the_source(json_stream: Any) -> None:
    ended: list[str] = []
    with pytest.raises(TypeError):
        json_stream.write_from(failing([1, object()], ended))
    assert json_stream.read_json() == [1, {"error": ERROR}]
    assert ended == ["ended"]


def test_a_schema_without_a_place_for_the_record_closes_without_it(
    stream: Any, server: Server
) -> None:
    stream.create()
    path = stream.url.rpartition("/")[2]
    schema = {"types": {"t": {"schema": True}}}
    declared = httpx2.put(f"{server.url}/v1/schema/{path}", json=schema)
    assert declared.status_code in (200, 201, 204), declared.text
    event = {"type": "t", "key": "k", "value": {}, "headers": {"operation": "insert"}}
    with pytest.raises(SourceFailed):
        stream.write_from(failing([event]))
    assert stream.head().closed
    assert len(stream.read_json()) == 1


def test_a_closed_stream_is_an_error_and_the_source_is_closed(json_stream: Any) -> None:
    json_stream.close()
    ended: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append("ended")

    with pytest.raises(StreamClosed):
        json_stream.write_from(endless())
    assert ended == ["ended"]


def test_options_are_checked_before_anything_is_taken(json_stream: Any) -> None:
    with pytest.raises(ValueError, match="on_error"):
        json_stream.write_from(failing([]), on_error="ignore")
    with pytest.raises(ValueError, match="skip"):
        json_stream.write_from(failing([]), skip=-1)


class Gate(httpx2.AsyncBaseTransport):
    """Lets appends through only when it is open."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self.is_open = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            await self.is_open.wait()
        return await self._transport.handle_async_request(request)


async def blocked_source() -> tuple[int, int]:
    """Return how many items were taken before anything could be stored, and how many are stored."""
    streams = penstock.asgi(memory=True)
    async with streams.lifespan():
        gate = Gate(AsgiTransport(streams))
        client = penstock.AsyncClient("http://localhost", transport=gate)
        stream = client.stream("s")
        await stream.create()
        taken = 0

        async def source() -> AsyncIterator[str]:
            nonlocal taken
            for _ in range(200):
                taken += 1
                yield "x" * 10_000
                await asyncio.sleep(0)

        writing = asyncio.ensure_future(stream.write_from(source(), queue_bytes_max=50_000))
        before = -1
        while taken != before:
            before = taken
            for _ in range(50):
                await asyncio.sleep(0)
        gate.is_open.set()
        written = await writing
        await client.close()
        return before, written.count


def test_a_source_waits_while_its_items_are_not_stored() -> None:
    taken, stored = asyncio.run(blocked_source())
    assert 1 < taken <= 6
    assert stored == 200


def test_everything_is_stored_once_over_broken_connections(
    connect: Connect, server: Server, name: str
) -> None:
    items = [{"n": n, "text": "é" * (n % 50)} for n in range(300)]
    plan = seeded(7, faults=20, kinds=("reset", "truncate", "half-close"), bytes_max=2000)
    with fault_proxy(server.url, plan) as proxy:
        stream = connect(proxy.url, retry=Retry(first_s=0.001, max_s=0.02)).stream(name)
        stream.ensure()
        stream.write_from(iter(items), linger_ms=1, on_error="leave")
    assert connect(server.url).stream(name).read_json() == items


async def cancelled(url: str) -> list[Any]:
    async with penstock.AsyncClient(url) as client:
        stream = client.stream("write-from-cancelled")
        await stream.create()
        is_waiting = asyncio.Event()
        ended = []

        async def source() -> AsyncIterator[int]:
            try:
                yield 1
                is_waiting.set()
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        writing = asyncio.ensure_future(stream.write_from(source()))
        await is_waiting.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert ended == [True]
        assert (await stream.head()).closed
        return await stream.read_json()


def test_cancelling_it_stores_what_came_and_closes_the_stream_as_aborted(server: Server) -> None:
    got = asyncio.run(cancelled(server.url))
    message = "The source of this stream was cancelled."
    assert got == [1, {"error": {"type": "aborted", "message": message}}]


def test_an_interrupted_blocking_source_closes_the_stream_as_aborted(server: Server) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with penstock.Client(server.url) as client:
        stream = client.stream("write-from-interrupted")
        stream.create()
        with pytest.raises(KeyboardInterrupt):
            stream.write_from(source())
        assert stream.read_json()[1]["error"]["type"] == "aborted"
    assert set(threading.enumerate()) <= before


def test_a_reader_sees_items_before_the_source_has_ended(server: Server) -> None:
    async def main() -> None:
        async with penstock.AsyncClient(server.url) as client:
            stream = client.stream("write-from-live")
            await stream.create("text/plain")
            seen = asyncio.Event()

            async def source() -> AsyncIterator[str]:
                yield "first"
                await seen.wait()
                yield " last"

            async def reader() -> str:
                text = ""
                async for batch in stream.follow():
                    text += batch.text
                    seen.set()
                return text

            reading = asyncio.ensure_future(reader())
            await stream.write_from(source())
            assert await reading == "first last"

    asyncio.run(main())


def test_a_later_run_with_the_same_producer_id_fences_the_earlier_one(server: Server) -> None:
    """Their items never mix, and the earlier run does not close the stream of the later one."""
    with closing(penstock.Client(server.url)) as client:
        stream = client.stream("write-from-fenced")
        stream.create()

        def first() -> Iterator[int]:
            yield 1
            while not stream.read_json():
                pass
            stream.write_from([2], producer_id="p", close=False)
            yield 3

        with pytest.raises(StaleEpoch):
            stream.write_from(first(), producer_id="p")
        assert stream.read_json() == [1, 2]
        assert not stream.head().closed
