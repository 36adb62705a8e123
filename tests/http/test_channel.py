"""The live channel with each of its encoders: whoever joins, leaves, stalls or resumes gets every
byte or row once and in order."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Damaged
from penstock.http.live import log_reader
from penstock.http.live.response import LiveReader
from penstock.http.message import EventBody, Response
from penstock.http.tables import live as table_live
from penstock.stp.rows import RowDecoder
from penstock.stp.server import row_cache, table_view
from tests.helpers.app import STORES, Client, FakeSink, run_with_app, settings_of
from tests.http.test_metrics import scrape
from tests.stp import tables

JSON = "application/json"
BUFFER_BYTES_MAX = 1000
TEXT = "aé€𝄞\r\nb\rc\n d\n\n".encode()


class Kind:
    """One stream or table and a naive model of it: all that was appended, in order, and the places
    where a reader can start."""

    content_type = JSON

    def __init__(self, client: Client) -> None:
        self.client = client
        self.log: Any = []
        self.closed = False
        self.starts: list[tuple[int, str]] = [(0, "-1")]

    async def create(self) -> None:
        answer = await self.client.put("s", content_type=self.content_type)
        assert answer.status == 201

    def append(self, size: int, *, close: bool = False) -> Awaitable[None]:
        """Add to the model at once; the append is decided when the task gets its turn."""
        body = self.body(size)
        end = len(self.log)
        self.closed = self.closed or close
        return asyncio.create_task(self._append(body, end, close))

    async def _append(self, body: bytes, end: int, close: bool) -> None:
        headers = {"stream_closed": "true"} if close else {}
        answer = await self.client.post("s", body, content_type=self.content_type, **headers)
        assert answer.status == 204, answer.body
        self.starts.append((end, answer.offset))

    def body(self, size: int) -> bytes:
        numbers = list(range(len(self.log), len(self.log) + size))
        self.log += numbers
        return json.dumps(numbers).encode()

    async def respond(self, token: str) -> Response:
        return await self.client.respond("GET", f"/v1/stream/s?offset={token}&live=sse")

    async def join(self, token: str) -> FakeSink:
        return tables.attached(await self.respond(token))

    def received(self, sinks: Sequence[FakeSink]) -> Any:
        return [n for sink in sinks for data in sink.data for n in json.loads(data)]

    def expected(self, start: int) -> Any:
        return self.log[start:]

    def resume_token(self, sink: FakeSink) -> str | None:
        """Where a reader goes on after `sink`; None if it has got nothing there."""
        return sink.controls[-1]["streamNextOffset"] if sink.frames else None


class Binary(Kind):
    content_type = "application/octet-stream"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.log = b""

    def body(self, size: int) -> bytes:
        data = bytes((len(self.log) + n) % 251 for n in range(size))
        self.log += data
        return data

    def received(self, sinks: Sequence[FakeSink]) -> Any:
        return b"".join(base64.b64decode(data) for sink in sinks for data in sink.data)


class Text(Binary):
    """Text that is cut anywhere, between the bytes of a character too."""

    content_type = "text/plain"

    def body(self, size: int) -> bytes:
        data = bytes(TEXT[(len(self.log) + n) % len(TEXT)] for n in range(size))
        self.log += data
        return data

    def received(self, sinks: Sequence[FakeSink]) -> Any:
        return "".join(data for sink in sinks for data in sink.data)

    def expected(self, start: int) -> Any:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self.log[start:], final=self.closed)
        if not self.closed and self.log.endswith(b"\r"):
            text = text.removesuffix("\r")
        return text.replace("\r\n", "\n").replace("\r", "\n")


class Table(Kind):
    """Rows among events of another type, which take SeqNos and are no rows."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.starts = [(0, "0")]
        self.seqno = 0

    async def create(self) -> None:
        await tables.table(self.client, "s")

    def append(self, size: int, *, close: bool = False) -> Awaitable[None]:
        events: list[Any] = []
        for _ in range(size):
            self.seqno += 1
            if self.seqno % 3 == 0:
                events.append(tables.change("other", "k", "v"))
            else:
                events.append(tables.change("s", f"k{self.seqno}", "v" * (self.seqno % 7)))
                self.log.append((self.seqno, f"k{self.seqno}"))
        self.closed = self.closed or close
        return asyncio.create_task(self._events(events, (len(self.log), str(self.seqno)), close))

    async def _events(self, events: list[Any], start: tuple[int, str], close: bool) -> None:
        headers = {"stream_closed": "true"} if close else {}
        answer = await tables.append(self.client, "s", *events, **headers)
        assert answer.status == 204, answer.body
        self.starts.append(start)

    async def respond(self, token: str) -> Response:
        return await self.client.respond("GET", f"/v1/table/s?since_id={token}&timeout=60")

    async def join(self, token: str) -> FakeSink:
        response = await self.respond(token)
        if isinstance(response.body, EventBody):
            return tables.attached(response)
        # A closed table is answered at once.
        assert isinstance(response.body, bytes)
        sink = FakeSink(Response(response.status, response.headers, LiveReader()))
        sink.write(response.body)
        sink.close()
        return sink

    def received(self, sinks: Sequence[FakeSink]) -> Any:
        # Each response is whole rows: a decoder of its own finds a row that is cut.
        return [
            (row.seqno, row.key)
            for sink in sinks
            for row in RowDecoder().feed(b"".join(sink.frames))
        ]

    def resume_token(self, sink: FakeSink) -> str | None:
        rows = self.received([sink])
        return str(rows[-1][0]) if rows else None


