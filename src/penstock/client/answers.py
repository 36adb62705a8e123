"""Answers as values: typed results, or errors from the one tree.

Knows the statuses and headers of the protocol; reads no socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock import errors
from penstock.client.requests import Filter, Request, Start, shown_url
from penstock.errors import PenstockError, ProtocolError
from penstock.protocol.headers import parse_closed

DETAIL_CHARACTERS_MAX: Final = 500
PAGE_BYTES_MAX: Final = 16 * 1024
WEB_PAGE: Final = "A web page"  # how the reason begins if an answer is a page for browsers

_PAGE_TITLE: Final = re.compile(rb"<title[^>]*>([^<]{1,500})", re.IGNORECASE)


class Answer(NamedTuple):
    """An answer: its status, headers by lower-case name, and body.

    `attempts` is the number of times the request was sent. Above one, an earlier attempt may have
    had the effect.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    attempts: int = 1

    @property
    def offset(self) -> str:
        """Stream-Next-Offset, which every successful answer about a stream must have."""
        offset = self.headers.get("stream-next-offset")
        if not offset:
            if is_web_page(self):
                raise ProtocolError(web_page_text(self))
            raise ProtocolError(
                f"The {self.status} answer has no Stream-Next-Offset header: the server, or a "
                "proxy in between, does not speak the protocol."
            )
        return offset

    @property
    def closed(self) -> bool:
        return parse_closed(self.headers.get("stream-closed"))

    @property
    def up_to_date(self) -> bool:
        # A closed stream at its end is up to date by definition.
        return parse_closed(self.headers.get("stream-up-to-date")) or self.closed

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "application/octet-stream")

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def has_events(self) -> bool:
        return self.status == 200 and self.media_type == "text/event-stream"

    @property
    def cursor(self) -> str | None:
        return self.headers.get("stream-cursor")


class Created(NamedTuple):
    """A stream that was created, or (`created` false) exists and matches."""

    offset: str
    created: bool
    closed: bool
    content_type: str


class Head(NamedTuple):
    """The properties of a stream and its tail. `earliest` comes from servers that trim;
    `successor` is the location of the stream that continues a closed one, if there is one."""

    offset: str
    content_type: str
    closed: bool
    ttl_s: int | None
    expires_at: str | None
    earliest: str | None
    successor: str | None = None


class Appended(NamedTuple):
    """The tail after an append; `duplicate` if the append was stored already."""

    offset: str
    closed: bool
    duplicate: bool
    producer_epoch: int | None
    producer_seq: int | None


class Retention(msgspec.Struct, frozen=True, rename={"age_s": "age"}):
    """The retention limits in force for a stream; None means no limit. `own` if they were set for
    this stream and not for its path. `earliest` is its first offset."""

    age_s: int | None
    bytes: int | None
    compact: int | None
    own: bool
    earliest: str


class StateSnapshot(msgspec.Struct, frozen=True):
    """The state of a stream at an offset: the values of its entities by type and key."""

    offset: str
    types: dict[str, dict[str, Any]]


class StateStep(msgspec.Struct, frozen=True):
    """A change of one entity. `offset` is that after the event, `timestamp` the time that its
    writer gave it; a reset of the stream has `control` and no operation."""

    offset: str
    ordinal: int
    operation: str | None = None
    control: str | None = None
    value: Any = None
    txid: str | None = None
    timestamp: str | None = None


