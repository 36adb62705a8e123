"""The ASGI transport: the same App under any ASGI server, alone or mounted in another app.

Knows ASGI messages; parsing, framing and sockets are those of the ASGI server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.access.grant import AccessRequest, principal_for
from penstock.access.principal import Principal
from penstock.access.rules import EVERYTHING
from penstock.config.load import load
from penstock.config.setting import InvalidSetting
from penstock.errors import (
    ClientClosed,
    Overloaded,
    PenstockError,
    RequestTimeout,
    ShuttingDown,
    StoreLocked,
)
from penstock.http.asgi.events import send_events, wait_for_disconnect
from penstock.http.asgi.trailers import drop_trailers
from penstock.http.exchange import REQUEST_ID, request_id
from penstock.http.guard import too_large
from penstock.http.headers import header_block
from penstock.http.message import (
    BODILESS,
    EventBody,
    Headers,
    Later,
    RangeBody,
    Request,
    Response,
)
from penstock.http.origins import ANY, fixed_headers, origin_headers
from penstock.http.problems import error_response, problem, public_error, unsafe_headers
from penstock.http.router import STREAM_PREFIX
from penstock.http.sender import HTTP, HTTPS, Proxies, Sender, plain_address
from penstock.http.shutdown import StopClock, signals_seen

if TYPE_CHECKING:
    from penstock.access.grant import Authorize, Grant
    from penstock.client.aio.client import AsyncClient
    from penstock.config.settings import Settings
    from penstock.http.app import App
    from penstock.http.exchange import Exchange
    from penstock.log.engine import Engine

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

URL = "http://localhost"
"""The server of in-process clients; every server answers to this name."""
IN_PROCESS = Principal("in-process", EVERYTHING, is_root=True)


def asgi(*, authorize: Authorize | None = None, **settings: object) -> AsgiApp:
    """Return a server as an ASGI application. Settings are those of `penstock serve`, and come from
    the environment too.

    ``penstock.asgi(memory=True)``, ``penstock.asgi(data_dir="data", body_bytes_max="8MiB")``.
    Run it in one worker process: the streams of a data folder have one owner.

    `authorize` is asked about each request, and returns a `penstock.Grant` or raises a refusal. It
    may be a coroutine function.
    """
    return AsgiApp(load(settings, os.environ), authorize=authorize)


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


class AsgiApp:
    """Starts with the server's lifespan events, or else with `startup`, or the first request.

    A framework does not forward lifespan events to what is mounted in it: pass it `lifespan`, or
    call `startup` and `shutdown` from the lifespan of the outer app.
    """

    def __init__(self, settings: Settings, *, authorize: Authorize | None = None) -> None:
        if settings.workers > 1:
            raise InvalidSetting(
                f"Setting workers is {settings.workers}, and an ASGI application is one process. "
                "Leave it out, or run `penstock serve`."
            )
        # Whether the server is on loopback, and which hosts it serves, is known to what runs it.
        hosts = settings.allowed_hosts or (ANY,)
        self.settings = dataclasses.replace(settings, allowed_hosts=hosts)
        self._authorize = authorize
        self._fixed = fixed_headers(settings)
        self._by_origin = origin_headers(settings)
        self._proxies = Proxies(settings.trusted_proxies)
        self._app: App | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._stopped = False
        self._signals = contextlib.ExitStack()
        self._receive_bytes = 0
        self._requests = 0  # being answered; a server does not show its connections
        drop_trailers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            self._requests += 1
            try:
                await self._http(scope, receive, send)
            finally:
                self._requests -= 1
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    @property
    def engine(self) -> Engine:
        """The log of this server, for code of the same process and event loop; there is one between
        `startup` and `shutdown`."""
        if self._app is None:
            raise RuntimeError("The server is not running: await startup() first.")
        return self._app.engine

    def client(self, grant: Grant | None = None, **options: Any) -> AsyncClient:
        """Return a client of this server that calls it directly, without sockets.

        It may do everything, or what `grant` allows; `authorize` is not asked. Options are those of
        `AsyncClient`. Use it on the event loop of the server, between `startup` and `shutdown`.
        """
        from penstock.client.aio.asgi import AsgiTransport
        from penstock.client.aio.client import AsyncClient

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            principal = IN_PROCESS if grant is None else principal_for(grant)
            await self._http(scope, receive, send, principal=principal)

        return AsyncClient(URL, transport=AsgiTransport(call, check=self._check_usable), **options)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Start before the block and shut down after it: the lifespan of a FastAPI or Starlette
        app, `FastAPI(lifespan=streams.lifespan)`."""
        await self.startup()
        try:
            yield
        finally:
            await self.shutdown()

    def _check_usable(self) -> None:
        """Raise unless an in-process client may send a request now."""
        if self._stopped:
            raise ClientClosed("The server of this in-process client has shut down.")
        if self._app is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "The server runs on another event loop, and an in-process client belongs to the "
                "same one: use penstock.AsyncClient with the URL of the server."
            )

    async def startup(self) -> None:
        """Open the store and recover; a second call does nothing."""
        from penstock.http.app import open_app, shorten_switch_interval

        async with self._starting:
            if self._app is not None:
                return
            drop_trailers()
            shorten_switch_interval()
            try:
                self._app = await open_app(self.settings)
            except StoreLocked as error:
                raise StoreLocked(
                    f"{error.detail} An ASGI application with streams runs in one worker process "
                    "(uvicorn --workers 1): a data folder has one owner."
                ) from None
            self._app.traffic.connections = lambda: self._requests
            self._loop = asyncio.get_running_loop()
            if self._authorize is not None:
                self._app.access.require()
            self._stopped = False
            self._drain_on_signals(self._app)

    async def shutdown(self) -> None:
        """End live readers, finish appends in flight, write a checkpoint, release the store."""
        async with self._starting:
            self._stopped = True
            self._signals.close()
            app, self._app = self._app, None
            if app is not None:
                clock = StopClock(self.settings.shutdown_timeout_s)
                await app.stop(timeout_s=clock.checkpoint_s())

    def _drain_on_signals(self, app: App) -> None:
        """End live readers as soon as the process is told to stop.

        A server sends `lifespan.shutdown` only when every response has ended, and a live reader
        would keep it waiting.
        """
        loop = asyncio.get_running_loop()

        def drain(number: int) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(app.drain)

        self._signals.enter_context(signals_seen(drain))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.startup()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(
        self, scope: Scope, receive: Receive, send: Send, *, principal: Principal | None = None
    ) -> None:
        # Before anything waits: some servers go on adding to the headers while the body arrives.
        root, request = _request(scope, self._proxies)
        request.principal = principal
        if self._app is None and not self._stopped:
            await self.startup()
        app = self._app
        if app is None:
            stopping = problem(ShuttingDown("The server is stopping; retry shortly."))
            await self._send(request, self._complete(root, request, stopping), receive, send)
            return
        exchange = None if app.exchanges is None else app.exchanges.begin(request, 0)
        try:
            response = await self._respond(app, scope, request, receive, exchange)
            if response is not None:
                if exchange is not None:
                    response = exchange.answered(response)
                    send = _counted(exchange, send)
                response = self._complete(root, request, response)
                await self._send(request, response, receive, send)
        finally:
            if exchange is not None:
                exchange.end()

    async def _respond(
        self, app: App, scope: Scope, request: Request, receive: Receive, exchange: Exchange | None
    ) -> Response | None:
        """Return the response to a request; None if its client has gone."""
        started_s = perf_counter()
        received = 0
        response = await self._refuse(app, scope, request)
        if response is None:
            refused_s = perf_counter()
            try:
                request.body = await self._body(receive)
            except PenstockError as error:
                response = problem(error)
            except Disconnected:
                return None
            started_s += perf_counter() - refused_s  # without the wait for the client
            received = len(request.body)
            if exchange is not None:
                exchange.received = received
        if response is None:
            response = await _answer(app, request, receive, exchange)
        if response is not None:
            app.traffic.routes.answered(request, response, perf_counter() - started_s, received)
        return response

    async def _refuse(self, app: App, scope: Scope, request: Request) -> Response | None:
        """Ask the embedding application whose request it is, then the App whether to refuse it."""
        authorize = self._authorize
        if authorize is not None and request.principal is None and not app.is_public(request):
            try:
                grant = authorize(_access_request(scope, request))
                if isinstance(grant, Awaitable):
                    grant = await grant
                if grant is not None:
                    request.principal = principal_for(grant)
            except Exception as error:  # noqa: BLE001 - becomes the response
                return app.unreadable(public_error(error, request))
        return app.refuse(request)

    async def _body(self, receive: Receive) -> bytes:
        """Return the body, counted while it arrives: Content-Length is not trusted."""
        size = 0
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    self._receive_bytes += len(chunk)
                    if size > self.settings.body_bytes_max:
                        raise too_large(self.settings.body_bytes_max)
                    if self._receive_bytes > self.settings.receive_bytes_max:
                        raise Overloaded(
                            "Too many request bodies are being received (receive_bytes_max); "
                            "retry later.",
                            Retry_After="1",
                        )
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            raise RequestTimeout("The request body took too long to arrive.") from None
        finally:
            self._receive_bytes -= size

    def _complete(self, root: bytes, request: Request, response: Response) -> Response:
        """Return the response with everything that the native transport would add as well."""
        headers = []
        for name, value in response.headers:
            if name == b"location" and value.endswith(request.path):
                # The handler does not know where it is mounted.
                value = value.removesuffix(request.path) + root + request.path
            elif name == b"location" and STREAM_PREFIX in value:
                before, prefix, path = value.partition(STREAM_PREFIX)
                value = before + root + prefix + path
            headers.append((name, value))
        if header_block(headers) is None:
            response = unsafe_headers()
            headers = response.headers
        body = response.body
        if not isinstance(body, EventBody) and response.status not in BODILESS:
            length = len(body) if isinstance(body, bytes) else body.length
            if length or request.method != "HEAD":
                headers.append((b"content-length", b"%d" % length))
        return Response(response.status, [*headers, *self._added(request)], body)

    def _added(self, request: Request) -> Headers:
        """Return the headers that every response to this page or client carries."""
        added = [*self._fixed, *self._by_origin.get(request.headers.get(b"origin", b""), ())]
        sent_id = request_id(request)
        return added if sent_id is None else [*added, (REQUEST_ID, sent_id)]

    async def _send(
        self, request: Request, response: Response, receive: Receive, send: Send
    ) -> None:
        start = {
            "type": "http.response.start",
            "status": response.status,
            "headers": response.headers,
        }
        body = response.body
        if request.method == "HEAD" or isinstance(body, bytes):
            if isinstance(body, RangeBody):
                body.close()
            content = body if isinstance(body, bytes) and request.method != "HEAD" else b""
            await send(start)
            await send({"type": "http.response.body", "body": content})
        elif isinstance(body, RangeBody):
            await self._send_range(request, start, body, send)
        else:
            stall_s = self.settings.write_stall_timeout_s
            await send_events(start, body, receive, send, stall_s=stall_s)

    async def _send_range(
        self, request: Request, start: MutableMapping[str, Any], body: RangeBody, send: Send
    ) -> None:
        """Send a body piece by piece; `send` waits while the client is behind."""
        sent = 0
        pieces = _pieces(body)
        try:
            try:
                piece = await anext(pieces, b"")
            except Exception as error:  # noqa: BLE001 - becomes the response
                failure = error_response(error, request)
                assert isinstance(failure.body, bytes)
                length = (b"content-length", b"%d" % len(failure.body))
                headers = [*failure.headers, length, *self._added(request)]
                await send({**start, "status": failure.status, "headers": headers})
                await send({"type": "http.response.body", "body": failure.body})
                return
            await send(start)
            while piece:
                sent += len(piece)
                async with asyncio.timeout(self.settings.write_stall_timeout_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await anext(pieces, b"")
        finally:
            body.close()
            await pieces.aclose()
        if sent != body.length:
            # An error is the only way to make the server cut the connection.
            raise RuntimeError(f"{sent} of {body.length} body bytes of {request!r}")
        await send({"type": "http.response.body", "body": b""})


async def _pieces(body: RangeBody) -> Any:
    first = body.first()
    if first is not None:
        yield first
        if len(first) == body.length:
            return
    rest: AsyncIterator[bytes] = body.pieces()
    async for piece in rest:
        yield piece


def _counted(exchange: Exchange, send: Send) -> Send:
    """Return a `send` that counts the bytes of the body."""
    exchange.sent = 0

    async def counted(message: MutableMapping[str, Any]) -> None:
        await send(message)
        if message["type"] == "http.response.body":
            exchange.sent += len(message.get("body", b""))

    return counted


async def _answer(
    app: App, request: Request, receive: Receive, exchange: Exchange | None
) -> Response | None:
    """Return the App's response; None if the client disconnected while a read was waiting."""
    answer = app.handle(request)
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, Later):
        if exchange is not None:
            exchange.waits()
        return await answer  # an append goes on whether or not its client stays
    waiting: asyncio.Future[Response] = asyncio.ensure_future(answer)
    disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((waiting, disconnected), return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()
        disconnected.cancel()


def _access_request(scope: Scope, request: Request) -> AccessRequest:
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()
    }
    return AccessRequest(
        method=request.method,
        path=request.path.decode("latin-1"),
        query=request.query.decode("latin-1"),
        headers=headers,
        peer=request.peer,
        scope=scope,
    )


def _request(scope: Scope, proxies: Proxies) -> tuple[bytes, Request]:
    """Return the path under which this app is mounted, and the request."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        name = name.lower()
        headers[name] = headers[name] + b", " + value if name in headers else value
    raw = scope.get("raw_path")
    # Without raw_path an escaped slash looks like a slash; ASGI offers nothing better.
    path = quote(scope["path"], safe="/:@!$&'()*+,;=~").encode() if raw is None else raw
    path = path.partition(b"?")[0]
    root = quote(scope.get("root_path", "").rstrip("/"), safe="/:@!$&'()*+,;=~").encode()
    if root and (path == root or path.startswith(root + b"/")):
        path = path[len(root) :] or b"/"
    else:
        root = b""
    client = scope.get("client")
    peer = plain_address(client[0]) if client else ""
    scheme = HTTPS if scope.get("scheme") == HTTPS else HTTP
    sender = proxies.client(Sender(peer, scheme, is_proxy=proxies.trusts(peer)), headers)
    request = Request(scope["method"], path, scope["query_string"], headers, b"", sender)
    return root, request
