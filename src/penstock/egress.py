"""The only outbound HTTP of the server: requests to other servers, never to internal addresses.

A name is resolved once and the connection goes to the address that was checked; redirects are not
followed; time and size have limits. Knows nothing of what the requests are for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import httptools

from penstock.errors import EgressFailed, EgressRefused
from penstock.protocol.outbound import Address, Policy, Target, parse_networks, parse_url

if TYPE_CHECKING:
    from penstock.config.settings import Settings

HEAD_BYTES_MAX: Final = 64 * 1024
PIECE_BYTES: Final = 128 * 1024
ADDRESSES_MAX: Final = 4
"""How many addresses of a name are tried."""
AGENT: Final = "penstock"

_NETWORK: Final = (OSError, EOFError, httptools.HttpParserError, httptools.HttpParserUpgrade)

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""(name, port) to addresses, as texts."""


class Answer(NamedTuple):
    """A whole response of another server. Header names are lower-case; repeated headers are joined
    with a comma."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Streamed(NamedTuple):
    """The head of a response, and its body as it arrives; a body that is cut off raises there."""

    status: int
    headers: dict[str, str]
    pieces: AsyncIterator[bytes]


class _Bounds(NamedTuple):
    """The bounds of a streamed body."""

    idle_timeout_s: float
    timeout_s: float
    bytes_max: int


async def resolve(name: str, port: int) -> list[str]:
    """Return the addresses that the machine's resolver has for a name."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


class HostSlots:
    """A bound on the number of concurrent requests to each host.

    A host is remembered only while somebody uses it or waits for it.
    """

    def __init__(self, per_host_max: int) -> None:
        self._per_host_max = per_host_max
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @property
    def hosts(self) -> int:
        """The number of hosts in use."""
        return len(self._hosts)

    @asynccontextmanager
    async def take(self, host: str) -> AsyncIterator[None]:
        """Wait for a slot of `host` and hold it for the length of the context."""
        slots = self._hosts.get(host)
        if slots is None:
            slots = self._hosts[host] = asyncio.Semaphore(self._per_host_max)
        self._users[host] += 1
        try:
            async with slots:
                yield
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]


class Call(Protocol):
    """The trace of one request: a header for it, and its end."""

    @property
    def header(self) -> str: ...

    def end(self, status: int, error: str = "") -> None: ...


class Tracer(Protocol):
    """Who traces requests to other servers."""

    def begin(self, method: str, target: Target) -> Call: ...


