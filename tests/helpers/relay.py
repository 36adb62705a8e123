"""An HTTP relay in front of a server, at which a test decides the fate of each request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """A request: its method and number (from 1, of its method, since the last `reset`)."""

    method: str
    number: int
    headers: dict[str, str]
    body: bytes


class Answered(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


_OPAQUE = re.compile(r"opaque-([0-9a-f]+)")

Forward = Callable[[], Answered]
# Gives the answer, or None to hang up on the client.
Fate = Callable[[Asked, Forward], Answered | None]


def _pass_on(asked: Asked, forward: Forward) -> Answered | None:
    return forward()


class Relay:
    """Passes every request on, until `fate` says otherwise.

    With `opaque_offsets` it looks like a server whose offsets say nothing to anybody else.
    """

    def __init__(self, port: int, *, opaque_offsets: bool = False) -> None:
        self.fate: Fate = _pass_on
        self._opaque_offsets = opaque_offsets
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(port))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def reset(self, fate: Fate = _pass_on) -> None:
        self.fate = fate
        self._counts.clear()

    def _count(self, method: str) -> int:
        with self._lock:
            self._counts[method] = self._counts.get(method, 0) + 1
            return self._counts[method]

    def _handler(self, port: int) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = Asked(
                    self.command, relay._count(self.command), dict(self.headers.items()), body
                )
                answered = relay.fate(asked, lambda: relay._forward(port, self.path, asked))
                if answered is None:
                    self.close_connection = True
                    return
                try:
                    self._answer(answered)
                except OSError:  # the client was killed
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

            def _answer(self, answered: Answered) -> None:
                self.send_response_only(answered.status)
                for name, value in answered.headers:
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answered.body)))
                self.end_headers()
                self.wfile.write(answered.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    @contextmanager
    def serving(self) -> Iterator[Relay]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _forward(self, port: int, target: str, asked: Asked) -> Answered:
        if not self._opaque_offsets:
            return _forward(port, target, asked)
        target = _OPAQUE.sub(lambda match: bytes.fromhex(match[1]).decode(), target)
        answered = _forward(port, target, asked)
        headers = [
            (name, f"opaque-{value.encode().hex()}" if name == "stream-next-offset" else value)
            for name, value in answered.headers
        ]
        return answered._replace(headers=headers)


def _forward(port: int, target: str, asked: Asked) -> Answered:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {name: value for name, value in asked.headers.items() if name.lower() != "host"}
        connection.request(asked.method, target, asked.body, headers)
        response = connection.getresponse()
        return Answered(response.status, response.getheaders(), response.read())
    finally:
        connection.close()
