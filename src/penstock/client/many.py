"""Following several streams of a Penstock server on one connection.

A flow without I/O. Every event of the server says where all streams are after it, in its id. A
batch is emitted only when its event has arrived whole, so that no failure repeats or skips a
message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from penstock.client import requests
from penstock.client.batches import Batch, Decoder
from penstock.client.endurance import Endurance, OnOutage
from penstock.client.flow import Call, Close, Emit, Flow, Open, Piece, exchange, refusal
from penstock.client.follow import LIVE_SHORT_S
from penstock.client.retry import Retry
from penstock.client.sse import EventParser, decode_base64
from penstock.errors import BadRequest, PenstockError, ProtocolError
from penstock.protocol.globs import parse_pattern
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.client.checkpoint import Checkpoint

LIVE_PATH: Final = "/v1/streams/live"
State = Literal["joined", "closed", "deleted", "trimmed", "not-found", "up-to-date"]

_BYTES: Final = "application/octet-stream"


class StreamBatch(Batch, frozen=True, kw_only=True):
    """A part of one of several streams, or news about it in `state`.

    `joined` has the offset from which a stream is read. `deleted` and `not-found` streams are
    waited for. After `trimmed` reading goes on at `next_offset`: what was before is gone. An empty
    `stream` with the state `up-to-date` says that all streams are.
    """

    stream: str
    state: State | None = None


class FollowManyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `Client.follow_many`."""

    streams: Mapping[str, str] = {}
    match: Mapping[str, str] = {}
    cursor: str | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_key: str | None = None
    idle_timeout_s: float | None = None
    stop_when_up_to_date: bool = False
    decode: bool = True
    message_type: Any = None
    retry: Retry | None = None
    protocol_errors_max: int = 3
    on_outage: OnOutage | None = None


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """One item of an event. Without a stream it is about all of them."""

    stream: str | None = None
    offset: str | None = None
    state: str | None = None
    content_type: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    up_to_date: bool = False
    closed: bool = False
    streams: list[str] | None = None


_decode_entries = msgspec.json.Decoder(list[Entry]).decode


def starts(names: Mapping[str, str] | Iterable[str] | None, default: str = START) -> dict[str, str]:
    """Return offsets by name; names alone start at `default`."""
    if names is None:
        return {}
    if isinstance(names, str):
        raise TypeError(f"{names!r} is one name: pass a list of names, or offsets by name.")
    return dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, default)


class _Member:
    """A stream that is followed: its offset, its type, and the decoder of its text."""

    __slots__ = ("content_type", "decoder", "offset")

    def __init__(self, offset: str, content_type: str | None, decoder: Decoder) -> None:
        self.offset = offset
        self.content_type = content_type
        self.decoder = decoder


