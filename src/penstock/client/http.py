"""httpx2 for both shells: pools, timeouts, requests, and failures as our errors.

Only this module and the shells know httpx2, which is loaded when a client is made.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock import DISTRIBUTION, __version__
from penstock.client.answers import Answer
from penstock.client.requests import Request, shown_url
from penstock.errors import BadRequest, ConnectionFailed, InvalidUrl, PenstockError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import httpx2

# Servers hold a long-poll for about 30 s, and an SSE response is silent until there is news.
LONG_POLL_WAIT_S: Final = 60.0
SSE_WAIT_S: Final = 90.0
# Below the 5 s after which Node servers drop an idle connection: a request would meet a closed one.
KEEPALIVE_S: Final = 4.0
KEEPALIVE_CONNECTIONS_MAX: Final = 32
# What OpenSSL says of a peer that does not speak TLS; it depends on its version.
NO_TLS_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}
)

C = TypeVar("C", bound="httpx2.Client | httpx2.AsyncClient")

_HOST_AND_PORT: Final = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?/?")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each step may take. `live_s` replaces `read_s` for live reads; without it the
    time that servers wait for news is added to `read_s`."""

    connect_s: float = 10.0
    read_s: float = 30.0
    write_s: float = 30.0
    pool_s: float = 30.0
    live_s: float | None = None

    def of(self, request: Request) -> dict[str, float | None]:
        """Return the timeouts of a request, as httpx2 takes them."""
        read_s = self.read_s
        if request.wait != "answer":
            wait_s = LONG_POLL_WAIT_S if request.wait == "long-poll" else SSE_WAIT_S
            read_s = read_s + wait_s if self.live_s is None else self.live_s
        if request.read_timeout_s is not None:
            read_s = min(read_s, request.read_timeout_s)
        return {
            "connect": self.connect_s,
            "read": read_s,
            "write": self.write_s,
            "pool": self.pool_s,
        }


def checked_url(url: str) -> str:
    """Return the URL of a server, without a slash at its end. Raises InvalidUrl if it is none."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        example = f"http://{url}" if _HOST_AND_PORT.fullmatch(url) else "http://127.0.0.1:4437"
        raise InvalidUrl(f"{url!r} is not the URL of a server: write it as {example}.")
    return url.rstrip("/")


def timeouts(timeout_s: float | Timeouts) -> Timeouts:
    """The timeouts of a client: one number is for every step, but at most 10 s to connect."""
    if isinstance(timeout_s, Timeouts):
        return timeout_s
    if timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}: it must be above 0.")
    return Timeouts(
        connect_s=min(timeout_s, 10.0), read_s=timeout_s, write_s=timeout_s, pool_s=timeout_s
    )


class Pools(Generic[C]):
    """The httpx2 clients of one client: one for http, one for https, each made at its first use.

    Loading the certificates for https takes about 50 ms, which users of http are spared.
    """

    __slots__ = ("_lock", "_make", "_options", "_pools", "_verify")

    def __init__(
        self,
        make: Callable[..., C],
        *,
        http2: bool,
        proxy: str | None,
        verify: bool | ssl.SSLContext,
        ca: str | Path | None = None,
        transport: Any,
        connections_max: int | None,
    ) -> None:
        import httpx2

        if http2 and find_spec("h2") is None:
            raise ImportError(
                f"http2=True needs the h2 package: run pip install '{DISTRIBUTION}[h2]'."
            )
        self._make = make
        self._verify = verify if ca is None else trusting(ca, verify)
        self._options: dict[str, Any] = {
            "http2": http2,
            "proxy": proxy,
            "transport": transport,
            "limits": httpx2.Limits(
                max_connections=connections_max,
                max_keepalive_connections=KEEPALIVE_CONNECTIONS_MAX,
                keepalive_expiry=KEEPALIVE_S,
            ),
            "headers": {"User-Agent": f"penstock/{__version__}"},
            "follow_redirects": False,
        }
        self._pools: dict[bool, C] = {}
        self._lock = threading.Lock()

    def of(self, request: Request) -> C:
        secure = not request.url.startswith("http://")
        pool = self._pools.get(secure)
        if pool is None:
            with self._lock:
                pool = self._pools.get(secure)
                if pool is None:
                    # The connection to the proxy may be https.
                    check = secure or self._options["proxy"] is not None
                    verify = self._verify if check else False
                    pool = self._pools[secure] = self._make(verify=verify, **self._options)
        return pool

    def close(self) -> list[C]:
        """Return the pools that exist, for the caller to close."""
        return list(self._pools.values())


def trusting(ca: str | Path, verify: bool | ssl.SSLContext = True) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the PEM file `ca` and no others."""
    import ssl

    if verify is not True:
        raise ValueError("ca and verify exclude each other: add the authority to your context.")
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError(f"{ca} has no certificates in PEM format: {error.reason}.") from None


