"""Requests as values: method, URL, headers, body, and whether they may be sent twice.

Knows the headers, parameters and URLs of the protocol; opens no connection.
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
from penstock.protocol.offsets import START

JSON: Final = "application/json"
STREAM_PREFIX: Final = "/v1/stream/"
LIST_PATH: Final = "/v1/streams"
REDIRECTS_MAX: Final = 5

Wait = Literal["answer", "long-poll", "sse"]

_PATH_CHARACTERS: Final = "/!$&'()*+,;=:@~"
_LINK = re.compile(r"([?&])link=[^&#]*")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


class Request(NamedTuple):
    """One request, which may be sent any number of times.

    `wait` is the kind of answer: a live read may be silent for long. A request is `repeatable` if
    sending it twice has the same effect as sending it once. The client adds its own headers,
    parameters and token each time it sends.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    params: Mapping[str, str | list[str]] = {}
    body: bytes = b""
    wait: Wait = "answer"
    repeatable: bool = True
    read_timeout_s: float | None = None  # tighter than that of `wait`
    on_sent: Callable[[], None] | None = None  # called when all of it has been written


class ProducerId(NamedTuple):
    """The three producer headers, which make an append safe to repeat."""

    id: str
    epoch: int
    seq: int


def stream_url(base_url: str, path_or_url: str) -> str:
    """Return the URL of a stream: a full URL unchanged, a path below the server's stream prefix.

    A path is percent-encoded once: it may contain escapes already, as the paths of a listing do.
    `.`, `..` and empty segments are refused.
    """
    if path_or_url.startswith(("http://", "https://")):
        return path_or_url
    path = _BARE_PERCENT.sub("%25", path_or_url.removeprefix("/"))
    # Bytes that are not UTF-8 are surrogates in arguments of a command, and bytes again in a URL.
    path = quote(path, safe=_PATH_CHARACTERS + "%", errors="surrogateescape")
    return base_url.rstrip("/") + STREAM_PREFIX + parse_stream_path(path.encode("ascii"))


class ForkAt(NamedTuple):
    """The source of a fork, by URL, and the offset at which the fork begins (None: the tail).

    `sub_offset` adds messages of a JSON stream, or bytes of any other, to the offset."""

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
    """Return the PUT of a stream. Repeatable, because a stream that matches is answered 200.

    `content_type` and `body` are what is sent; the options may leave both open.
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
        headers["Stream-Expires-At"] = _rfc3339(options.expires_at, "expires_at")
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
    """Return the POST of messages. Repeatable with a producer, or if it only closes the stream:
    a plain append would be stored twice.

    With `seq` or `if_match` a repetition is harmless as well, but its answer is a conflict that
    hides the success of the first, so they do not count.
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
    """Penstock's extension. Repeatable, because compacting a compacted stream changes nothing."""
    return Request("POST", f"{url}/__ds/compact", {})


def successor(url: str, location: str, *, hold_s: float = 0) -> Request:
    """Penstock's extension: redirect readers to another stream once this one is closed. Appends
    wait up to `hold_s` for that."""
    headers = {"Content-Type": JSON}
    body = _encode({"location": location, "hold": hold_s})
    return Request("PUT", f"{url}/__ds/successor", headers, body=body)


def trim(url: str, before: str) -> Request:
    """Penstock's extension. Repeatable, because trimming a trimmed stream is no error."""
    headers = {"Content-Type": JSON}
    return Request("POST", f"{url}/__ds/trim", headers, body=_encode({"before": before}))


def retention(url: str, policy: Mapping[str, int | None] | None) -> Request:
    """Penstock's extension: set a stream's own limits, or (None) return to those of its path."""
    retention_url = f"{url}/__ds/retention"
    if policy is None:
        return Request("DELETE", retention_url)
    return Request("PUT", retention_url, {"Content-Type": JSON}, body=_encode(policy))


def get_retention(url: str) -> Request:
    return Request("GET", f"{url}/__ds/retention")


def state_params(
    *, offset: str | None, at: datetime | str | None, **names: str | None
) -> dict[str, str]:
    """Return the parameters of a request for a state; a time needs its zone."""
    if offset is not None and at is not None:
        raise ValueError("offset and at each name a point of the stream: pass one of them.")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError("at needs a time zone, such as datetime.now(UTC).")
        at = at.isoformat()
    params = {"offset": offset, "at": at, **names}
    return {name: value for name, value in params.items() if value is not None}


def state(url: str, params: Mapping[str, str]) -> Request:
    """Penstock's extension: a page of the state that a stream folds to, or of a history."""
    return Request("GET", url.replace("/v1/stream/", "/v1/state/", 1), {}, dict(params))


def head(url: str, *, start: Start | None = None) -> Request:
    """Return the HEAD of a stream. `start`, whose offset is asked for, is Penstock's extension."""
    return Request("HEAD", url, params={} if start is None else {start.name: start.text})


def delete(url: str) -> Request:
    return Request("DELETE", url)


Time = datetime | int | str
"""A point in time: a datetime with its zone, milliseconds since 1970, or RFC 3339."""


