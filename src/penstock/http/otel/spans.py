"""Spans as plain values, and the W3C trace context that connects them.

Knows exchanges and the semantic conventions of HTTP; nothing of the OpenTelemetry SDK.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from secrets import randbits
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.http.access_log import visible
from penstock.http.traffic import METHODS

if TYPE_CHECKING:
    from penstock.http.exchange import Exchange

SERVER: Final = "server"
CLIENT: Final = "client"
INTERNAL: Final = "internal"
TRACEPARENT: Final = b"traceparent"
_ERROR: Final = 500
_PARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class TraceContext(NamedTuple):
    """Where a span belongs: its trace, and the span that it is part of (0: none)."""

    trace_id: int
    parent_id: int
    is_sampled: bool


class Span(NamedTuple):
    """One operation. Times are nanoseconds since 1970; `error` is its kind, if it failed."""

    name: str
    kind: str
    trace_id: int
    span_id: int
    parent_id: int
    started_ns: int
    ended_ns: int
    attributes: dict[str, str | int]
    error: str = ""


def parse_traceparent(value: bytes | None) -> TraceContext | None:
    """Return the context that a client has sent; None if there is none that is valid."""
    match = None if value is None else _PARENT.fullmatch(value)
    if match is None or (match[1] == b"00" and match[5]):
        return None
    return TraceContext(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & 1))


def format_traceparent(trace_id: int, span_id: int, *, is_sampled: bool) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{int(is_sampled):02x}"


def new_trace(*, is_sampled: bool) -> TraceContext:
    return TraceContext(randbits(128) or 1, 0, is_sampled)


def new_span_id() -> int:
    return randbits(64) or 1


def spans_of(exchange: Exchange, context: TraceContext) -> Iterator[Span]:
    """Yield the span of a request, and that of its wait for a commit."""
    span_id = new_span_id()
    method = exchange.request.method
    status = exchange.status
    error = ""
    if status is None:
        error = "client_gone"
    elif status >= _ERROR:
        error = exchange.code or str(status)
    route = exchange.route
    name = method if method in METHODS else "HTTP"
    yield Span(
        f"{name} {route}" if route else name,
        SERVER,
        context.trace_id,
        span_id,
        context.parent_id,
        exchange.started_ns,
        exchange.started_ns + _ns(exchange.ended_s - exchange.started_s),
        _attributes(exchange),
        error,
    )
    if exchange.waits_s and exchange.responded_s:
        yield Span(
            "commit",
            INTERNAL,
            context.trace_id,
            new_span_id(),
            span_id,
            exchange.started_ns + _ns(exchange.waits_s - exchange.started_s),
            exchange.started_ns + _ns(exchange.responded_s - exchange.started_s),
            {},
        )


def _attributes(exchange: Exchange) -> dict[str, str | int]:
    request = exchange.request
    headers = request.headers
    is_usual = request.method in METHODS
    values: dict[str, str | int | None] = {
        "http.request.method": request.method if is_usual else "_OTHER",
        "http.request.method_original": None if is_usual else visible(request.method),
        "http.route": exchange.route,
        "url.path": visible(request.path.decode("latin-1")),
        "url.scheme": request.scheme,
        "server.address": _text(headers.get(b"host")),
        "client.address": request.peer,
        "user_agent.original": _text(headers.get(b"user-agent")),
        "http.request.body.size": exchange.received,
        "http.response.status_code": exchange.status,
        "http.response.body.size": exchange.sent,
        "error.type": exchange.code,
        "enduser.id": None if request.principal is None else visible(request.principal.name),
        "penstock.request_id": exchange.id,
    }
    return {name: value for name, value in values.items() if value not in (None, "")}


def _text(value: bytes | None) -> str | None:
    return None if value is None else visible(value.decode("latin-1"))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