@lru_cache(maxsize=256)
def _parsed(url: str) -> httpx2.URL:
    import httpx2

    return httpx2.URL(url)


def build(
    client: httpx2.Client | httpx2.AsyncClient,
    request: Request,
    timeouts: Timeouts,
    headers: Mapping[str, str],
    params: Mapping[str, str],
) -> httpx2.Request:
    """Return the request with what the client adds to each; the request's own values win."""
    all_params = {**params, **request.params}
    url = _parsed(request.url)
    # Within one machine compression makes a read take three times as long.
    local = {"Accept-Encoding": "identity"} if url.host in _LOOPBACK else {}
    extensions: dict[str, Any] = {"timeout": timeouts.of(request)}
    if request.on_sent is not None:
        extensions["trace"] = _trace(client, request.on_sent)
    return client.build_request(
        request.method,
        url.copy_merge_params(all_params) if all_params else url,  # `params=` drops the URL's own
        headers={**local, **headers, **request.headers},
        content=request.body or None,
        extensions=extensions,
    )


def _trace(
    client: httpx2.Client | httpx2.AsyncClient, on_sent: Callable[[], None]
) -> Callable[[str, Any], Any]:
    """Return the hook that httpx2 calls as a request makes progress."""
    import httpx2

    def trace(event: str, _: Any) -> None:
        if event.endswith("send_request_body.complete"):
            on_sent()

    async def async_trace(event: str, info: Any) -> None:
        trace(event, info)

    return async_trace if isinstance(client, httpx2.AsyncClient) else trace


def answer_of(response: httpx2.Response, body: bytes = b"") -> Answer:
    return Answer(response.status_code, dict(response.headers.items()), body)


def failure(error: Exception, request: Request) -> ConnectionFailed:
    """Return the error for a failure below HTTP; raise it `from` that failure."""
    import httpx2

    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
    reason = str(error) or type(error).__name__
    url = shown_url(request.url)
    failed = ConnectionFailed(f"{request.method} {url} got no whole answer: {reason}")
    failed.method, failed.url, failed.reason = request.method, url, reason
    failed.sent = not isinstance(error, unsent)
    failed.passing = not _is_final(root_cause(error))
    if failed.sent and not request.repeatable:
        failed.detail += (
            " It is not known whether the append was stored. Use a producer for appends that "
            "can be repeated safely."
        )
        failed.args = (failed.detail,)
    return failed


def root_cause(error: BaseException) -> BaseException:
    """Return the error below the others, which is that of the operating system or of TLS."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _is_final(cause: BaseException) -> bool:
    import ssl

    if isinstance(cause, ssl.SSLCertVerificationError):
        return True
    return isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS_REASONS


def is_failure(error: Exception) -> bool:
    """Whether an error of httpx2 is one of the network, or of the peer's HTTP."""
    import httpx2

    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return False  # the caller's mistake
    return isinstance(error, httpx2.TransportError | httpx2.DecodingError | httpx2.StreamError)


def _mistake(error: Exception, request: Request) -> PenstockError | None:
    """Return the error for a request that cannot be sent, because of what it was made of."""
    import httpx2

    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        url = shown_url(request.url)
        url = url if len(url) <= 200 else f"{url[:200]}…"
        return InvalidUrl(f"A request to {url} cannot be sent: {str(error).rstrip('.')}.")
    if isinstance(error, UnicodeEncodeError) and error.encoding != "ascii":
        return BadRequest("The request holds text that UTF-8 cannot represent: half of a pair.")
    if isinstance(error, httpx2.LocalProtocolError | UnicodeEncodeError):
        return BadRequest(
            "A header of the request has a character that cannot be sent: use printable ASCII "
            "characters."
        )
    return None


class network_errors:  # noqa: N801 - used as a function
    """A block in which failures of httpx2 are raised as ConnectionFailed of a request."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception):
            return
        if is_failure(error):
            raise failure(error, self._request) from error
        mistake = _mistake(error, self._request)
        if mistake is not None:
            raise mistake from error


class Field(NamedTuple):
    """A header or parameter that goes with every request; a callable is called for each."""

    name: str
    value: Any  # str, or a callable that returns one (AsyncClient: or an awaitable of one)


def fields(values: Mapping[str, Any] | None) -> tuple[Field, ...]:
    """Return the headers or parameters of every request."""
    return tuple(Field(name, value) for name, value in (values or {}).items())
