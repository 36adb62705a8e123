"""What the tests say to subscriptions, as calls; and a receiver of webhooks that does as told."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from penstock.subscriptions.service import Subscriptions
from tests.helpers.app import Answer, Client

JSON = "application/json"
ROOT = "/v1/stream/__ds/subscriptions"
WAIT_S = 20.0


async def caught_up(service: Subscriptions) -> None:
    """Wait until a service that has just started knows everything that is pending."""
    await service.scanned()


class Desk:
    """A subscription, by way of an App."""

    def __init__(self, client: Client, id: str = "s") -> None:
        self.client = client
        self.url = f"{ROOT}/{id}"
        self.service = client.app.subscriptions

    async def put(self, **document: Any) -> Answer:
        return await self.send("PUT", "", document)

    async def pull(self, **document: Any) -> None:
        """Make a pull-wake subscription, with its wake stream."""
        await self.client.put("wake/pool", b"[]", content_type=JSON)
        document = {"pattern": "events/*", "lease_ttl_ms": 1000, **document}
        answer = await self.put(type="pull-wake", wake_stream="wake/pool", **document)
        assert answer.status == 201, answer.body

    async def show(self) -> Any:
        return (await self.send("GET", "")).json()

    async def claim(self, worker: str = "w1") -> Answer:
        return await self.send("POST", "/claim", {"worker": worker})

    async def send(
        self, method: str, action: str, document: Any = None, token: str | None = None
    ) -> Answer:
        headers = {"content_type": JSON}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        body = b"" if document is None else json.dumps(document).encode()
        return await self.client.send(method, self.url + action, body, **headers)

    async def report(self, action: str, wake: Any, **fields: Any) -> Answer:
        """Say something of a wake, with the token that came with it."""
        document = {"wake_id": wake["wake_id"], "generation": wake["generation"], **fields}
        token = wake.get("token") or wake["callback_token"]
        return await self.send("POST", f"/{action}", document, token)

    async def finish(self, wake: Any) -> Answer:
        """Ack everything that a wake names."""
        acks = [
            {"stream": each["path"], "offset": each["tail_offset"]}
            for each in wake["streams"]
            if each["has_pending"]
        ]
        return await self.report("ack", wake, acks=acks, done=True)

    async def wakes(self) -> list[Any]:
        """The events in the wake stream."""
        found: list[Any] = (await self.client.get("wake/pool")).json()
        return found

    async def append(self, path: str, value: Any = 1) -> Answer:
        """To a stream that is made if need be."""
        body = json.dumps(value).encode()
        answer = await self.client.post(path, body, content_type=JSON)
        if answer.status == 404:
            answer = await self.client.put(path, body, content_type=JSON)
        assert answer.status < 300, answer.body
        return answer

    async def tail(self, path: str) -> str:
        return (await self.client.head(path)).offset

    async def cursors(self) -> dict[str, str]:
        return {each["path"]: each["acked_offset"] for each in (await self.show())["streams"]}


class Call(NamedTuple):
    """A webhook that was called."""

    body: bytes
    signature: str

    @property
    def wake(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Answers with what `answers` holds, then with `default`; None is an answer, `held`, that is
    held back until the receiver is let go."""

    def __init__(self, port: int = 0) -> None:
        self.calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self.default: tuple[int, Any] = (200, {"done": True})
        self.held: tuple[int, Any] = (200, {})
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def next(self) -> Call:
        """The next call that comes, or has come."""
        return self.calls.get(timeout=WAIT_S)

    def answer(self) -> tuple[int, Any] | None:
        try:
            return self.answers.get_nowait()
        except queue.Empty:
            return self.default

    def forget(self) -> None:
        """Begin anew: what was called, and what was to be answered."""
        self.calls, self.answers = queue.SimpleQueue(), queue.SimpleQueue()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.answer()
            receiver.calls.put(Call(body, self.headers["webhook-signature"]))
            if answer is None:
                receiver.released.wait(WAIT_S)
                answer = receiver.held
            status, content = answer
            data = json.dumps(content).encode()
            try:
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the server has given up on it

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    running = Receiver(port)
    try:
        yield running
    finally:
        running.close()
