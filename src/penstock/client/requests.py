"""Requests as values: what is asked of a server, where, and whether asking twice is harmless.

Knows the protocol's headers and parameters, and URLs; opens no connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.headers import format_expires_at, is_json, is_text, parse_stream_path

JSON: Final = "application/json"
STREAM_PREFIX: Final = "/v1/stream/"
LIST_PATH: Final = "/v1/streams"
REDIRECTS_MAX: Final = 5

Wait = Literal["answer", "long-poll", "sse"]

_PATH_CHARACTERS: Final = "/!$&'()*+,;=:@~"
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


class Request(NamedTuple):
    """One request, ready to be sent as often as need be.

    `wait` says how long the answer may take: a live read is silent for long. `repeatable` says
    that doing it twice is the same as doing it once. The client adds its own headers, parameters
    and token to `headers` and `params` each time it sends.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    params: Mapping[str, str] = {}
    body: bytes = b""
    wait: Wait = "answer"
    repeatable: bool = True
    read_timeout_s: float | None = None  # a bound that is tighter than that of `wait`
    on_sent: Callable[[], None] | None = None  # called each time that all of it has been written


class ProducerId(NamedTuple):
    """What makes an append safe to repeat: sent as the three producer headers."""

    id: str
    epoch: int
    seq: int


def stream_url(base_url: str, path_or_url: str) -> str:
    """The URL of a stream: a full one as it is, a path below the server's stream prefix.

    A path is percent-encoded once: escapes that stand in it already are kept, so that the paths of
    a listing can be used as they are. `.`, `..` and empty segments are refused.
    """
    if path_or_url.startswith(("http://", "https://")):
        return path_or_url
    path = _BARE_PERCENT.sub("%25", path_or_url.removeprefix("/"))
    path = quote(path, safe=_PATH_CHARACTERS + "%")
    return base_url.rstrip("/") + STREAM_PREFIX + parse_stream_path(path.encode("ascii"))


class ForkAt(NamedTuple):
    """The stream that a new one is a fork of, by URL, and where it leaves it (None: at its tail),
    `sub_offset` messages of a JSON stream or bytes of another further on."""

    url: str
    offset: str | None = None
    sub_offset: int = 0


class CreateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is created with: see `Stream.create`."""

    content_type: str | None = None
    ttl_s: int | None = None
    expires_at: datetime | str | None = None
    closed: bool = False
    body: Any = None
    exist_ok: bool = False
    fork: ForkAt | None = None


def create(
    url: str, options: CreateOptions, *, content_type: str | None, body: bytes = b""
) -> Request:
    """PUT: repeatable, because a stream that matches is answered 200.

    `content_type` and `body` are those that are sent: the options may leave them open.
    """
    headers = {} if content_type is None else {"Content-Type": content_type}
    fork = options.fork
    if fork is not None:
        headers["Stream-Forked-From"] = _path_on(url, fork.url)
        if fork.offset is not None:
            headers["Stream-Fork-Offset"] = fork.offset
        if fork.sub_offset:
            headers["Stream-Fork-Sub-Offset"] = str(fork.sub_offset)
    if options.ttl_s is not None:
        headers["Stream-TTL"] = str(options.ttl_s)
    if options.expires_at is not None:
        headers["Stream-Expires-At"] = _rfc3339(options.expires_at)
    if options.closed:
        headers["Stream-Closed"] = "true"
    return Request("PUT", url, headers, body=body)


def append(
    url: str,
    body: bytes,
    content_type: str,
    *,
    seq: str | None = None,
    if_match: str | None = None,
    producer: ProducerId | tuple[str, int, int] | None = None,
    close: bool = False,
) -> Request:
    """POST: repeatable for a producer, or if only closing; a plain append would be stored twice.

    `seq` and `if_match` make the repetition harmless as well, but it is answered with a conflict
    that hides the success of the first, so they do not count.
    """
    headers: dict[str, str] = {}
    if body:
        headers["Content-Type"] = content_type
    if seq is not None:
        headers["Stream-Seq"] = seq
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"'
    if producer is not None:
        headers["Producer-Id"] = producer[0]
        headers["Producer-Epoch"] = str(producer[1])
        headers["Producer-Seq"] = str(producer[2])
    if close:
        headers["Stream-Closed"] = "true"
    repeatable = producer is not None or (close and not body)
    return Request("POST", url, headers, body=body, repeatable=repeatable)


def compact(url: str) -> Request:
    """Penstock's extension: repeatable, because a state can be put in place of itself."""
    return Request("POST", f"{url}/__ds/compact", {})


