"""The state of a stream as the server returns it, page by page; for the commands of `state`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import msgspec

from penstock.cli.values import offset_of
from penstock.errors import NotStateStream

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream
    from penstock.state.live.changes import StateChange


EntityId: TypeAlias = tuple[str, str]  # (type, key)


class Entity(NamedTuple):
    type: str
    key: str
    value: msgspec.Raw


class Page(msgspec.Struct, frozen=True):
    """A page of a state, or of the history of one entity."""

    offset: str
    next: str | None
    types: dict[str, dict[str, msgspec.Raw]] = {}
    history: list[dict[str, msgspec.Raw]] = []


class Change(NamedTuple):
    """The change of one entity by one event. Values are JSON; None is no entity.

    `offset` is the offset after the event.
    """

    type: str
    key: str
    operation: str
    old: str | None
    new: str | None
    offset: str

    @classmethod
    def of(cls, change: StateChange) -> Self:
        """Return a change of a live state."""
        old, new = (
            None if raw is None else raw.decode() for raw in (change.old_raw, change.new_raw)
        )
        return cls(change.type, change.key, change.operation, old, new, change.offset)

    @property
    def entity(self) -> EntityId:
        return self.type, self.key

    @property
    def mark(self) -> str:
        """The sign of the change in the output of `diff`."""
        return "-" if self.new is None else "+" if self.old is None else "~"


def entities(stream: Stream, at: str, query: dict[str, str]) -> Iterator[Entity]:
    for page in pages(stream, at, query):
        yield from page_entities(page)


def page_entities(page: Page) -> Iterator[Entity]:
    for type, values in page.types.items():
        for key, value in values.items():
            yield Entity(type, key, value)


def pages(stream: Stream, at: str, query: dict[str, str]) -> Iterator[Page]:
    """Yield every page of one state. The offset of the first page holds for all of them."""
    first = {**query, **point(at)}
    page = fetch(stream, first)
    yield page
    while page.next is not None:
        page = fetch(stream, {**query, "offset": page.offset, "after": page.next})
        yield page


def point(at: str) -> dict[str, str]:
    """Return the parameter of a point of a stream: an offset, or a time."""
    from penstock.protocol.timestamps import is_rfc3339

    return {"at": at} if is_rfc3339(at) else {"offset": offset_of(at)}


def fetch(stream: Stream, query: dict[str, str]) -> Page:
    from penstock.client.requests import Request
    from penstock.errors import ProtocolError

    url = stream.url.replace("/v1/stream/", "/v1/state/", 1)
    body = stream.client.request(Request("GET", url, {}, query)).body
    try:
        return msgspec.json.decode(body, type=Page)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The server's answer about a state cannot be decoded: {error}."
        ) from None


def check_events(stream: Stream, name: str) -> None:
    """Raise NotStateStream if the stream has messages, but none of them is a state event.

    It is for a state without entities. That of a declared stream is empty, too.
    """
    from penstock.client.requests import Request
    from penstock.errors import InvalidEvent, SchemaNotFound
    from penstock.state.events import parse

    url = stream.url.replace("/v1/stream/", "/v1/schema/", 1)
    try:
        stream.client.request(Request("GET", url))
        return
    except SchemaNotFound:
        pass
    count = 0
    for batch in stream.iter_batches(message_type=msgspec.Raw):
        for message in batch.messages:
            count += 1
            try:
                parse(bytes(message), strict_timestamp=False)
                return
            except InvalidEvent:
                pass
    if count:
        raise NotStateStream(
            f"{name} has no state: none of its messages is a state event. "
            f"`penstock read {name}` prints them."
        )


def on_one_line(name: str) -> str:
    """Return a type or key without line ends and tabs, which they may contain."""
    return name.replace("\n", "\\n").replace("\t", "\\t")


def text(value: Any) -> str:
    """Return the JSON of a value on one line. Encoded JSON keeps the digits of its numbers if
    Python cannot represent them."""
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return msgspec.json.format(bytes(value), indent=-1).decode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def object_text(members: Mapping[str, Any]) -> str:
    """Return the JSON object of members whose values may be encoded JSON."""
    return "{" + ",".join(f"{text(name)}:{text(value)}" for name, value in members.items()) + "}"
