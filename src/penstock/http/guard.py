"""Which requests are let in, and the headers for browsers: bearer token, rate limit, size and
coding of the body, CORS.

Knows requests and settings; knows nothing of streams or of sockets.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import (
    BodyTooLarge,
    PenstockError,
    RateLimited,
    Unauthorized,
    UnsupportedCoding,
)
from penstock.http.message import Headers, Request, Response
from penstock.http.problems import problem

if TYPE_CHECKING:
    from penstock.config.settings import Settings

METHODS = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"

ALLOW_HEADERS = (
    b"Content-Type, Authorization, If-None-Match, If-Match, Cache-Control, Last-Event-ID, "
    b"Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
    b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Producer-Id, Producer-Epoch, Producer-Seq"
)

EXPOSE_HEADERS = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, "
    b"Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Forked-From, Stream-Fork-Offset, "
    b"Stream-Earliest-Offset, Stream-Successor, Producer-Epoch, Producer-Seq, "
    b"Producer-Expected-Seq, Producer-Received-Seq, STP-Last-SeqNo, STP-First-SeqNo, "
    b"STP-Earliest-SeqNo, ETag, Location, Content-Type, Content-Encoding, Retry-After"
)

PREFLIGHT_MAX_AGE_S = 86400
RATE_PEERS_MAX = 10_000


def fixed_headers(settings: Settings) -> Headers:
    """Return the headers that every response carries, errors of the transport included."""
    headers = [
        (b"x-content-type-options", b"nosniff"),
        (b"cross-origin-resource-policy", b"cross-origin"),
    ]
    origin = settings.cors_origin
    if origin:
        headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
        # With any origin allowed there are no credentials, and then `*` names all headers.
        exposed = b"*" if origin == "*" else EXPOSE_HEADERS
        headers.append((b"access-control-expose-headers", exposed))
    return headers


def preflight() -> Response:
    """Return the response to OPTIONS, whatever the path: it shows nothing that is not public."""
    headers = [
        (b"allow", METHODS),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", ALLOW_HEADERS),
        (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_S),
    ]
    return Response(204, headers)


class Guard:
    """Decides on the head of a request alone. One per App; the App calls it in `refuse`."""

    __slots__ = ("_body_bytes_max", "_rate", "_token")

    def __init__(
        self, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        token = settings.auth_token
        self._token = None if not token else token.encode("utf-8")
        self._body_bytes_max = settings.body_bytes_max
        per_s = settings.rate_limit_per_s
        self._rate = RateLimit(per_s, monotonic=monotonic) if per_s > 0 else None

    def refuse(self, head: Request, *, public: bool = False) -> Response | None:
        """Return a preflight response, 401, 429, 413 or 415; None lets the request in.

        A `public` request needs no token.
        """
        if head.method == "OPTIONS":
            return preflight()
        try:
            if self._rate is not None:
                self._rate.take(head.peer)
            if self._token is not None and not public:
                self._authorize(head.headers.get(b"authorization"))
            length = head.headers.get(b"content-length")
            # Digits only: the native parser guarantees it, a server in front of ASGI may not.
            if length is not None and length.isdigit() and int(length) > self._body_bytes_max:
                raise too_large(self._body_bytes_max)
            if b"content-encoding" in head.headers:
                _check_coding(head.headers[b"content-encoding"])
        except PenstockError as error:
            return problem(error)
        return None

    def _authorize(self, header: bytes | None) -> None:
        assert self._token is not None
        scheme, _, token = (header or b"").partition(b" ")
        # compare_digest even for a missing header: the time it takes says nothing about the token.
        is_same = hmac.compare_digest(token.strip(), self._token)
        if not is_same or scheme.lower() != b"bearer":
            raise Unauthorized(
                "Send the server's token as `Authorization: Bearer <token>`.",
                WWW_Authenticate='Bearer realm="penstock"',
            )


def _check_coding(value: bytes) -> None:
    """Refuse a body in a coding: stored as it is, no reader would know of the coding."""
    if value.strip().lower() not in (b"", b"identity"):
        raise UnsupportedCoding(
            "The server does not decode bodies; send the data itself, without Content-Encoding.",
            Accept_Encoding="identity",
        )


def too_large(body_bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"A body may have at most {body_bytes_max} bytes here; split it into several appends."
    )


class RateLimit:
    """A token bucket per peer address, one second deep, in a table of bounded size."""

    __slots__ = ("_buckets", "_monotonic", "_peers_max", "_per_s")

    def __init__(
        self,
        per_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        peers_max: int = RATE_PEERS_MAX,
    ) -> None:
        self._per_s = float(per_s)
        self._monotonic = monotonic
        self._peers_max = peers_max
        # peer -> (remaining tokens, when counted), least recently seen first.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, peer: str) -> None:
        """Spend one token of `peer`; RateLimited when there is none."""
        now = self._monotonic()
        burst = max(1.0, self._per_s)
        tokens, then = self._buckets.pop(peer, (burst, now))
        tokens = min(burst, tokens + (now - then) * self._per_s)
        if len(self._buckets) >= self._peers_max:
            # The least recently seen peer has had the longest to refill: forgetting it gives
            # away the least.
            del self._buckets[next(iter(self._buckets))]
        if tokens < 1.0:
            self._buckets[peer] = (tokens, now)
            wait_s = max(1, round((1.0 - tokens) / self._per_s + 0.5))
            raise RateLimited(
                f"More than {self._per_s:g} requests a second from one address; "
                f"retry in {wait_s} s.",
                Retry_After=str(wait_s),
            )
        self._buckets[peer] = (tokens - 1.0, now)