class Filter(NamedTuple):
    """The types and the keys of the state events that are read; none is any."""

    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, types: str | Iterable[str], keys: str | Iterable[str]) -> Filter:
        """Return the filter of some types and keys, or of a single one."""
        return cls(*((each,) if isinstance(each, str) else tuple(each) for each in (types, keys)))

    @property
    def params(self) -> dict[str, list[str]]:
        values = {"type": list(self.types), "key": list(self.keys)}
        return {name: texts for name, texts in values.items() if texts}


EVERYTHING: Final = Filter()


class Start(NamedTuple):
    """A start that the server resolves to an offset: a parameter and its text."""

    name: Literal["at", "tail"]
    text: str

    @classmethod
    def of(cls, offset: str, at: Time | None, tail: int | None) -> Start | None:
        """Return what stands for the offset; None if that was passed itself."""
        if at is not None and tail is not None:
            raise ValueError("Pass `at` or `tail`, not both: each says where to start.")
        if at is None and tail is None:
            return None
        if offset != START:
            raise ValueError("Pass `offset`, `at` or `tail`: each says where to start.")
        if at is None:
            return cls("tail", str(tail))
        return cls("at", str(at) if isinstance(at, int) else _rfc3339(at, "at"))


def read(
    url: str,
    offset: str,
    *,
    start: Start | None = None,
    until: str | None = None,
    count: int | None = None,
    filter: Filter = EVERYTHING,
    located: bool = False,
) -> Request:
    """Return a catch-up read from `start`, if there is one, else from `offset`. All but the offset
    are Penstock's extensions. `located` asks for the positions of the messages that pass."""
    params: dict[str, str | list[str]] = {**filter.params}
    if located:
        params["positions"] = "true"
    if start is None:
        params["offset"] = offset
    else:
        params[start.name] = start.text
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
    base64: bool = False,
    filter: Filter = EVERYTHING,
    read_timeout_s: float | None = None,
) -> Request:
    """Return a live read. `base64`, for events that carry every byte, and `filter` are Penstock's
    extensions."""
    params: dict[str, str | list[str]] = {"offset": offset, "live": mode, **filter.params}
    if base64:
        params["sse"] = "base64"
    if cursor is not None:
        params["cursor"] = cursor
    headers = {"Accept": "text/event-stream"} if mode == "sse" else {}
    return Request("GET", url, headers, params, wait=mode, read_timeout_s=read_timeout_s)


def page(base_url: str, prefix: str, after: str, limit: int) -> Request:
    """Return the request of one page of Penstock's listing."""
    params = {"prefix": prefix, "after": after, "limit": str(limit)}
    return Request(
        "GET",
        base_url.rstrip("/") + LIST_PATH,
        params={name: value for name, value in params.items() if value},
    )


def encode_message(value: Any, content_type: str) -> bytes:
    """Return one message as bytes: JSON for JSON streams, UTF-8 for text, bytes unchanged.

    For a JSON stream, bytes count as JSON that is encoded already.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if is_json(content_type):
        # A state event writes its unknown fields and headers where they were.
        is_struct = isinstance(value, msgspec.Struct)
        write: Callable[[], bytes] | None = getattr(value, "to_json", None) if is_struct else None
        return _encode(value) if write is None else write()
    if isinstance(value, str):
        if is_text(content_type):
            return value.encode()
        raise TypeError(f"A stream of type {content_type} takes bytes, not str: encode the text.")
    raise TypeError(f"A stream of type {content_type} takes bytes or str, not {type(value)}.")


def join_messages(messages: Iterable[bytes], content_type: str) -> bytes:
    """Return the body that appends encoded messages: an array for JSON streams, else their bytes.

    A single message is in an array too: a server flattens one level, so that a message that is a
    list would become several without it.
    """
    if is_json(content_type):
        return b"[" + b",".join(messages) + b"]"
    return b"".join(messages)


def shown_url(url: str) -> str:
    """Return a URL as it may be shown and logged: without the signed link in it."""
    return _LINK.sub(r"\1link=…", url) if "link=" in url else url


def redirected(request: Request, status: int, location: str | None) -> Request | None:
    """Return the request that a redirect leads to, or None if the answer is no redirect.

    Redirects are followed within the same origin only, since headers may carry a token, and only
    where the method stays the same.
    """
    if status not in (301, 302, 303, 307, 308) or location is None:
        return None
    target = urljoin(request.url, location)
    ours, theirs = urlsplit(request.url), urlsplit(target)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise ProtocolError(
            f"The server redirects to {theirs.scheme}://{theirs.netloc}, another origin. Make the "
            "client with that URL if you trust it."
        )
    if request.method not in ("GET", "HEAD") and status not in (307, 308):
        raise ProtocolError(
            f"The server redirects a {request.method} with {status}, which may change the method."
        )
    return request._replace(url=target)


def _path_on(url: str, source: str) -> str:
    """Return the path of a source's URL, which has to be on the same server."""
    ours, theirs = urlsplit(url), urlsplit(source)
    if (ours.scheme, ours.netloc.lower()) != (theirs.scheme, theirs.netloc.lower()):
        raise ValueError(f"A fork is on the server of its source, and {source} is on another.")
    return theirs.path


def _rfc3339(moment: datetime | str, name: str) -> str:
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{name} has no time zone: give it one, for example UTC.")
    delta = moment - _UNIX_EPOCH
    return format_expires_at((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)
