"""Requests, responses and streaming bodies as plain values, shared by handlers and transports.

No sockets, no parser, no engine: a handler can be tested with these alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from mypy_extensions import mypyc_attr

from penstock.http.sender import NOWHERE, Certificate, Sender
from penstock.log.receipt import Receipt

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.errors import PenstockError

Headers = list[tuple[bytes, bytes]]

# The status codes whose responses have no body, and so no Content-Length.
BODILESS = frozenset({204, 304})


class Request:
    """One request. `path` and `query` are raw: still percent-encoded, without the `?`.

    Header names are lower-case; a repeated header is joined with b", ". `body` is empty while only
    the head has arrived (see `Application.refuse`). `route` is the handler that `refuse` chose by
    the head, for `handle`, and `principal` whose request it is. Headers are read only: requests
    share equal ones. `sender` is never shared between connections. `id` is None unless requests
    are written down: see `exchange.request_id`.
    """

    __slots__ = (
        "body",
        "headers",
        "id",
        "method",
        "path",
        "principal",
        "query",
        "route",
        "sender",
    )

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        body: bytes = b"",
        sender: Sender = NOWHERE,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = {} if headers is None else headers
        self.body = body
        self.sender = sender
        self.id: bytes | None = None
        self.route: Any = None
        self.principal: Principal | None = None

    @property
    def peer(self) -> str:
        """The address of the client: behind a trusted proxy that of the proxy's client."""
        return self.sender.peer

    @property
    def scheme(self) -> str:
        """`https` or `http`, as the client has used it."""
        return self.sender.scheme

    @property
    def certificate(self) -> Certificate | None:
        """The verified certificate of the client."""
        return self.sender.certificate

    def __repr__(self) -> str:
        # Without the query, which may be a credential.
        return f"Request({self.method} {self.path!r} {len(self.body)} bytes)"


@mypyc_attr(allow_interpreted_subclasses=True)
class RangeBody:
    """A body of known length that is read lazily: a stalled client holds one piece in memory."""

    __slots__ = ("length",)
    length: int

    def first(self) -> bytes | None:
        """Return the first piece if it is there without waiting, else None.

        Called at most once, before the head of the response is written; a PenstockError raised
        here (or by the first step of `pieces`) becomes a clean error response.
        """
        return None

    def parts(self) -> list[bytes | memoryview] | None:
        """Return the next piece in parts that lie in memory or in the page cache, for the kernel to
        send and for nobody to look at; None if it has to be read, by `first` or `pieces`, or there
        is none. Called before each piece, if at all."""
        return None

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces that follow: all of them after a `first` that returned None.

        Non-empty, at most 256 KiB each, `length` bytes in all. An error after the first piece
        aborts the connection, so that the client sees a short body instead of a wrong one.
        """
        raise TypeError(f"{type(self).__name__} defines no pieces()")

    def close(self) -> None:
        """Called exactly once, when no more pieces will be read, whatever the reason."""


class Sink(Protocol):
    """Where an EventBody writes. The transport owns framing, flow control and the socket."""

    def write(self, data: bytes) -> None:
        """Send raw SSE bytes. Writing after the reader has gone does nothing."""

    def close(self) -> None:
        """End the response cleanly after everything written so far. `detach` is not called."""

    def abort(self) -> None:
        """Cut the connection now, dropping what is buffered. `detach` is not called."""

    @property
    def congested(self) -> bool:
        """The reader is behind: written bytes pile up here until it catches up."""

    @property
    def buffered(self) -> int:
        """The number of written bytes that the client has not read yet."""


@mypyc_attr(allow_interpreted_subclasses=True)
class EventBody:
    """A live response without a known length. The head is on its way when `attach` is called."""

    __slots__ = ()

    def attach(self, sink: Sink) -> None:
        """Start writing to `sink`: called exactly once, on the event loop."""
        raise TypeError(f"{type(self).__name__} defines no attach()")

    def drained(self) -> None:
        """A congested sink has room again."""

    def finish(self) -> None:
        """The server is stopping: write a last frame if there is one to write, then close."""
        raise TypeError(f"{type(self).__name__} defines no finish()")

    def detach(self) -> None:
        """The reader has gone; the sink must not be used any more. Called at most once."""
        raise TypeError(f"{type(self).__name__} defines no detach()")


Body = bytes | RangeBody | EventBody


class Response:
    """One response. The transport adds Date, Content-Length, framing and the fixed headers.

    `block` is the headers as bytes, once a transport has encoded them: a response that is given
    several times is encoded once.
    """

    __slots__ = ("block", "body", "headers", "status")

    def __init__(self, status: int, headers: Headers | None = None, body: Body = b"") -> None:
        self.status = status
        self.headers: Headers = [] if headers is None else headers
        self.body = body
        self.block: bytes | None = None

    def __repr__(self) -> str:
        return f"Response({self.status} {self.headers!r})"


class Later:
    """A response that follows from a future, so that a transport needs no task to wait for it.

    `render` is called with the finished future, turns its exception into a response too, and
    never raises. A receipt takes the place of the future where nobody has to await it; `render` is
    called with whichever of the two it was made with.
    """

    __slots__ = ("_future", "receipt", "render")

    def __init__(
        self,
        future: asyncio.Future[Any] | Receipt,
        render: Callable[[Any], Response],
    ) -> None:
        self.render = render
        self.receipt: Receipt | None = None
        self._future: asyncio.Future[Any] | None = None
        if isinstance(future, Receipt):
            self.receipt = future
        else:
            self._future = future

    @property
    def future(self) -> asyncio.Future[Any]:
        """What is waited for, as a future."""
        if self._future is None:
            assert self.receipt is not None
            self._future = self.receipt.as_future(asyncio.get_running_loop())
        return self._future

    def __await__(self) -> Generator[Any, None, Response]:
        # wait() and not the future itself: a waiter that is cancelled must not cancel the append.
        if not self.future.done():
            yield from asyncio.wait((self.future,)).__await__()
        return self.render(self.receipt or self.future)


class Application(Protocol):
    """What a transport needs of the core. Each request goes to `refuse` once, then to `handle`."""

    def refuse(self, head: Request) -> Response | None:
        """Return a response that needs no body: unknown route, auth, rate limit, too large.

        Called once for every request, so `handle` need not check these again; not called again for
        a head that was let in and has a `route`, unless there is a rate limit or its principal has
        ended. After a refusal the
        body is not read (a connection with unread body bytes is closed). Never raises.
        """

    def unreadable(self, error: PenstockError) -> Response:
        """Return the response to input that is no request: malformed, too long, too slow.

        Never raises.
        """

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Answer a complete request; a Later or a coroutine when it has to wait. Never raises.

        HEAD may be answered like GET: the transport drops the body and keeps its length.
        """

    def drain(self) -> None:
        """The server is stopping: let waiting long-polls respond now."""