KINDS = {"json": Kind, "binary": Binary, "text": Text, "table": Table}


class Reader:
    """A client that reads from a start on, over as many responses as it needs."""

    def __init__(self, start: int, token: str, sink: FakeSink) -> None:
        self.start = start
        self.token = token
        self.sinks = [sink]
        self.was_slow = False
        self.has_left = False

    @property
    def sink(self) -> FakeSink:
        return self.sinks[-1]

    @property
    def is_open(self) -> bool:
        return not (self.has_left or self.sink.closed or self.sink.aborted)


class Script:
    """Runs operations on one kind; what each reader got is compared with the model at the end."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.readers: list[Reader] = []
        self.appends: list[Awaitable[None]] = []

    async def run(self, operation: str, number: int) -> None:
        await getattr(self, f"_{operation}")(number)

    async def _start_append(self, number: int) -> None:
        self.appends.append(self.kind.append(number % 12 + 1))

    async def _append(self, number: int) -> None:
        await self._start_append(number)
        await self._settle_appends(0)

    async def _append_much(self, number: int) -> None:
        await self.kind.append(600 + number)

    async def _settle_appends(self, number: int) -> None:
        await asyncio.gather(*self.appends)
        self.appends.clear()

    async def _turn(self, number: int) -> None:
        for _ in range(number % 8):
            await asyncio.sleep(0)

    async def _join(self, number: int) -> None:
        start, token = self.kind.starts[-1 - number % len(self.kind.starts)]
        self.readers.append(Reader(start, token, await self.kind.join(token)))

    async def _join_stalled(self, number: int) -> None:
        """Join with a client that takes nothing yet: a task waits for room."""
        start, token = self.kind.starts[-1 - number % len(self.kind.starts)]
        sink = FakeSink(await self.kind.respond(token))
        sink.congested = True
        sink.body.attach(sink)
        self.readers.append(Reader(start, token, sink))

    def _pick(self, number: int, *, is_open: bool) -> Reader | None:
        readers = [reader for reader in self.readers if reader.is_open is is_open]
        return readers[number % len(readers)] if readers else None

    async def _leave(self, number: int) -> None:
        if (reader := self._pick(number, is_open=True)) is not None:
            reader.has_left = True
            reader.sink.body.detach()

    async def _stall(self, number: int) -> None:
        """Let unsent bytes pile up: few of them, or more than the server holds for a reader."""
        if (reader := self._pick(number, is_open=True)) is not None:
            is_slow = number % 2 == 0
            reader.was_slow = reader.was_slow or is_slow
            reader.sink.congested = True
            reader.sink.buffered = BUFFER_BYTES_MAX + is_slow

    async def _drain(self, number: int) -> None:
        if (reader := self._pick(number, is_open=True)) is not None:
            drain(reader.sink)

    async def _resume(self, number: int) -> None:
        if (reader := self._pick(number, is_open=False)) is not None:
            reader.has_left, reader.was_slow = False, False
            reader.token = self.kind.resume_token(reader.sink) or reader.token
            reader.sinks.append(await self.kind.join(reader.token))

    async def finish(self, ending: str) -> None:
        await self._settle_appends(0)
        for reader in self.readers:
            assert reader.is_open or reader.has_left or reader.was_slow
        if ending == "delete":
            assert (await self.kind.client.delete("s")).status == 204
        elif ending == "stop":
            self.kind.client.app.drain()
        else:
            if ending == "close":
                await self.kind.append(5, close=True)
            for reader in self.readers:
                await self._complete(reader)
        for reader in self.readers:
            assert reader.is_open is (ending == "none")
            assert not reader.sink.aborted
            received = self.kind.received(reader.sinks)
            assert received == self.kind.expected(reader.start)[: len(received)]
            reader.sink.body.detach()
        assert self.kind.client.app.traffic.sse_readers == 0
        assert (await scrape(self.kind.client))["penstock_table_readers"] == 0
        if ending != "delete":
            assert not self.kind.client.engine.find("s", touch=False).watchers

    async def _complete(self, reader: Reader) -> None:
        """Let a reader take what it gets, or resume, until it has everything."""
        drain(reader.sink)
        if reader.has_left or reader.was_slow:
            reader.sink.body.detach()
            reader.token = self.kind.resume_token(reader.sink) or reader.token
            reader.sinks.append(await self.kind.join(reader.token))
            reader.has_left = False
        expected = self.kind.expected(reader.start)
        await reader.sink.until(
            lambda sink: (
                len(self.kind.received(reader.sinks)) >= len(expected)
                and (sink.closed or not self.kind.closed)
            )
        )
        assert self.kind.received(reader.sinks) == expected


def drain(sink: FakeSink) -> None:
    sink.congested, sink.buffered = False, 0
    if not sink.closed:
        sink.body.drained()


def run(kind: str, store: str, check: Callable[[Script], Awaitable[None]]) -> None:
    """Run `check` on a fresh server whose pieces are small, so that few messages make many."""

    async def test(client: Client) -> None:
        script = Script(KINDS[kind](client))
        await script.kind.create()
        await check(script)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "PIECE_BYTES", 300)
        patch.setattr(log_reader, "PUBLISH_BYTES_MAX", 500)
        patch.setattr(table_live, "PUBLISH_BYTES_MAX", 2000)
        for module in (row_cache, table_view):
            patch.setattr(module, "BLOCK_BYTES", 700)
        run_with_app(test, settings_of(store, Path(folder), sse_buffer_bytes_max=BUFFER_BYTES_MAX))


OPERATIONS = (
    "append", "start_append", "start_append", "settle_appends", "append_much", "turn", "turn",
    "join", "join", "join_stalled", "leave", "stall", "stall", "drain", "resume", "resume",
)  # fmt: skip


INTERLEAVINGS = {
    "operations": st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 60)), min_size=5, max_size=40
    ),
    "ending": st.sampled_from(["none", "close", "delete", "stop"]),
}


def interleave(kind: str, store: str, operations: list[tuple[str, int]], ending: str) -> None:
    async def check(script: Script) -> None:
        for operation, number in operations:
            await script.run(operation, number)
        await script.finish(ending)

    run(kind, store, check)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(**INTERLEAVINGS)
def test_every_reader_gets_everything_once(
    kind: str, operations: list[tuple[str, int]], ending: str
) -> None:
    interleave(kind, "memory", operations, ending)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(**INTERLEAVINGS)
def test_every_reader_gets_everything_once_from_disk(
    kind: str, operations: list[tuple[str, int]], ending: str
) -> None:
    """Here appends that come together are one commit."""
    interleave(kind, "disk", operations, ending)


each_kind = pytest.mark.parametrize("kind", KINDS)
each_store = pytest.mark.parametrize("store", STORES)


@each_store
@each_kind
def test_a_slow_reader_is_ended_while_the_others_go_on(kind: str, store: str) -> None:
    async def check(script: Script) -> None:
        for _ in range(3):
            await script.run("join", 0)
        slow, pausing, quick = script.readers
        for reader, buffered in ((slow, BUFFER_BYTES_MAX + 1), (pausing, BUFFER_BYTES_MAX)):
            reader.sink.congested, reader.sink.buffered = True, buffered
        await script.kind.append(10)
        assert (slow.is_open, pausing.is_open, quick.is_open) == (False, True, True)
        assert slow.sink.closed, "it is ended, so that it can resume"
        assert not script.kind.received(slow.sinks)
        await script.kind.append(10)
        for reader in (pausing, quick):
            assert script.kind.received(reader.sinks) == script.kind.expected(0)
        dropped = await scrape(script.kind.client)
        assert dropped["penstock_sse_dropped_total"] == (kind != "table")
        assert dropped["penstock_table_readers_dropped_total"] == (kind == "table")
        slow.was_slow = True
        await script.finish("none")

    run(kind, store, check)


@each_store
@each_kind
def test_a_reader_that_joins_in_the_middle_of_a_batch_misses_nothing(kind: str, store: str) -> None:
    async def check(script: Script) -> None:
        await script.run("append", 10)
        for turns in range(8):
            for size in (3, 1, 11):
                await script.run("start_append", size)
            await script.run("turn", turns)
            await script.run("join", 0)
            await script.run("start_append", 5)
            await script.run("join", 1)
            await script.run("settle_appends", 0)
        await script.finish("none")

    run(kind, store, check)


@each_kind
@pytest.mark.parametrize("ending", ["close", "delete", "stop"])
def test_the_end_reaches_readers_in_every_state(kind: str, ending: str) -> None:
    async def check(script: Script) -> None:
        await script.run("append_much", 0)
        first = len(script.kind.starts) - 1
        await script.run("join", 0)  # at the tail
        await script.run("join_stalled", first)
        await script.run("join", first)  # between two pieces when the end comes
        await script.run("turn", 2)
        tasks = [task for task in asyncio.all_tasks() if "_catch_up" in repr(task)]
        assert len(tasks) == 2
        await script.finish(ending)
        await asyncio.wait(tasks, timeout=5)
        assert all(task.done() for task in tasks)

    run(kind, "memory", check)


@each_kind
def test_an_error_while_a_commit_is_encoded_cuts_its_readers_off(kind: str) -> None:
    async def check(script: Script) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError

        await script.run("join", 0)
        await script.run("join", 0)
        (channel,) = script.kind.client.engine.find("s", touch=False).watchers
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(channel.encoder), "publish", broken)
            await script.run("append", 3)  # its append is acknowledged all the same
        for reader in script.readers:
            assert reader.sink.aborted
        script.readers.clear()
        await script.run("join", 1)
        await script.run("append", 3)
        await script.finish("none")

    run(kind, "memory", check)


@pytest.mark.parametrize("kind", ["json", "binary", "text"])
def test_a_reader_of_damaged_bytes_does_not_fail_an_append(kind: str) -> None:
    async def check(script: Script) -> None:
        def damaged(*_: object) -> bytes:
            raise Damaged("Block 7 does not match its checksum.")

        engine, other = script.kind.client.engine, script.kind
        await script.run("join", 0)
        stream = engine.find("s", touch=False)
        (channel,) = stream.watchers
        channel._resume_joined()  # as after a large commit: the next one is read from the log
        engine.read_now, read_now = damaged, engine.read_now
        await other.append(3)
        assert script.readers.pop().sink.aborted
        engine.read_now = read_now
        assert other.client.app.traffic.errors == {"stored-data-damaged": 1}
        await script.run("join", len(other.starts) - 1)
        await script.finish("none")

    run(kind, "memory", check)


@each_kind
def test_joined_readers_share_the_bytes_of_every_commit(kind: str) -> None:
    async def check(script: Script) -> None:
        await script.run("join_stalled", 0)  # opens the channel, and is behind for a while
        await script.run("append", 2)
        await script.run("drain", 0)
        first = script.readers[0]
        await first.sink.until(lambda sink: bool(script.kind.received([sink])))
        for _ in range(4):
            await script.run("join", 0)
        for _ in range(3):
            await script.run("append", 4)
            assert len({id(reader.sink.frames[-1]) for reader in script.readers}) == 1
        await script.finish("none")

    run(kind, "memory", check)