class ManyFollower:
    """One run of `follow_many`."""

    def __init__(
        self,
        base_url: str,
        options: FollowManyOptions,
        retry: Retry,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not options.streams and not options.match:
            raise ValueError("Name at least one stream or pattern to follow.")
        self.cursor = options.cursor
        self._url = many_url(base_url, options.streams, options.match)
        self._options = options
        self._now_s = now_s
        self._members: dict[str, _Member] = {}
        self._endurance = Endurance(
            options.retry or retry,
            limited=options.retry is not None,
            protocol_errors_max=options.protocol_errors_max,
            idle_timeout_s=options.idle_timeout_s,
            now_s=now_s,
            on_outage=options.on_outage,
        )
        self._was_up_to_date = False
        self._done = False

    @property
    def offsets(self) -> dict[str, str]:
        """The offset at which each stream is read on, by path."""
        return {path: member.offset for path, member in self._members.items()}

    def flow(self) -> Flow[None]:
        checkpoint = self._options.checkpoint
        if checkpoint is not None:
            saved = yield Call(checkpoint.load, (self._key(),), blocking=True)
            self.cursor = self.cursor if saved is None else saved
        while not self._done:
            try:
                yield from self._response()
            except PenstockError as error:
                yield Close()
                if self._endurance.is_idle():
                    return
                yield from self._endurance.failed(error)
            if self._endurance.is_idle():
                return

    def _response(self) -> Flow[None]:
        """One response, until it ends."""
        started_s, before = self._now_s(), self.cursor
        headers = {"Accept": "text/event-stream"}
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
        request = requests.Request(
            "GET",
            self._url,
            headers,
            wait="sse",
            read_timeout_s=self._options.idle_timeout_s,
        )
        answer = yield from exchange(Open(request))
        if answer.status == 204:  # every stream is closed, and nothing can join
            self._done = True
            return
        if not answer.has_events:
            raise (yield from refusal(request, answer))
        yield from self._endurance.answered()
        yield from self._receive()
        yield Close()
        if self._now_s() - started_s >= LIVE_SHORT_S:
            self._endurance.failures = 0
        elif self.cursor == before and not self._done:
            yield from self._endurance.short()

    def _receive(self) -> Flow[None]:
        parser = EventParser()
        while not self._done:
            piece: bytes | None = yield Piece()
            if piece is None:
                return
            for event, cursor in parser.feed_with_ids(piece):
                if event.type == "message" and not self._done:
                    yield from self._deliver(event.data, cursor)
            if self._endurance.is_idle():
                self._done = True

    def _deliver(self, data: bytes, cursor: str) -> Flow[None]:
        """Emit the entries of a whole event, then move past it."""
        try:
            entries = _decode_entries(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProtocolError(f"An event cannot be decoded: {error}.") from error
        if not cursor:
            raise ProtocolError("An event has no id: the response cannot be resumed.")
        # What may fail comes first: no incomplete character may be decoded twice.
        payloads = [_payload(entry) for entry in entries]
        batches = [
            batch
            for entry, payload in zip(entries, payloads, strict=True)
            for batch in self._batches(entry, *payload)
        ]
        if any(batch.data for batch in batches):
            self._endurance.failures = self._endurance.broken = 0
        self.cursor = cursor
        for batch in batches:
            yield Emit(batch)
            self._endurance.heard()
        checkpoint = self._options.checkpoint
        if checkpoint is not None:
            yield Call(checkpoint.save, (self._key(), cursor), blocking=True)
        if self._options.stop_when_up_to_date and self._was_up_to_date:
            self._done = True

    def _batches(self, entry: Entry, data: bytes, kind: str) -> list[StreamBatch]:
        path, offset = entry.stream, entry.offset
        if path is None:
            return self._about_all(entry)
        if offset is None:
            member = self._members.pop(path, None)
            state: State = "deleted" if entry.state == "deleted" else "not-found"
            return [_news(path, START if member is None else member.offset, state)]
        if entry.state is not None:
            return [self._starts(path, offset, entry)]
        return [self._data(path, offset, entry, data, kind)]

    def _about_all(self, entry: Entry) -> list[StreamBatch]:
        if entry.streams is not None:
            gone = [path for path in self._members if path not in entry.streams]
            return [_news(path, self._members.pop(path).offset, "deleted") for path in gone]
        if not entry.up_to_date or self._was_up_to_date:
            return []
        self._was_up_to_date = True
        return [_news("", START, "up-to-date")]

    def _starts(self, path: str, offset: str, entry: Entry) -> StreamBatch:
        before = self._members.get(path)
        content_type = entry.content_type or (None if before is None else before.content_type)
        self._members[path] = _Member(offset, content_type, self._decoder())
        state: State = "joined" if entry.state == "joined" else "trimmed"
        return _news(path, offset, state, content_type or _BYTES, up_to_date=entry.up_to_date)

    def _data(self, path: str, offset: str, entry: Entry, data: bytes, kind: str) -> StreamBatch:
        member = self._members.get(path)
        if member is None:  # The cursor is of another run, which knew the stream.
            member = self._members[path] = _Member(START, None, self._decoder())
        content_type = member.content_type or kind
        batch = member.decoder.batch(
            data,
            content_type=content_type,
            offset=member.offset,
            next_offset=offset,
            up_to_date=entry.up_to_date,
            closed=entry.closed,
        )
        member.offset = offset
        return StreamBatch(
            stream=path,
            state="closed" if entry.closed else None,
            offset=batch.offset,
            next_offset=offset,
            up_to_date=batch.up_to_date,
            closed=batch.closed,
            content_type=content_type,
            messages=batch.messages,
            data=batch.data,
            text=batch.text,
        )

    def _decoder(self) -> Decoder:
        return Decoder(decode=self._options.decode, message_type=self._options.message_type)

    def _key(self) -> str:
        return self._options.checkpoint_key or self._url


def many_url(base_url: str, streams: Mapping[str, str], match: Mapping[str, str]) -> str:
    """Return the URL of the live response over some streams of a server."""
    prefix = base_url.rstrip("/") + requests.STREAM_PREFIX
    pairs = []
    for name, offset in streams.items():
        url = requests.stream_url(base_url, name)
        if not url.startswith(prefix):
            raise BadRequest(f"{name} is not a stream of {base_url}: follow it by itself.")
        pairs.append(("stream", f"{url.removeprefix(prefix)}@{offset}"))
    for pattern, offset in match.items():
        if offset not in (NOW, START):
            raise BadRequest(f"A pattern starts at {NOW!r} or {START!r}, not at {offset!r}.")
        # Encoded as paths are, unless that would hide wildcards of other languages.
        is_plain = not set(pattern) & set("?[]{}")
        text = requests.stream_url(base_url, pattern).removeprefix(prefix) if is_plain else pattern
        pairs.append(("match", f"{parse_pattern(text)}@{offset}"))
    return base_url.rstrip("/") + LIVE_PATH + "?" + urlencode(pairs, safe="/@*")


def _payload(entry: Entry) -> tuple[bytes, str]:
    """Return the bytes of an entry, and the content type that their form stands for."""
    is_data = entry.stream is not None and entry.state is None
    if is_data and entry.offset is None:
        raise ProtocolError(f"An entry of {entry.stream} has no offset.")
    if entry.messages:
        return bytes(entry.messages), requests.JSON
    if entry.text is not None:
        return entry.text.encode(), "text/plain"
    return decode_base64((entry.base64 or "").encode()), _BYTES


def _news(
    path: str, offset: str, state: State, content_type: str = _BYTES, *, up_to_date: bool = False
) -> StreamBatch:
    return StreamBatch(
        stream=path,
        state=state,
        offset=offset,
        next_offset=offset,
        up_to_date=up_to_date or state == "up-to-date",
        closed=False,
        content_type=content_type,
    )
