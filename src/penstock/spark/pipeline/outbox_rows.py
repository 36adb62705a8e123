"""Rows of the outbox, as pure functions: how changes become chunks and chunks rows, and which of
many rows are still needed. Knows neither files nor the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

OUTBOX: Final = pa.schema(
    [
        ("publish", pa.string()),
        ("batch", pa.int64()),
        ("target", pa.string()),
        ("chunk", pa.int64()),
        ("ordinal", pa.int64()),
        ("operation", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("message", pa.string()),  # null once it is sent and only its value is still needed
    ]
)
# The same in memory, where texts of more than 2 GiB in one column may come together.
ROWS: Final = pa.schema(
    [
        (field.name, pa.large_string() if field.type == pa.string() else field.type)
        for field in OUTBOX
    ]
)
PLACE: Final = ("chunk", "ordinal")
IN_PLACE: Final = [(name, "ascending") for name in PLACE]
_compute: Any = pc


class Change(msgspec.Struct, frozen=True):
    """A key of a published result that has come, gone or changed."""

    operation: str
    key: str
    value: str | None
    message: str


class Chunk(msgspec.Struct, frozen=True):
    """Messages that are sent in one request, under one number."""

    number: int
    target: str
    messages: list[str]


def cut(changes: Iterable[Change], *, messages_max: int, bytes_max: int) -> Iterator[list[Change]]:
    """Changes as they are sent together. A chunk ends where its own messages say so; one that is
    larger than `bytes_max` is alone."""
    held: list[Change] = []
    size = 0
    for change in changes:
        more = body_bytes(change)
        if held and (len(held) >= messages_max or size + more > bytes_max):
            yield held
            held, size = [], 0
        held.append(change)
        size += more
    if held:
        yield held


def body_bytes(change: Change) -> int:
    """What a change takes of the body of a request: never less than it is sent as, with commas and
    brackets."""
    text = change.message
    return (len(text) if text.isascii() else len(text.encode())) + 2


def newest(rows: pa.Table) -> pa.Table:
    """Of each key the row that came last, unless it deletes the key."""
    order = _compute.sort_indices(rows.select(PLACE), sort_keys=IN_PLACE)
    place = pa.array(range(len(rows)), pa.int64())
    keys = pa.table({"key": rows["key"].take(order), "place": place})
    last = keys.group_by("key").aggregate([("place", "max")])["place_max"]
    kept = rows.take(order.take(last))
    return kept.filter(_compute.not_equal(kept["operation"], "delete"))


def rows_of(
    publish: str, target: str, batch: int, chunk: int, changes: Sequence[Change]
) -> pa.RecordBatch:
    """The changes of one chunk."""
    count = len(changes)
    made: dict[str, Any] = {
        "publish": pa.repeat(pa.scalar(publish, pa.large_string()), count),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        "target": pa.repeat(pa.scalar(target, pa.large_string()), count),
        "chunk": pa.repeat(pa.scalar(chunk, pa.int64()), count),
        "ordinal": pa.array(range(count), pa.int64()),
    }
    for name in ("operation", "key", "value", "message"):
        made[name] = pa.array([getattr(each, name) for each in changes], pa.large_string())
    return pa.RecordBatch.from_arrays([made[name] for name in ROWS.names], schema=ROWS)


def chunk_of(rows: list[dict[str, Any]]) -> Chunk:
    return Chunk(rows[0]["chunk"], rows[0]["target"], [row["message"] for row in rows])
