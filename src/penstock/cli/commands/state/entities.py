"""The state of a stream as the server returns it, page by page; for the commands of `state`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream
    from penstock.state.live.changes import StateChange


EntityId: TypeAlias = tuple[str, str]  # (type, key)


class Entity(NamedTuple):
    type: str
    key: str
    value: Any


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


def entities(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[Entity]:
    for page in pages(stream, offset, query):
        yield from page_entities(page)


def page_entities(page: dict[str, Any]) -> Iterator[Entity]:
    for type, values in page["types"].items():
        for key, value in values.items():
            yield Entity(type, key, value)


def pages(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield every page of one state. The offset of the first page holds for all of them."""
    query = {**query, "offset": offset}
    while True:
        page = fetch(stream, query)
        yield page
        if page["next"] is None:
            return
        query = {**query, "offset": page["offset"], "after": page["next"]}


def fetch(stream: Stream, query: dict[str, str]) -> dict[str, Any]:
    from penstock.client.requests import Request

    url = stream.url.replace("/v1/stream/", "/v1/state/", 1)
    page: dict[str, Any] = json.loads(stream.client.request(Request("GET", url, {}, query)).body)
    return page


def on_one_line(name: str) -> str:
    """Return a type or key without line ends and tabs, which they may contain."""
    return name.replace("\n", "\\n").replace("\t", "\\t")


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