class StatePage(msgspec.Struct, frozen=True):
    """A page of a state, or of the history of one entity."""

    offset: str
    next: str | None
    types: dict[str, dict[str, Any]] = {}
    history: list[StateStep] = []


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in the listing."""

    path: str
    offset: str
    content_type: str
    messages: int
    bytes: int
    closed: bool
    created_at: str
    ttl: int | None = None
    expires_at: str | None = None
    forked_from: str | None = None
    trimmed: int = 0  # messages that were trimmed


class Page(msgspec.Struct, frozen=True):
    streams: list[StreamInfo]
    next: str | None = None


def created(answer: Answer, content_type: str) -> Created:
    return Created(
        offset=answer.offset,
        # The first attempt, whose answer was lost, may have created it.
        created=answer.status == 201 or answer.attempts > 1,
        closed=answer.closed,
        content_type=answer.headers.get("content-type", content_type),
    )


def head(answer: Answer) -> Head:
    return Head(
        offset=answer.offset,
        content_type=answer.content_type,
        closed=answer.closed,
        ttl_s=_number(answer, "stream-ttl"),
        expires_at=answer.headers.get("stream-expires-at"),
        earliest=answer.headers.get("stream-earliest-offset"),
        successor=answer.headers.get("stream-successor"),
    )


def appended(answer: Answer, request: Request) -> Appended:
    has_producer = "Producer-Id" in request.headers
    return Appended(
        offset=answer.offset,
        closed=answer.closed,
        # 204 is a duplicate only for a producer that sent data: a close is always answered 204.
        duplicate=has_producer and answer.status == 204 and bool(request.body),
        producer_epoch=_number(answer, "producer-epoch"),
        producer_seq=_number(answer, "producer-seq"),
    )


def earliest(answer: Answer) -> str:
    """Return Stream-Earliest-Offset, which the answer to a trim must have."""
    offset = answer.headers.get("stream-earliest-offset")
    if not offset:
        raise ProtocolError(
            f"The {answer.status} answer has no Stream-Earliest-Offset header: the server does not "
            "trim streams."
        )
    return offset


def start_offset(answer: Answer, start: Start) -> str:
    """Return Stream-Start-Offset, which the answer to a read from `start` must have."""
    offset = answer.headers.get("stream-start-offset")
    if not offset:
        raise ProtocolError(
            f"The {answer.status} answer has no Stream-Start-Offset header: the server does not "
            f"know `{start.name}`. Read from an offset."
        )
    return offset


def check_filter(answer: Answer, filter: Filter) -> None:
    """Refuse the answer of a server that has not applied the filter."""
    names = ", ".join(filter.params)
    if names and answer.headers.get("stream-filter") != names:
        raise ProtocolError(
            f"The {answer.status} answer has no `Stream-Filter: {names}` header: the server does "
            "not filter by types and keys. Read everything, and choose from that."
        )


def retention(answer: Answer) -> Retention:
    try:
        return msgspec.json.decode(answer.body, type=Retention)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The server's answer about retention cannot be decoded: {error}."
        ) from error


def state_page(answer: Answer) -> StatePage:
    try:
        return msgspec.json.decode(answer.body, type=StatePage)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The server's answer about a state cannot be decoded: {error}."
        ) from error


def is_bare_duplicate(answer: Answer) -> bool:
    """Whether the answer confirms a producer's duplicate without an offset, as some servers do."""
    headers = answer.headers
    return (
        answer.status == 204 and "producer-seq" in headers and "stream-next-offset" not in headers
    )


def page(answer: Answer) -> Page:
    try:
        return msgspec.json.decode(answer.body, type=Page)
    except msgspec.DecodeError as error:
        if is_web_page(answer):
            raise ProtocolError(web_page_text(answer)) from error
        raise ProtocolError(f"The server's listing cannot be decoded: {error}.") from error


_WITHOUT_BODY: Final[Mapping[type[PenstockError], str]] = {
    errors.StreamNotFound: "There is no such stream. Create it first"
}
"""What errors say that come without a problem document, as those of HEAD do."""