class Egress:
    """Makes requests within the limits of the settings. Use as an async context, or `close`."""

    def __init__(
        self,
        settings: Settings,
        *,
        resolver: Resolver = resolve,
        certificates: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self.policy = Policy(
            parse_networks(settings.egress_networks), settings.development, settings.egress_http
        )
        self._resolver = resolver
        self._certificates = certificates
        self._slots = asyncio.Semaphore(settings.egress_connections_max)
        self.tracer: Tracer | None = None
        self.requests = 0
        self.failures = 0
        self.refused = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: every connection ends with its request."""

    def check(self, url: str) -> Target:
        """Return the parts of a URL; raise InvalidUrl or EgressRefused if it is never allowed."""
        target = parse_url(url)
        self.policy.check_url(target)
        return target

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
        bytes_max: int | None = None,
    ) -> Answer:
        """Make one request and return its whole response, whatever the status."""
        settings = self._settings
        limit = settings.egress_answer_bytes_max if bytes_max is None else bytes_max
        async with self._slots:
            with self._counted(url):
                async with _deadline(timeout_s or settings.egress_timeout_s, url):
                    exchange = await self._exchange(method, url, headers or {}, body)
                    try:
                        return await _whole(exchange, limit, url)
                    finally:
                        exchange.close()

    @asynccontextmanager
    async def stream(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        stream_timeout_s: float | None = None,
        bytes_max: int | None = None,
    ) -> AsyncIterator[Streamed]:
        """Make a request, with the body as it arrives: bounded in time, in idle time and in bytes,
        by default as the settings say. `timeout_s` is for the head."""
        settings = self._settings
        with self._counted(url):
            async with _deadline(timeout_s or settings.egress_timeout_s, url):
                exchange = await self._exchange(method, url, headers or {}, body)
        bounds = _Bounds(
            idle_timeout_s or settings.egress_idle_timeout_s,
            stream_timeout_s or settings.egress_stream_timeout_s,
            bytes_max or settings.egress_stream_bytes_max,
        )
        try:
            pieces = self._pieces(exchange, url, bounds)
            yield Streamed(exchange.status, exchange.headers, pieces)
        finally:
            exchange.close()

    async def _pieces(self, exchange: _Exchange, url: str, bounds: _Bounds) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + bounds.timeout_s
        remaining = bounds.bytes_max
        while True:
            with self._counted(url):
                wait_s = min(bounds.idle_timeout_s, end - loop.time())
                async with _deadline(wait_s, url):
                    piece = await exchange.piece()
                remaining -= len(piece)
                if remaining < 0:
                    raise _too_large(url, bounds.bytes_max)
            if not piece:
                return
            yield piece

    def _counted(self, url: str) -> _Counted:
        return _Counted(self, url)

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> _Exchange:
        target = self.check(url)
        if self.tracer is None:
            return await self._send(method, url, target, headers, body)
        call = self.tracer.begin(method, target)
        try:
            traced = {**headers, "traceparent": call.header}
            exchange = await self._send(method, url, target, traced, body)
        except BaseException as error:
            call.end(0, type(error).__name__)
            raise
        call.end(exchange.status)
        return exchange

    async def _send(
        self, method: str, url: str, target: Target, headers: Mapping[str, str], body: bytes
    ) -> _Exchange:
        self.requests += 1
        async with _deadline(self._settings.egress_connect_timeout_s, url):
            addresses = await self._addresses(target)
            reader, writer = await self._connect(target, addresses)
        exchange = _Exchange(reader, writer, bodiless=method == "HEAD")
        try:
            writer.write(_head(method, target, headers, body) + body)
            await writer.drain()
            await exchange.read_head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _addresses(self, target: Target) -> list[str]:
        """Return the checked addresses of a host: resolved here once, and never again."""
        try:
            addresses = [str(ip_address(target.host))]
        except ValueError:
            addresses = await self._resolver(target.host, target.port)
        if not addresses:
            raise EgressFailed(f"{target.host} has no address.")
        for address in addresses:
            # One refused address refuses the name: an honest name has none beside its others.
            self.policy.check_address(_parsed(address, target), target)
        return addresses[:ADDRESSES_MAX]

    async def _connect(
        self, target: Target, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = None
        if target.scheme == "https":
            if self._certificates is None:
                self._certificates = await asyncio.to_thread(ssl.create_default_context)
            secure = self._certificates
        failure: OSError | None = None
        for address in addresses:
            try:
                return await asyncio.open_connection(
                    address,
                    target.port,
                    ssl=secure,
                    server_hostname=target.host if secure is not None else None,
                    limit=PIECE_BYTES,
                )
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure


class _Counted:
    """Turns errors of the network into EgressFailed, and counts them."""

    __slots__ = ("_egress", "_url")

    def __init__(self, egress: Egress, url: str) -> None:
        self._egress = egress
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, EgressRefused):
            self._egress.refused += 1
        elif isinstance(error, EgressFailed):
            self._egress.failures += 1
        elif isinstance(error, _NETWORK):
            self._egress.failures += 1
            raise EgressFailed(f"{_shown(self._url)}: {_reason(error)}.") from error


class _Exchange:
    """One request in flight: the parser's callbacks and what they have read."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, bodiless: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bodiless = bodiless
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._has_head = False
        self._complete = False
        self.status = 0
        self.headers: dict[str, str] = {}

    async def read_head(self) -> None:
        while self.status < 200:  # a callback of the parser sets it
            data = await self._reader.read(PIECE_BYTES)
            if not data:
                raise EOFError("the connection was closed before a response")
            self._head_bytes += len(data)
            self._feed(data)
            if self.status < 200 and self._head_bytes > HEAD_BYTES_MAX:
                raise EgressFailed(f"The head of a response has more than {HEAD_BYTES_MAX} bytes.")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise EgressFailed(
                f"A response is encoded as {encoding[:40]!r}, though identity was requested."
            )

    async def piece(self) -> bytes:
        """Return the next bytes of the body; none at its end."""
        while not self._pieces:
            if self._complete or self._bodiless:
                return b""
            data = await self._reader.read(PIECE_BYTES)
            if not data:
                if self._ends_with_connection():
                    return b""
                raise EOFError("the connection was closed within a response")
            self._feed(data)
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._complete:  # bytes after the end belong to no response
                raise

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    def close(self) -> None:
        transport = self._writer.transport
        if transport is not None:
            transport.abort()

    # Callbacks of httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip()
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
        else:
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        if self._has_head and not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        # An interim response (100, 103) is complete too; another follows it.
        self._complete = self._has_head


def _parsed(address: str, target: Target) -> Address:
    try:
        return ip_address(address.partition("%")[0])
    except ValueError:
        raise EgressFailed(
            f"{target.host} resolves to {address[:40]!r}, which is no address."
        ) from None


@asynccontextmanager
async def _deadline(seconds: float, url: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            yield
    except TimeoutError:
        raise EgressFailed(f"{_shown(url)} took too long.") from None


async def _whole(exchange: _Exchange, bytes_max: int, url: str) -> Answer:
    length = exchange.headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > bytes_max and not exchange._bodiless:
        raise _too_large(url, bytes_max)
    parts, size = [], 0
    while piece := await exchange.piece():
        size += len(piece)
        if size > bytes_max:
            raise _too_large(url, bytes_max)
        parts.append(piece)
    return Answer(exchange.status, exchange.headers, b"".join(parts))


def _head(method: str, target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {
        "host": target.authority,
        "user-agent": AGENT,
        "accept-encoding": "identity",
        "connection": "close",
        **{name.lower(): value for name, value in headers.items()},
    }
    if body or method in ("POST", "PUT"):
        lines["content-length"] = str(len(body))
    for name, value in lines.items():
        if not name.isascii() or any(character in name + value for character in "\r\n\0"):
            raise ValueError(f"{name!r} cannot be sent as a header.")
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


def _too_large(url: str, bytes_max: int) -> EgressFailed:
    return EgressFailed(f"{_shown(url)}: the response has more than {bytes_max} bytes.")


def _shown(url: str) -> str:
    """Return a URL as it may be logged: without its query, which may hold secrets."""
    return url.partition("?")[0][:200]


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, httptools.HttpParserError | httptools.HttpParserUpgrade):
        return "the response is not HTTP"
    text = getattr(error, "strerror", None) or str(error)
    return str(text or type(error).__name__).rstrip(".")
