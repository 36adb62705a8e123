"""The operations on one stream as flows without I/O; `Stream` and `AsyncStream` run them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.client import answers, requests
from penstock.client.answers import (
    Appended,
    Created,
    Head,
    Retention,
    StatePage,
    StateSnapshot,
    StateStep,
)
from penstock.client.batches import Batch, Decoder, Read, joined
from penstock.client.flow import Effect, Emit, Flow, send
from penstock.client.follow import Follower, FollowOptions
from penstock.client.requests import (
    EVERYTHING,
    JSON,
    CreateOptions,
    Filter,
    ProducerId,
    Start,
    encode_message,
    join_messages,
    shown_url,
)
from penstock.client.retry import Retry
from penstock.errors import (
    ContentTypeMismatch,
    Gone,
    ProtocolError,
    StreamExists,
    StreamNotFound,
)
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START

Producer = ProducerId | tuple[str, int, int]


class AppendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are appended: see `Stream.append`."""

    content_type: str | None = None
    seq: str | None = None
    if_match: str | None = None
    producer: Producer | None = None
    close: bool = False


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and how it is decoded: see `Stream.read`."""

    offset: str = START
    start: Start | None = None
    until: str | None = None
    count: int | None = None
    filter: Filter = EVERYTHING
    decode: bool = True
    message_type: Any = None
    json_only: bool = False


class Operations:
    """The flows of one stream, and its content type once an answer has named it."""

    __slots__ = ("_retry", "content_type", "url")

    def __init__(self, url: str, retry: Retry, content_type: str | None) -> None:
        self.url = url
        self.content_type = content_type
        self._retry = retry

    def create(self, options: CreateOptions) -> Flow[Created]:
        """Create the stream. Without a content type it holds JSON, and a fork what its source
        does."""
        kind, fork, body = options.content_type, options.fork, options.body
        if kind is None and fork is None:
            kind = JSON
        elif kind is None and fork is not None and body is not None:
            source = yield from send(requests.head(fork.url), self._retry)
            kind = source.content_type
        encoded = b""
        if body is not None:
            encoded = join_messages([encode_message(body, kind or "")], kind or "")
        request = requests.create(self.url, options, content_type=kind, body=encoded)
        created = answers.created((yield from send(request, self._retry)), kind or "")
        if not (created.created or options.exist_ok):
            raise StreamExists(
                f"{shown_url(self.url)} exists already, with the same configuration."
            )
        self.content_type = created.content_type
        return created

    def head(self) -> Flow[Head]:
        answer = yield from send(requests.head(self.url), self._retry)
        head = answers.head(answer)
        self.content_type = head.content_type
        return head

    def start_offset(self, start: Start) -> Flow[str]:
        answer = yield from send(requests.head(self.url, start=start), self._retry)
        return answers.start_offset(answer, start)

    def exists(self) -> Flow[bool]:
        try:
            yield from self.head()
        except (StreamNotFound, Gone):
            return False
        return True

    def append(self, messages: Iterable[Any], options: AppendOptions) -> Flow[Appended]:
        """Append all the messages in one request."""
        kind = options.content_type or self.content_type
        values = list(messages)
        if kind is None and values:
            kind = (yield from self.head()).content_type
        kind = kind or ""
        body = join_messages([encode_message(value, kind) for value in values], kind)
        request = requests.append(
            self.url,
            body if values else b"",
            kind,
            seq=options.seq,
            if_match=options.if_match,
            producer=options.producer,
            close=options.close,
        )
        answer = yield from send(request, self._retry)
        if answers.is_bare_duplicate(answer):
            end = (yield from self.head()).offset
            answer = answer._replace(headers={**answer.headers, "stream-next-offset": end})
        return answers.appended(answer, request)

    def trim(self, before: str) -> Flow[str]:
        answer = yield from send(requests.trim(self.url, before), self._retry)
        return answers.earliest(answer)

    def compact(self) -> Flow[str]:
        answer = yield from send(requests.compact(self.url), self._retry)
        return answers.earliest(answer)

    def retention(self) -> Flow[Retention]:
        answer = yield from send(requests.get_retention(self.url), self._retry)
        return answers.retention(answer)

    def set_retention(
        self, age_s: int | None, bytes: int | None, ratio: int | None, own: bool
    ) -> Flow[None]:
        policy = {"age": age_s, "bytes": bytes, "compact": ratio} if own else None
        yield from send(requests.retention(self.url, policy), self._retry)

    def state(self, params: dict[str, str]) -> Flow[StateSnapshot]:
        pages = yield from self._state_pages(params)
        types: dict[str, dict[str, Any]] = {}
        for page in pages:
            for name, values in page.types.items():
                types.setdefault(name, {}).update(values)
        return StateSnapshot(pages[0].offset, types)

    def history(self, params: dict[str, str]) -> Flow[list[StateStep]]:
        pages = yield from self._state_pages({**params, "history": "true"})
        return [step for page in pages for step in page.history]

    def _state_pages(self, params: dict[str, str]) -> Flow[list[StatePage]]:
        """Return every page; the offset of the first one holds for all of them."""
        pages: list[StatePage] = []
        while True:
            answer = yield from send(requests.state(self.url, params), self._retry)
            page = answers.state_page(answer)
            pages.append(page)
            if page.next is None:
                return pages
            params = {**params, "offset": page.offset, "after": page.next}
            params.pop("at", None)

    def delete(self) -> Flow[None]:
        yield from send(requests.delete(self.url), self._retry)

    def batches(self, options: ReadOptions) -> Flow[None]:
        """Emit batches as the server cuts them, until the read is up to date or at its bound."""
        decoder = Decoder(decode=options.decode, message_type=options.message_type)
        offset, until, remaining = options.offset, options.until, options.count
        start = options.start
        while True:
            request = requests.read(
                self.url,
                offset,
                start=start,
                until=until,
                count=remaining,
                filter=options.filter,
            )
            answer = yield from send(request, self._retry)
            answers.check_filter(answer, options.filter)
            if start is not None:
                offset, start = answers.start_offset(answer, start), None
            self.content_type = answer.content_type
            if options.json_only and not is_json(answer.content_type):
                raise ContentTypeMismatch(
                    f"{shown_url(self.url)} has content type {answer.content_type}, so it has no "
                    "JSON messages: use read_text() or read_bytes()."
                )
            batch = decoder.batch(
                answer.body,
                content_type=answer.content_type,
                offset=offset,
                next_offset=answer.offset,
                up_to_date=answer.up_to_date,
                closed=answer.closed,
            )
            yield Emit(batch)
            if remaining is not None:
                remaining -= len(batch.messages) or _count(batch.data)
            if (
                batch.up_to_date
                or batch.next_offset == until
                or (remaining is not None and remaining <= 0)
            ):
                return
            if batch.next_offset == offset:
                if until is not None:
                    return
                raise ProtocolError(
                    "The answer has no new offset and does not say that it is up to date."
                )
            offset = batch.next_offset

    def read(self, options: ReadOptions) -> Flow[Read]:
        """Return everything that `batches` emits as one value."""
        batches: list[Batch] = []
        flow = self.batches(options)
        effect: Effect
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Emit):
                    batches.append(effect.value)
                    effect = next(flow)
                    continue
                try:
                    value = yield effect
                except Exception as error:  # noqa: BLE001 - thrown into the inner flow
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration:
            return joined(batches)

    def follow(self, options: FollowOptions) -> Follower:
        return Follower(self.url, options, self._retry, content_type=self.content_type)


def _count(data: bytes) -> int:
    return len(msgspec.json.decode(data, type=list[msgspec.Raw])) if data else 0
