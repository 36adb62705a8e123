"""The state of a stream as a server answers it, page by page; shared by the commands of `state`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream


Place: TypeAlias = tuple[str, str]  # (type, key)


class Entity(NamedTuple):
    type: str
    key: str
    value: Any


class Change(NamedTuple):
    """What one event did to one entity; values are JSON, None is no entity.

    `offset` is where the stream stands after it.
    """

    type: str
    key: str
    operation: str
    old: str | None
    new: str | None
    offset: str

    @property
    def place(self) -> Place:
        return self.type, self.key

    @property
    def mark(self) -> str:
        """The sign of `diff`."""
        return "-" if self.new is None else "+" if self.old is None else "~"


def entities(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[Entity]:
    for page in pages(stream, offset, query):
        yield from of_page(page)


def of_page(page: dict[str, Any]) -> Iterator[Entity]:
    for type, values in page["types"].items():
        for key, value in values.items():
            yield Entity(type, key, value)


def pages(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Every page of one state: the first says which offset the others have to be of."""
    query = {**query, "offset": offset}
    while True:
        page = ask(stream, query)
        yield page
        if page["next"] is None:
            return
        query = {**query, "offset": page["offset"], "after": page["next"]}


def ask(stream: Stream, query: dict[str, str]) -> dict[str, Any]:
    from penstock.client.requests import Request

    url = stream.url.replace("/v1/stream/", "/v1/state/", 1)
    found: dict[str, Any] = json.loads(stream.client.request(Request("GET", url, {}, query)).body)
    return found


def word(name: str) -> str:
    """A type or key on one line: they may hold any character."""
    return name.replace("\n", "\\n").replace("\t", "\\t")


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
