"""Several streams on one response of real servers: transports, crashes, many readers, browsers."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidCursor
from penstock.http.streams.many.positions import Positions, parse_cursor
from tests.conformance.suite import find_node
from tests.helpers.server import Server, running_server
from tests.http.test_event_source import has_event_source
from tests.http.test_many import contents, seen

JSON_TYPE = {"content-type": "application/json"}
# Plain HTTP: certificates take long to load. No connection is left open at the end.
HTTP = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))


def put(server: Server, path: str, body: bytes = b"") -> None:
    response = HTTP.put(f"{server.url}/v1/stream/{path}", content=body, headers=JSON_TYPE)
    assert response.status_code == 201


def post(server: Server, path: str, body: bytes, **headers: str) -> None:
    url = f"{server.url}/v1/stream/{path}"
    assert HTTP.post(url, content=body, headers={**JSON_TYPE, **headers}).status_code == 204


BROWSERS: list[Browser] = []


@pytest.fixture(autouse=True)
def no_browser_is_left() -> Iterator[None]:
    yield
    while BROWSERS:
        BROWSERS.pop().close()


class Browser(threading.Thread):
    """An EventSource that does what browsers do, also while the server is down."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self._closed = threading.Event()
        BROWSERS.append(self)
        self.entries: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.status = 0
        self.responses = 0

    def run(self) -> None:
        last_id = ""
        while not self._closed.wait(0.05):  # in a browser, as long as `retry` says
            headers = {"accept": "text/event-stream"}
            if last_id:
                headers["last-event-id"] = last_id
            received = b""
            try:
                with httpx.stream("GET", self.url, headers=headers, timeout=30) as response:
                    if response.status_code != 200:
                        self.status = response.status_code
                        return
                    self.responses += 1
                    for piece in response.iter_raw():
                        received += piece
                        whole = received.rfind(b"\n\n") + 2
                        if whole >= 2:
                            last_id = self._dispatch(received[:whole]) or last_id
                            received = received[whole:]
            except httpx.HTTPError:
                pass

    def close(self) -> None:
        """End the thread; its server has stopped."""
        self._closed.set()
        self.join(timeout=30)
        assert not self.is_alive()

    def _dispatch(self, events: bytes) -> str:
        entries, last_id = seen(events)
        with self.changed:
            self.entries += entries
            self.changed.notify_all()
        return last_id

    def until(self, expected: dict[str, Any]) -> None:
        with self.changed:
            holds = self.changed.wait_for(lambda: contents(self.entries) == expected, timeout=30)
        assert holds, (contents(self.entries), expected)


@pytest.mark.parametrize("asgi", [False, True], ids=["native", "asgi"])
def test_both_transports_serve_it_beyond_the_time_of_a_response(asgi: bool) -> None:
    with running_server(memory=True, asgi=asgi, args=["--sse-timeout", "1"]) as server:
        put(server, "x/a", b"[1]")
        browser = Browser(f"{server.url}/v1/streams/live?match=x/*@-1&stream=b@now")
        browser.start()
        browser.until({"x/a": [1]})
        expected: dict[str, list[int]] = {"x/a": [1], "b": [2], "x/c": [3]}
        put(server, "b", b"[2]")
        put(server, "x/c", b"[3]")
        browser.until(expected)
        deadline, number = time.monotonic() + 30, 0
        while browser.responses < 3:
            assert time.monotonic() < deadline, "no response has ended"
            for path in expected:
                post(server, path, json.dumps([number]).encode())
                expected[path].append(number)
            number += 1
            time.sleep(0.02)
        browser.until(expected)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_a_browser_reads_on_over_a_restart_of_the_server(kill: bool, tmp_path: Path) -> None:
    query = "stream=a@-1&stream=b@-1&stream=c@-1"
    with running_server(data_dir=tmp_path) as server:
        put(server, "a", b"[1]")
        put(server, "b", b"[2]")
        browser = Browser(f"{server.url}/v1/streams/live?{query}")
        browser.start()
        post(server, "a", b"[3]")
        browser.until({"a": [1, 3], "b": [2]})
        if kill:
            server.kill()
    with running_server(data_dir=tmp_path, args=["--port", str(server.port)]) as again:
        put(again, "c", b"[4]")
        post(again, "b", b"[5]")
        browser.until({"a": [1, 3], "b": [2, 5], "c": [4]})
        for path in "abc":
            post(again, path, b"[6]", **{"stream-closed": "true"})
        browser.join(30)
    assert not browser.is_alive()
    assert browser.status == 204, "which makes a browser stop"
    assert contents(browser.entries) == {"a": [1, 3, 6], "b": [2, 5, 6], "c": [4, 6]}


@contextlib.contextmanager
def sockets(server: Server, target: str, count: int) -> Iterator[list[socket.socket]]:
    """Plain connections that have sent a request and read nothing yet."""
    connections = []
    try:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            request = f"GET {target} HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
            connection.sendall(request.encode())
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def received(connection: socket.socket, until: bytes) -> bytes:
    """Read up to the end of the event that has some bytes."""
    data = b""
    while b"\n\n" not in data.partition(until)[2]:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def test_five_hundred_connections_get_everything() -> None:
    with running_server(memory=True) as server:
        for number in range(20):
            put(server, f"s/{number}", b"[0]")
        with sockets(server, "/v1/streams/live?match=s/*@now", 500) as connections:
            heads = [received(each, b'{"upToDate":true}') for each in connections]
            for number in range(20):
                post(server, f"s/{number}", json.dumps([number]).encode())
            post(server, "s/0", b'["last"]')
            for head, connection in zip(heads, connections, strict=True):
                whole = head + received(connection, b'["last"]')
                data = contents(seen(whole.partition(b"\r\n\r\n")[2]).entries)
                assert data == {
                    f"s/{number}": [number, "last"] if number == 0 else [number]
                    for number in range(20)
                }


