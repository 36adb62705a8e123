"""What both shells need of httpx2: options, requests and failures, translated in one place.

The only module besides the shells that knows httpx2, and the one that loads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock import DISTRIBUTION, __version__
from penstock.client.answers import Answer
from penstock.client.requests import Request
from penstock.errors import ConnectionFailed

if TYPE_CHECKING:
    import ssl

    import httpx2

# Servers hold a long-poll for about 30 s, and an SSE response is silent until there is news.
LONG_POLL_WAIT_S: Final = 60.0
SSE_WAIT_S: Final = 90.0
# Below the 5 s after which Node servers drop an idle connection: using one then is a gamble.
KEEPALIVE_S: Final = 4.0
KEEPALIVE_CONNECTIONS_MAX: Final = 32

C = TypeVar("C", bound="httpx2.Client | httpx2.AsyncClient")

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each step may take. `live_s` replaces `read_s` while a live read is silent;
    without it the time that servers wait is added to `read_s`."""

    connect_s: float = 10.0
    read_s: float = 30.0
    write_s: float = 30.0
    pool_s: float = 30.0
    live_s: float | None = None

    def of(self, request: Request) -> dict[str, float | None]:
        """The timeouts of a request, as httpx2 takes them."""
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


def timeouts(given: float | Timeouts) -> Timeouts:
    """One number stands for every step; connecting never takes longer than 10 s."""
    if isinstance(given, Timeouts):
        return given
    if given <= 0:
        raise ValueError("timeout_s must be positive")
    return Timeouts(connect_s=min(given, 10.0), read_s=given, write_s=given, pool_s=given)


class Pools(Generic[C]):
    """The httpx2 clients of one client: one for http, one for https, made when first used.

    Loading the certificates for https takes about 50 ms, which users of http need not wait for.
    """

    __slots__ = ("_lock", "_make", "_options", "_pools", "_verify")

    def __init__(
        self,
        make: Callable[..., C],
        *,
        http2: bool,
        proxy: str | None,
        verify: bool | ssl.SSLContext,
        transport: Any,
        connections_max: int | None,
    ) -> None:
        import httpx2

        if http2 and find_spec("h2") is None:
            raise ImportError(f"http2=True needs the h2 package: pip install '{DISTRIBUTION}[h2]'")
        self._make = make
        self._verify = verify
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
                    # A proxy may itself be spoken to by https.
                    check = secure or self._options["proxy"] is not None
                    verify = self._verify if check else False
                    pool = self._pools[secure] = self._make(verify=verify, **self._options)
        return pool

    def close(self) -> list[C]:
        """Those that were made, for the caller to close."""
        return list(self._pools.values())


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
    """The request with what the client adds to each; the request's own values win."""
    all_params = {**params, **request.params}
    url = _parsed(request.url)
    # Within one machine compressing costs more than it saves: three times the time of a read.
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
    """The hook by which httpx2 tells how far a request has come."""
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
    """What went wrong below HTTP; raise it `from` the error."""
    import httpx2

    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
    what = str(error) or type(error).__name__
    failed = ConnectionFailed(f"{request.method} {request.url} got no whole answer: {what}")
    failed.sent = not isinstance(error, unsent)
    if failed.sent and not request.repeatable:
        failed.detail += (
            " It is not known whether the append was stored. Use a producer for appends that "
            "can be repeated safely."
        )
        failed.args = (failed.detail,)
    return failed


def is_failure(error: Exception) -> bool:
    """Whether httpx2 says that the network, or the peer's HTTP, failed."""
    import httpx2

    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return False  # the caller's mistake
    return isinstance(error, httpx2.TransportError | httpx2.DecodingError | httpx2.StreamError)


class network_errors:  # noqa: N801 - used as a function
    """The block in which failures of httpx2 become ConnectionFailed, about a request."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and is_failure(error):
            raise failure(error, self._request) from error


class Field(NamedTuple):
    """A header or parameter that goes with every request; a callable is called for each."""

    name: str
    value: Any  # str, or a callable that gives one (AsyncClient: or an awaitable of one)
    prefix: str = ""


def fields(values: Mapping[str, Any] | None, *, token: Any = None) -> tuple[Field, ...]:
    found = [Field(name, value) for name, value in (values or {}).items()]
    if token is not None:
        found.append(Field("Authorization", token, "Bearer "))
    return tuple(found)
