"""A transport of the asyncio client that calls an ASGI application in the same event loop.

Bodies are streamed both ways without sockets and threads: the application waits while the client
is behind, and learns of it when the client leaves. Knows ASGI and httpx2, not the application.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import httpx2

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Left(OSError):
    """The client has closed the response: what is sent now reaches nobody."""


class AsgiTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of a client to an ASGI application; `check` raises if it cannot be used
    now."""

    def __init__(self, app: Application, *, check: Callable[[], None] = lambda: None) -> None:
        self._app = app
        self._check = check
        # The event loop itself holds tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._check()
        exchange = Exchange(await request.aread(), request.extensions)
        answering = self._app(_scope(request), exchange.receive, exchange.send)
        task = asyncio.create_task(exchange.run(answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        status, headers = await exchange.head()
        return httpx2.Response(status, headers=headers, stream=exchange)


class Exchange(httpx2.AsyncByteStream):
    """One request and its response, of which at most one piece is held."""

    def __init__(self, body: bytes, extensions: Mapping[str, Any]) -> None:
        self._body: bytes | None = body
        self._read_s: float | None = extensions.get("timeout", {}).get("read")
        self._trace = extensions.get("trace")
        loop = asyncio.get_running_loop()
        self._head: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = loop.create_future()
        self._piece = b""
        self._filled = asyncio.Event()  # there is a piece, or the response has ended
        self._taken = asyncio.Event()  # the client wants the next piece, or has left
        self._left = asyncio.Event()
        self._is_whole = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    # -- the application's side

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            if self._trace is not None:
                await self._trace("asgi.send_request_body.complete", {})
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._left.is_set():
            raise Left("The client has left.")
        if message["type"] == "http.response.start":
            if not self._head.done():
                self._head.set_result((message["status"], list(message["headers"])))
            return
        self._is_whole = not message.get("more_body", False)
        piece = message.get("body", b"")
        if piece:
            self._piece = piece
            self._taken.clear()
            self._filled.set()
            await self._taken.wait()

    async def run(self, answering: Awaitable[None]) -> None:
        """Wait for the application's end, which is that of the response too."""
        self._task = asyncio.current_task()
        try:
            await answering
        except Left:
            pass
        except Exception as error:  # noqa: BLE001 - raised where the client reads
            self._failure = error
        finally:
            if not self._head.done():
                self._head.set_exception(self._cut())
                self._head.exception()  # retrieved: the client may have left already
            self._filled.set()

    # -- the client's side

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        try:
            async with self._at_most(self._read_s):
                return await asyncio.shield(self._head)
        except BaseException:
            self._leave()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            async with self._at_most(self._read_s):
                await self._filled.wait()
            piece, self._piece = self._piece, b""
            if not piece:
                break
            self._filled.clear()
            if self._is_whole:
                self._filled.set()
            self._taken.set()
            yield piece
        if not self._is_whole or self._failure is not None:
            raise self._cut()

    async def aclose(self) -> None:
        self._leave()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _leave(self) -> None:
        self._left.set()
        self._taken.set()

    def _cut(self) -> httpx2.RemoteProtocolError:
        error = httpx2.RemoteProtocolError("the application ended within a response")
        error.__cause__ = self._failure
        return error

    @contextlib.asynccontextmanager
    async def _at_most(self, seconds: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise httpx2.ReadTimeout(f"nothing came for {seconds} s") from None


def _scope(request: httpx2.Request) -> MutableMapping[str, Any]:
    url = request.url
    path, _, query = url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": None,
        "server": (url.host, url.port),
    }
