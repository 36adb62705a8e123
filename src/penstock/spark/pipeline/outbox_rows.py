"""Rows of the outbox as pure functions: from changes to chunks to rows and back, and the newest row
of each key. Knows neither files nor the server.
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
        ("message", pa.string()),  # null once it is sent and only its value is needed
    ]
)
# The same in memory, where a column may have more than 2 GiB of text.
ROWS: Final = pa.schema(
    [
        (field.name, pa.large_string() if field.type == pa.string() else field.type)
        for field in OUTBOX
    ]
)
ORDER: Final = ("chunk", "ordinal")
SORT_KEYS: Final = [(name, "ascending") for name in ORDER]
_compute: Any = pc


class Change(msgspec.Struct, frozen=True):
    """The insert, update or delete of a key of a published result."""

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
    """Changes in chunks. Where a chunk ends depends on its own messages only; a message larger than
    `bytes_max` is a chunk of its own."""
    pending: list[Change] = []
    size = 0
    for change in changes:
        more = body_bytes(change)
        if pending and (len(pending) >= messages_max or size + more > bytes_max):
            yield pending
            pending, size = [], 0
        pending.append(change)
        size += more
    if pending:
        yield pending


def body_bytes(change: Change) -> int:
    """The bytes that a change takes in the body of a request, including commas and brackets."""
    text = change.message
    return (len(text) if text.isascii() else len(text.encode())) + 2


def newest(rows: pa.Table) -> pa.Table:
    """The last row of each key, unless it deletes the key."""
    order = _compute.sort_indices(rows.select(ORDER), sort_keys=SORT_KEYS)
    number = pa.array(range(len(rows)), pa.int64())
    keys = pa.table({"key": rows["key"].take(order), "number": number})
    last = keys.group_by("key").aggregate([("number", "max")])["number_max"]
    newest_rows = rows.take(order.take(last))
    return newest_rows.filter(_compute.not_equal(newest_rows["operation"], "delete"))


def rows_of(
    publish: str, target: str, batch: int, chunk: int, changes: Sequence[Change]
) -> pa.RecordBatch:
    """The changes of one chunk as rows."""
    count = len(changes)
    columns: dict[str, Any] = {
        "publish": pa.repeat(pa.scalar(publish, pa.large_string()), count),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        "target": pa.repeat(pa.scalar(target, pa.large_string()), count),
        "chunk": pa.repeat(pa.scalar(chunk, pa.int64()), count),
        "ordinal": pa.array(range(count), pa.int64()),
    }
    for name in ("operation", "key", "value", "message"):
        columns[name] = pa.array([getattr(change, name) for change in changes], pa.large_string())
    return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


def chunk_of(rows: list[dict[str, Any]]) -> Chunk:
    """The chunk of these rows, which are in order."""
    return Chunk(rows[0]["chunk"], rows[0]["target"], [row["message"] for row in rows])
