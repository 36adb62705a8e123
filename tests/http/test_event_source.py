"""EventSource without a library: ids, Last-Event-ID, the end of a stream, comments.

The browser's side is Node's own EventSource where there is one, and a small one after the text of
the HTML standard.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.config.settings import Settings
from penstock.http.live import comments
from penstock.protocol.sse import COMMENT
from tests.conformance.suite import find_node
from tests.helpers.app import Client, FakeSink, run_with_app, with_app
from tests.helpers.server import running_server

TEXT = "text/plain"
JSON = "application/json"
BYTES = "application/octet-stream"
JSON_TYPE = {"content-type": JSON}


class Dispatched(NamedTuple):
    """What a browser has from a response that may be cut anywhere."""

    data: list[str]
    controls: list[str]
    last_id: str


def dispatched(stream: bytes) -> Dispatched:
    """Parse a response as the HTML standard says: an event without its empty line is none."""
    data: list[str] = []
    controls: list[str] = []
    last_id = id_buffer = ""
    kind = ""
    lines: list[str] = []
    for line in stream.decode("utf-8", "ignore").split("\n")[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            last_id = id_buffer
            if lines:
                (controls if kind == "control" else data).append("\n".join(lines))
            kind, lines = "", []
        elif name == "event":
            kind = value
        elif name == "data":
            lines.append(value)
        elif name == "id":
            id_buffer = value
    return Dispatched(data, controls, last_id)


async def resumed(client: Client, path: str, last_id: str, query: str = "") -> FakeSink:
    target = f"/v1/stream/{path}?offset=-1&live=sse&{query}"
    response = await client.respond("GET", target, last_event_id=last_id)
    sink = FakeSink(response)
    sink.body.attach(sink)
    return sink


@pytest.mark.parametrize("query", ["", "sse=message"])
@pytest.mark.parametrize(
    ("content_type", "parts"),
    [
        (TEXT, [b"one\n", b"tw\xe2", b"\x82", b"\xaco\r", b"\nthree", b""]),
        (JSON, [b"[1,2]", b'["a","b"]', b'{"x":"\\u0000"}']),
        (BYTES, [b"\x00\r\n", b"\xff", b"xyz"]),
    ],
)
def test_a_browser_that_is_cut_off_anywhere_goes_on_without_loss_or_repeat(
    content_type: str, parts: list[bytes], query: str
) -> None:
    def joined(data: list[str]) -> object:
        if content_type == JSON:
            return [message for event in data for message in json.loads(event)]
        if content_type == BYTES:
            return b"".join(map(base64.b64decode, data))
        return "".join(data)

    async def test(client: Client) -> None:
        await client.put("a", content_type=content_type)
        sink = await client.sse("a", query=query)
        for part in filter(None, parts):
            await client.post("a", part, content_type=content_type)
        whole = b"".join(sink.frames)
        expected = joined(dispatched(whole).data)
        for cut in range(len(whole) + 1):
            first = dispatched(whole[:cut])
            rest = await resumed(client, "a", first.last_id, query)
            both = first.data + dispatched(b"".join(rest.frames)).data
            assert joined(both) == expected, whole[:cut]
            rest.body.detach()

    run_with_app(test, Settings(memory=True))


@with_app()
async def test_every_event_has_the_id_at_which_reading_goes_on(client: Client) -> None:
    offsets = [(await client.put("a", b"[1]", content_type=JSON)).offset]
    sink = await client.sse("a")
    offsets.append((await client.post("a", b"[2]", content_type=JSON)).offset)
    frames = b"".join(sink.frames).decode()
    assert frames.startswith("retry: 1000\n\n")
    ids = [line.removeprefix("id: ") for line in frames.split("\n") if line.startswith("id: ")]
    assert ids == [offsets[0]] * 2 + [offsets[1]] * 2
    assert [control["streamNextOffset"] for control in sink.controls] == offsets


@with_app()
async def test_the_last_event_id_wins_over_the_offset(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    middle = (await client.post("a", b"[2]", content_type=JSON)).offset
    await client.post("a", b"[3]", content_type=JSON)
    assert json.loads((await resumed(client, "a", middle)).data[0]) == [3]
    assert json.loads((await resumed(client, "a", "")).data[0]) == [1, 2, 3], "empty is none"
    alone = await client.respond("GET", "/v1/stream/a?live=sse", last_event_id=middle)
    assert alone.status == 200
    read = await client.get("a", "offset=-1", last_event_id=middle)
    assert read.json() == [1, 2, 3], "only live=sse knows it"
    junk = await client.get("a", "offset=-1&live=sse", last_event_id="junk")
    assert (junk.status, junk.json()["code"]) == (400, "invalid-offset")


@with_app()
async def test_a_reader_of_the_whole_of_a_closed_stream_is_told_to_stop(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    tail = (await client.post("a", b"[2]", content_type=JSON, stream_closed="true")).offset
    sink = await client.sse("a")
    assert sink.closed
    last_id = dispatched(b"".join(sink.frames)).last_id
    assert last_id == tail
    done = await client.get("a", "offset=-1&live=sse", last_event_id=last_id)
    assert (done.status, done.body, done.offset) == (204, b"", tail)
    assert done.headers["stream-closed"] == "true"
    assert done.headers["cache-control"] == "no-store"
    first = await client.sse("a", tail)
    assert first.controls[0]["streamClosed"] is True, "who comes first is told in an event"


@with_app()
async def test_a_browser_that_comes_to_a_stopping_server_comes_again(client: Client) -> None:
    tail = (await client.put("a", b"[1]", content_type=JSON)).offset
    client.app.drain()
    again = await client.get("a", "offset=-1&live=sse", last_event_id=tail)
    assert (again.status, again.body) == (200, b"retry: 1000\n\n")
    assert again.headers["content-type"] == "text/event-stream"
    other = await client.get("a", "offset=-1&live=sse")
    assert other.status == 503, "clients that know the protocol are told why"


@with_app(sse_keepalive_s=0.02)
async def test_idle_readers_get_comments_while_they_are_there(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    sink, slow, gone = [await client.sse("a") for _ in range(3)]
    slow.congested = True
    gone.body.detach()
    await sink.until(lambda sink: sink.frames.count(COMMENT) >= 3)
    assert COMMENT not in slow.frames + gone.frames
    await client.post("a", b"x", content_type=TEXT)
    assert sink.data == ["x"], "a comment is no event"
    sink.body.detach()
    slow.body.detach()
    written = client.app.streams.live._comments
    while written._timer is not None:
        await asyncio.sleep(0.01)
    assert not any(written._ring)


@with_app(sse_keepalive_s=0.02)
async def test_comments_for_many_readers_are_spread_over_turns(client: Client) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comments, "TURN_READERS_MAX", 2)
        await client.put("a", content_type=TEXT)
        sinks = [await client.sse("a") for _ in range(7)]
        for sink in sinks:
            await sink.until(lambda sink: sink.frames.count(COMMENT) >= 2)
        counts = [sink.frames.count(COMMENT) for sink in sinks]
        assert max(counts) - min(counts) <= 1


@with_app(sse_keepalive_s=0)
async def test_comments_can_be_switched_off(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    await client.sse("a")
    assert client.app.streams.live._comments._timer is None


BROWSER = """
const source = new EventSource(process.argv[1]);
const say = (...words) => console.log(JSON.stringify(words));
source.onopen = () => say("open");
source.onmessage = (event) => say("message", JSON.parse(event.data), event.lastEventId);
source.addEventListener("control", (event) => say("control", JSON.parse(event.data)));
source.onerror = () => say("error", source.readyState === EventSource.CLOSED);
setInterval(() => {}, 1000);  // else Node ends while the source waits to reconnect
"""


@contextlib.contextmanager
def browser(url: str) -> Iterator[queue.Queue[Any]]:
    """Node's EventSource at `url`; what it is given comes out of the queue."""
    node = find_node()
    command = [node or "node", "--experimental-eventsource", "--no-warnings", "-e", BROWSER, url]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    events: queue.Queue[Any] = queue.Queue()

    def forward() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            events.put(json.loads(line))

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield events
    finally:
        process.kill()
        process.wait()
        thread.join()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def has_event_source() -> bool:
    node = find_node()
    if node is None:
        return False
    command = [node, "--experimental-eventsource", "-e", "new EventSource('http://x').close()"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_node_reads_on_over_the_end_of_responses_and_stops_at_the_end_of_the_stream() -> None:
    if not has_event_source():
        pytest.skip("this Node has no EventSource: 20.18 and 22.3 are the first to have it")
    seen: list[int] = []

    def until(events: queue.Queue[Any], count: int) -> None:
        while len(seen) < count:
            kind, *rest = events.get(timeout=30)
            if kind == "message":
                seen.extend(rest[0])

    with running_server(memory=True, args=["--sse-timeout", "0.2"]) as server:
        url = f"{server.url}/v1/stream/a"
        assert httpx.put(url, content=b"[1,2]", headers=JSON_TYPE).status_code == 201
        with browser(f"{url}?offset=-1&live=sse&sse=message") as events:
            until(events, 2)
            while events.get(timeout=30)[0] != "open":
                pass  # the response has ended, and was resumed
            httpx.post(url, content=b"[3]", headers=JSON_TYPE)
            until(events, 3)
            httpx.post(url, content=b"[4]", headers={**JSON_TYPE, "stream-closed": "true"})
            until(events, 4)
            while events.get(timeout=30) != ["error", True]:
                pass  # the browser was told to stop
    assert seen == [1, 2, 3, 4]


class Browser(threading.Thread):
    """An EventSource that does what browsers do, also while the server is down."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.messages: list[int] = []
        self.changed = threading.Condition()
        self.failure: str | None = None

    def run(self) -> None:
        last_id = ""
        while True:
            headers = {"accept": "text/event-stream", "cache-control": "no-cache"}
            if last_id:
                headers["last-event-id"] = last_id
            received = b""
            try:
                with httpx.stream("GET", self.url, headers=headers, timeout=30) as response:
                    if response.status_code != 200:
                        self.failure = (
                            None if response.status_code == 204 else response.reason_phrase
                        )
                        return
                    for piece in response.iter_raw():
                        received += piece
                        whole = received.rfind(b"\n\n") + 2
                        if whole >= 2:
                            last_id = self._dispatch(received[:whole]) or last_id
                            received = received[whole:]
            except httpx.HTTPError:
                pass
            time.sleep(0.05)  # in a browser, as long as `retry` says

    def _dispatch(self, events: bytes) -> str:
        data, _, last_id = dispatched(events)
        with self.changed:
            self.messages += [message for event in data for message in json.loads(event)]
            self.changed.notify_all()
        return last_id

    def until(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.messages) >= count, timeout=30)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_a_browser_reads_on_over_a_restart_of_the_server(kill: bool, tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path) as server:
        url = f"{server.url}/v1/stream/a"
        assert httpx.put(url, content=b"[1,2]", headers=JSON_TYPE).status_code == 201
        browser = Browser(f"{url}?offset=-1&live=sse&sse=message")
        browser.start()
        browser.until(2)
        httpx.post(url, content=b"[3]", headers=JSON_TYPE)
        browser.until(3)
        if kill:
            server.kill()
    with running_server(data_dir=tmp_path, args=["--port", str(server.port)]):
        httpx.post(url, content=b"[4]", headers=JSON_TYPE)
        browser.until(4)
        httpx.post(url, content=b"[5]", headers={**JSON_TYPE, "stream-closed": "true"})
        browser.join(30)
    assert not browser.is_alive()
    assert (browser.failure, browser.messages) == (None, [1, 2, 3, 4, 5])
