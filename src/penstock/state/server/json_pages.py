"""Pages of the state at the end of the index, put together by the database as the JSON they are.

For those who take the whole state: no row becomes a Python object, and other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

CHUNK_ENTITIES: Final = 250
"""JoinedPage at a time: the last chunk of a page is thrown away if it makes the page too large."""

# A value that is not at hand makes its piece NULL, which group_concat would leave out: counted.
_CHUNK: Final = """SELECT type, max(key), count(*), count(value), sum(length),
CAST(group_concat(json_quote(key) || ':' || CAST(value AS TEXT)) AS BLOB)
FROM (SELECT type, key, length, value FROM entities
  WHERE stream = ? AND (type, key) >= (?, ?) ORDER BY type, key LIMIT ?)
GROUP BY type ORDER BY type"""

Query = Callable[[str, tuple[Any, ...]], list[Any]]


class JoinedPage(NamedTuple):
    """Per type the members of its JSON object; `last` is the entity that the page ends with."""

    types: list[tuple[str, bytes]]
    last: tuple[str, str] | None
    more: bool


def join(
    query: Query, stream: int, low: tuple[str, str], *, limit: int, bytes_max: int
) -> JoinedPage | None:
    """Entities from `low` on; None where they have to be gone through one by one."""
    parts: dict[str, list[bytes]] = {}
    last: tuple[str, str] | None = None
    count = size = 0
    while True:
        wanted = min(CHUNK_ENTITIES, limit - count)
        # One beyond the limit is asked for, to know whether there is more.
        rows = query(_CHUNK, (stream, *low, wanted or 1))
        if not rows:
            return JoinedPage(_together(parts), last, more=False)
        found, at_hand, length = (sum(column) for column in list(zip(*rows, strict=True))[2:5])
        size += length
        if last is not None and (not wanted or size > bytes_max or at_hand < found):
            return JoinedPage(_together(parts), last, more=True)
        if size > bytes_max or at_hand < found:
            return None
        for row in rows:
            parts.setdefault(row[0], []).append(row[5])
        count += found
        last = (rows[-1][0], rows[-1][1])
        if found < wanted:
            return JoinedPage(_together(parts), last, more=False)
        low = (last[0], last[1] + "\0")  # the next possible key


def _together(parts: dict[str, list[bytes]]) -> list[tuple[str, bytes]]:
    return [(type, b",".join(pieces)) for type, pieces in parts.items()]
