"""Drives an App without a transport: requests as calls, answers as values, SSE into a FakeSink.

@with_app(long_poll_timeout_s=0.01)
async def test_something(client: Client) -> None:
    await client.put("a", b"[1]", content_type="application/json")

Each test runs on the memory store and on the disk store.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.http.message import EventBody, RangeBody, Request, Response
from penstock.http.sender import Sender
from penstock.log import open_engine

STORES = ("memory", "disk")


class Answer(NamedTuple):
    """A response with its body read to the end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def offset(self) -> str:
        return self.headers["stream-next-offset"]

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls the App as a transport would: `refuse` first, then `handle`."""

    def __init__(self, app: App, engine: Any, clock: ManualClock) -> None:
        self.app = app
        self.engine = engine
        self.clock = clock

    async def send(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        return await finish(await self.respond(method, target, body, **headers))

    async def respond(
        self, method: str, target: str, body: bytes = b"", **headers: str
    ) -> Response:
        request = make_request(method, target, body, **headers)
        refused = self.app.refuse(request)
        if refused is not None:
            return refused
        answer = self.app.handle(request)
        return answer if isinstance(answer, Response) else await answer

    async def put(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        return await self.send("PUT", f"/v1/stream/{path}", body, **headers)

    async def post(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        return await self.send("POST", f"/v1/stream/{path}", body, **headers)

    async def get(self, path: str, query: str = "", **headers: str) -> Answer:
        return await self.send("GET", f"/v1/stream/{path}?{query}", b"", **headers)

    async def head(self, path: str) -> Answer:
        return await self.send("HEAD", f"/v1/stream/{path}")

    async def delete(self, path: str) -> Answer:
        return await self.send("DELETE", f"/v1/stream/{path}")

    async def sse(self, path: str, offset: str = "-1", query: str = "") -> FakeSink:
        """A live reader; its frames arrive in the sink."""
        target = f"/v1/stream/{path}?offset={offset}&live=sse&{query}"
        response = await self.respond("GET", target)
        assert response.status == 200
        assert isinstance(response.body, EventBody)
        sink = FakeSink(response)
        response.body.attach(sink)
        return sink


class FakeSink:
    """Remembers what was written; congested and full when a test says so."""

    def __init__(self, response: Response) -> None:
        assert isinstance(response.body, EventBody)
        self.headers = _headers(response)
        self.body = response.body
        self.frames: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.congested = False
        self.buffered = 0
        self.full_after = 0  # congested when so many frames are written; 0 is never
        self._moved = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.frames.append(data)
        if len(self.frames) == self.full_after:
            self.congested, self.buffered = True, len(data)
        self._moved.set()

    def close(self) -> None:
        self.closed = True
        self._moved.set()

    def abort(self) -> None:
        self.aborted = True
        self._moved.set()

    @property
    def events(self) -> list[tuple[str, str]]:
        """All events as (type, data), parsed as a browser would."""
        events = []
        for block in b"".join(self.frames).decode().split("\n\n")[:-1]:
            lines = [line.split(":", 1) for line in block.split("\n")]
            kind = next((value.strip() for name, value in lines if name == "event"), "message")
            data = [value.removeprefix(" ") for name, value in lines if name == "data"]
            if data:
                events.append((kind, "\n".join(data)))
        return events

    @property
    def data(self) -> list[str]:
        return [data for kind, data in self.events if kind == "data"]

    @property
    def controls(self) -> list[dict[str, Any]]:
        return [json.loads(data) for kind, data in self.events if kind == "control"]

    async def until(self, condition: Callable[[FakeSink], bool]) -> None:
        """Wait for the writes that make the condition true."""
        while not condition(self):
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 5)


def make_request(method: str, target: str, body: bytes = b"", **headers: str) -> Request:
    """Header names are given with underscores: `stream_closed="true"`."""
    path, _, query = target.partition("?")
    raw = {
        name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()
    }
    raw.setdefault(b"host", b"localhost:4437")
    sender = Sender("127.0.0.1")
    return Request(method, path.encode("latin-1"), query.encode("latin-1"), raw, body, sender)


async def finish(response: Response) -> Answer:
    """Read a response to its end, checking the length it announces."""
    body = response.body
    if isinstance(body, RangeBody):
        first = body.first()
        parts = [] if first is None else [first]
        parts += [piece async for piece in body.pieces()]
        body.close()
        assert all(0 < len(part) <= 256 * 1024 for part in parts)
        data = b"".join(parts)
        assert len(data) == body.length
        body = data
    assert isinstance(body, bytes)
    return Answer(response.status, _headers(response), body)


def with_app(
    **options: Any,
) -> Callable[[Callable[[Client], Awaitable[None]]], Callable[..., None]]:
    """Run an async test with a fresh App, once on each store."""

    def decorate(test: Callable[[Client], Awaitable[None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("store", STORES)
        def run(store: str, tmp_path: Path) -> None:
            run_with_app(test, settings_of(store, tmp_path, **options))

        run.__name__ = getattr(test, "__name__", "test")
        run.__doc__ = test.__doc__
        return run

    return decorate


def settings_of(store: str, folder: Path, **options: Any) -> Settings:
    """Settings of a small server on one of `STORES`."""
    if store == "memory":
        return Settings(**{"memory": True, **options})
    small: dict[str, Any] = {
        "data_dir": folder,
        "durability": "buffered",
        "journal_file_bytes": 1024 * 1024,
        "disk_reserve_bytes": 0,
    }
    return Settings(**{**small, **options})


def run_with_app(test: Callable[[Client], Awaitable[None]], settings: Settings) -> None:
    asyncio.run(_run(test, settings))


async def _run(test: Callable[[Client], Awaitable[None]], settings: Settings) -> None:
    clock = ManualClock(1_800_000_000_000_000)
    engine = open_engine(settings, clock=clock)
    await engine.start()
    app = App(engine, settings, clock=clock)
    try:
        await asyncio.wait_for(test(Client(app, engine, clock)), 20)
    finally:
        app.close()
        await engine.stop()


def _headers(response: Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        assert name == name.lower()
        assert name.decode() not in headers, f"{name!r} is sent twice"
        headers[name.decode()] = value.decode("latin-1")
    return headers