def error_of(request: Request, answer: Answer) -> PenstockError:
    """Return the error for an answer that is no success."""
    headers = answer.headers
    problem = _problem(answer)
    code = problem.get("code")
    cls = _BY_CODE.get(code) if isinstance(code, str) else None
    if cls is None or cls.status != answer.status:
        cls = _class_of(request.method, answer.status, headers)
    reason = _reason(answer, problem) or _WITHOUT_BODY.get(cls, cls.title)
    url = shown_url(request.url)
    error = cls(f"{reason} ({request.method} {url} was answered {answer.status})")
    error.method, error.url, error.reason = request.method, url, reason
    if isinstance(error, errors.Unprocessable):
        _locate(error, problem)
    if isinstance(error, errors.NotAllowed):
        error.verb, error.path = str(problem.get("verb", "")), str(problem.get("path", ""))
    error.status = answer.status
    error.headers = {name.title(): value for name, value in headers.items()}
    document = problem.get("error")
    if isinstance(error, errors.SubscriptionError) and isinstance(document, dict):
        error.said = {name: document[name] for name in document.keys() - {"code", "message"}}
    return error


def _class_of(method: str, status: int, headers: Mapping[str, str]) -> type[PenstockError]:
    """Return the error class for a status, for servers that send no codes."""
    if status == 403:
        return errors.StaleEpoch if "producer-epoch" in headers else errors.Forbidden
    if status == 409:
        if parse_closed(headers.get("stream-closed")):
            return errors.StreamClosed
        if "producer-expected-seq" in headers:
            return errors.SequenceGap
        return errors.StreamExists if method == "PUT" else errors.Conflict
    if status >= 500:
        return errors.ServerError
    cls = _BY_STATUS.get(status)
    if cls is not None:
        return cls
    return errors.BadRequest if 400 <= status < 500 else ProtocolError


def _problem(answer: Answer) -> dict[str, Any]:
    if "json" not in answer.headers.get("content-type", ""):
        return {}
    try:
        document = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _reason(answer: Answer, problem: Mapping[str, Any]) -> str:
    """Return what the server says is wrong, if it says anything a person can read."""
    detail = problem.get("detail")
    if isinstance(detail, str):
        return detail
    if is_web_page(answer):
        return web_page_text(answer)
    return answer.body[:DETAIL_CHARACTERS_MAX].decode("utf-8", "replace").strip()


def is_web_page(answer: Answer) -> bool:
    """Whether an answer is a page for browsers, as proxies and other servers send it."""
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    start = answer.body[:DETAIL_CHARACTERS_MAX].lstrip().lower()
    return media_type in ("text/html", "application/xhtml+xml") or start.startswith(
        (b"<!doctype html", b"<html")
    )


def web_page_text(answer: Answer) -> str:
    """Return a sentence about such a page, with its title."""
    match = _PAGE_TITLE.search(answer.body[:PAGE_BYTES_MAX])
    title = " ".join(match[1].decode("utf-8", "replace").split())[:100] if match else ""
    quoted = f" ({title!r})" if title else ""
    return (
        f"{WEB_PAGE}{quoted} came back instead of an answer of the protocol: the URL is that of "
        "another server, or a proxy in between cannot reach the right one."
    )


def _locate(error: errors.Unprocessable, problem: Mapping[str, Any]) -> None:
    """Set which item was refused, where in it, and by which rule, as far as the server says."""
    index = problem.get("index")
    error.index = index if isinstance(index, int) else None
    for name in ("path", "field", "rule"):
        text = problem.get(name)
        setattr(error, name, text if isinstance(text, str) else None)


def _number(answer: Answer, name: str) -> int | None:
    text = answer.headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


# Codes of local failures are left out: no server may raise a failure of the client.
_LOCAL = (errors.StoreError, errors.ClientError)
# Only the catalogue: a class elsewhere has the code of its base, and depends on what is imported.
_BY_CODE: Final[dict[str, type[PenstockError]]] = {
    cls.code: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, PenstockError) and not issubclass(cls, _LOCAL)
}
_BY_STATUS: Final[dict[int, type[PenstockError]]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    404: errors.StreamNotFound,
    405: errors.MethodNotAllowed,
    408: errors.RequestTimeout,
    410: errors.Gone,
    412: errors.TailMoved,
    413: errors.BodyTooLarge,
    414: errors.UriTooLong,
    422: errors.Unprocessable,
    429: errors.RateLimited,
    431: errors.HeadersTooLarge,
}