def sse_readers(server: Server) -> float:
    lines = HTTP.get(f"{server.url}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("penstock_") and '="sse"}' in line]
    return float(line.split()[-1])


def test_a_reader_that_reads_nothing_is_cut_off_and_holds_little() -> None:
    with running_server(memory=True, args=["--write-stall-timeout", "1"]) as server:
        put(server, "a", b"[0]")
        with sockets(server, "/v1/streams/live?stream=a@-1", 3) as connections:
            for connection in connections:
                received(connection, b"upToDate")
            assert sse_readers(server) == 3
            body = json.dumps(["x" * 900_000]).encode()
            for _ in range(40):
                post(server, "a", body)
            deadline = time.monotonic() + 20
            while (readers := sse_readers(server)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert readers == 0


BROWSER = """
const source = new EventSource(process.argv[1]);
const say = (...words) => console.log(JSON.stringify(words));
source.onmessage = (event) => say("entries", JSON.parse(event.data));
source.onopen = () => say("open");
source.onerror = () => say("error", source.readyState === EventSource.CLOSED);
setInterval(() => {}, 1000);  // else Node ends while the source waits to reconnect
"""


def test_node_reads_several_streams_without_a_library() -> None:
    if not has_event_source():
        pytest.skip("this Node has no EventSource: 20.18 and 22.3 are the first to have it")
    with running_server(memory=True, args=["--sse-timeout", "1"]) as server:
        put(server, "a", b"[1]")
        url = f"{server.url}/v1/streams/live?stream=a@-1&stream=b@-1"
        command = [find_node() or "node", "--experimental-eventsource", "--no-warnings", "-e"]
        process = subprocess.Popen(
            [*command, BROWSER, url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        words: queue.Queue[Any] = queue.Queue()

        def forward() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                words.put(json.loads(line))

        thread = threading.Thread(target=forward)
        thread.start()
        entries: list[dict[str, Any]] = []
        opened = 0

        def until(expected: dict[str, Any], responses: int = 1) -> None:
            nonlocal opened
            while contents(entries) != expected or opened < responses:
                kind, *rest = words.get(timeout=30)
                opened += kind == "open"
                entries.extend(rest[0] if kind == "entries" else [])

        try:
            until({"a": [1]}, responses=2)
            put(server, "b", b"[2]")
            post(server, "a", b"[3]")
            until({"a": [1, 3], "b": [2]}, responses=3)
            for path in "ab":
                post(server, path, b"[4]", **{"stream-closed": "true"})
            until({"a": [1, 3, 4], "b": [2, 4]})
            while words.get(timeout=30) != ["error", True]:
                pass  # the browser was told to stop
        finally:
            process.kill()
            process.wait()
            thread.join()
            assert process.stdout is not None
            process.stdout.close()


# -- garbage


def test_no_query_and_no_cursor_is_answered_500() -> None:
    rng = random.Random(16)
    parts = [
        "stream",
        "match",
        "cursor",
        "=",
        "&",
        "@",
        "now",
        "-1",
        "*",
        "**",
        "/",
        "a",
        "%",
        "%4",
    ]
    parts += ["%40", "+", "..", "__ds", "0000000000000001_0000000000000003", "\\", "%00", "1AAAA"]
    with running_server(memory=True) as server, httpx.Client(timeout=5) as client:
        put(server, "a", b"[1,2]")
        url = f"{server.url}/v1/streams/live"
        for _ in range(1500):
            query = "".join(rng.choice(parts) for _ in range(rng.randint(0, 12)))
            headers = {"last-event-id": rng.choice(parts)} if rng.random() < 0.2 else {}
            with client.stream(
                "GET", f"{url}?{quote(query, safe='=&@%/*+')}", headers=headers
            ) as r:
                assert r.status_code in (200, 400), (query, r.status_code)
        assert server.running


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.integers(1, 10**16 - 1),
        st.tuples(st.integers(0, 10**16 - 1), st.booleans()),
        max_size=40,
    ),
    st.binary(max_size=20),
)
def test_a_cursor_says_what_it_was_made_of(values: dict[int, tuple[int, bool]], key: bytes) -> None:
    positions = Positions()
    for generation, (position, closed) in values.items():
        positions.set(generation, position, closed=closed)
        if generation % 3 == 0:
            positions.cursor(key)  # what is cached must not matter
    parsed = parse_cursor(positions.cursor(key).decode(), key)
    assert parsed.newest == max(values, default=0)
    assert {each: (parsed.position(each), parsed.knows_closed(each)) for each in parsed} == values
    with pytest.raises(InvalidCursor):
        parse_cursor(positions.cursor(key).decode(), key + b"x")


@settings(max_examples=300)
@given(st.text(max_size=60) | st.from_regex(r"1[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_garbage_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        parse_cursor(text, b"key")


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_a_checksum_does_not_make_garbage_a_cursor(body: bytes) -> None:
    from base64 import urlsafe_b64encode
    from zlib import crc32

    data = crc32(b"key" + body).to_bytes(4, "big") + body
    text = "1" + urlsafe_b64encode(data).rstrip(b"=").decode()
    with contextlib.suppress(InvalidCursor):
        positions = parse_cursor(text, b"key")
        assert all(1 <= each <= positions.newest for each in positions)


def test_a_cursor_changed_in_one_character_is_refused() -> None:
    positions = Positions()
    for generation in range(1, 30):
        positions.set(generation, generation * 1000)
    text = positions.cursor(b"key").decode()
    for index in range(len(text) - 1):
        changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
        with pytest.raises(InvalidCursor):
            parse_cursor(changed, b"key")