def successor(url: str, location: str, *, hold_s: float = 0) -> Request:
    """Penstock's extension: the stream that this one goes on in, once it is closed; appends wait
    for that so long."""
    headers = {"Content-Type": JSON}
    body = _encode({"location": location, "hold": hold_s})
    return Request("PUT", f"{url}/__ds/successor", headers, body=body)


def trim(url: str, before: str) -> Request:
    """Penstock's extension: repeatable, because what has gone already is no error."""
    headers = {"Content-Type": JSON}
    return Request("POST", f"{url}/__ds/trim", headers, body=_encode({"before": before}))


def retention(url: str, policy: Mapping[str, int | None] | None) -> Request:
    """Penstock's extension: a stream's own limits, or None for those of its path."""
    where = f"{url}/__ds/retention"
    if policy is None:
        return Request("DELETE", where)
    return Request("PUT", where, {"Content-Type": JSON}, body=_encode(policy))


def limits_of(url: str) -> Request:
    return Request("GET", f"{url}/__ds/retention")


def head(url: str) -> Request:
    return Request("HEAD", url)


def delete(url: str) -> Request:
    return Request("DELETE", url)


def read(url: str, offset: str, *, until: str | None = None, count: int | None = None) -> Request:
    """A catch-up read. `until` and `count` are Penstock's extensions."""
    params = {"offset": offset}
    if until is not None:
        params["until"] = until
    if count is not None:
        params["count"] = str(count)
    return Request("GET", url, params=params)


def live(
    url: str,
    offset: str,
    mode: Literal["long-poll", "sse"],
    *,
    cursor: str | None = None,
    read_timeout_s: float | None = None,
) -> Request:
    params = {"offset": offset, "live": mode}
    if cursor is not None:
        params["cursor"] = cursor
    headers = {"Accept": "text/event-stream"} if mode == "sse" else {}
    return Request("GET", url, headers, params, wait=mode, read_timeout_s=read_timeout_s)


def page(base_url: str, prefix: str, after: str, limit: int) -> Request:
    """One page of Penstock's listing."""
    params = {"prefix": prefix, "after": after, "limit": str(limit)}
    return Request(
        "GET",
        base_url.rstrip("/") + LIST_PATH,
        params={name: value for name, value in params.items() if value},
    )


def encode_message(value: Any, content_type: str) -> bytes:
    """One message as bytes: JSON for JSON streams, UTF-8 for text, bytes as they are.

    In a JSON stream bytes are taken for JSON that is encoded already.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if is_json(content_type):
        return _encode(value)
    if isinstance(value, str):
        if is_text(content_type):
            return value.encode()
        raise TypeError(f"a stream of type {content_type} takes bytes, not str: encode the text")
    raise TypeError(f"a stream of type {content_type} takes bytes or str, not {type(value)}")


def join_messages(messages: Iterable[bytes], content_type: str) -> bytes:
    """The body that appends encoded messages: an array for JSON streams, else all their bytes.

    The array is there for a single message too: a server flattens one level, so without it a
    message that is a list would become several.
    """
    if is_json(content_type):
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def redirected(request: Request, status: int, location: str | None) -> Request | None:
    """The request that a redirect asks for, or None if the answer is none.

    Followed within the same origin only, since headers may carry a token, and only where the
    method stays the same.
    """
    if status not in (301, 302, 303, 307, 308) or location is None:
        return None
    target = urljoin(request.url, location)
    ours, theirs = urlsplit(request.url), urlsplit(target)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise ProtocolError(
            f"The server redirects to {theirs.scheme}://{theirs.netloc}, another origin: use that "
            "URL for the client if it is right."
        )
    if request.method not in ("GET", "HEAD") and status not in (307, 308):
        raise ProtocolError(f"The server redirects a {request.method} with {status}.")
    return request._replace(url=target)


def _path_on(url: str, source: str) -> str:
    """The path of a source's URL, which has to be on the same server."""
    ours, theirs = urlsplit(url), urlsplit(source)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise ValueError(f"a fork is on the server of its source: {source} is on another")
    return theirs.path


def _rfc3339(moment: datetime | str) -> str:
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError("expires_at needs a time zone")
    delta = moment - _UNIX_EPOCH
    return format_expires_at((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)
