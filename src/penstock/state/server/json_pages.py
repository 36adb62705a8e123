"""Pages of the state at the tail as JSON that the database joins.

For readers of the whole state: no row becomes a Python object, and other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

CHUNK_ENTITIES: Final = 250
"""Entities joined at a time: the last chunk of a page is dropped if the page is too large."""

# A value that is not indexed makes its part NULL, which group_concat leaves out: they are counted.
_CHUNK: Final = """SELECT type, max(key), count(*), count(value), sum(length),
CAST(group_concat(json_quote(key) || ':' || CAST(value AS TEXT)) AS BLOB)
FROM (SELECT type, key, length, value FROM entities
  WHERE stream = ? AND (type, key) >= (?, ?) ORDER BY type, key LIMIT ?)
GROUP BY type ORDER BY type"""

Query = Callable[[str, tuple[Any, ...]], list[Any]]


class JoinedPage(NamedTuple):
    """The members of the JSON object of each type; `last` is the last entity of the page."""

    types: list[tuple[str, bytes]]
    last: tuple[str, str] | None
    more: bool


def join(
    query: Query, stream: int, low: tuple[str, str], *, limit: int, bytes_max: int
) -> JoinedPage | None:
    """Return a page from `low` on; None if a value is not indexed, or too large."""
    parts: dict[str, list[bytes]] = {}
    last: tuple[str, str] | None = None
    count = size = 0
    while True:
        chunk = min(CHUNK_ENTITIES, limit - count)
        # At the limit one more is queried, to know whether there are more.
        rows = query(_CHUNK, (stream, *low, chunk or 1))
        if not rows:
            return JoinedPage(_together(parts), last, more=False)
        entities, values, length = (sum(column) for column in list(zip(*rows, strict=True))[2:5])
        size += length
        if last is not None and (not chunk or size > bytes_max or values < entities):
            return JoinedPage(_together(parts), last, more=True)
        if size > bytes_max or values < entities:
            return None
        for row in rows:
            parts.setdefault(row[0], []).append(row[5])
        count += entities
        last = (rows[-1][0], rows[-1][1])
        if entities < chunk:
            return JoinedPage(_together(parts), last, more=False)
        low = (last[0], last[1] + "\0")  # the next possible key


def _together(parts: dict[str, list[bytes]]) -> list[tuple[str, bytes]]:
    return [(type, b",".join(pieces)) for type, pieces in parts.items()]
