"""The bytes of an answer as Arrow columns, without a Python object for each message where possible.

Knows the wire shape of JSON reads; does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError
from penstock.limits import OFFSET_DIGITS, SPARK_ROW_BYTES
from penstock.spark.columns import RAW_ARROW

# pyarrow creates its functions at run time, so that no type checker sees them.
_compute: Any = pc
_SEPARATOR: Final = b",\n"
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Where(NamedTuple):
    """The location of one answer: its stream, its first message and its end."""

    stream: str
    generation: int | None
    position: int
    seq: int
    end_offset: str
    end_byte: int | None  # None for other servers, whose offsets are not bytes


class Messages(NamedTuple):
    """The messages of one answer, and the columns of their location."""

    payloads: pa.Array
    columns: list[pa.Array]

    def __len__(self) -> int:
        return len(self.payloads)


def json_messages(body: bytes, where: Where) -> Messages:
    """The messages of a JSON array."""
    if where.end_byte is None:
        payloads = pa.array([bytes(raw) for raw in _split(body)], pa.binary())
        return Messages(payloads, _counted(numbers(where.seq, len(payloads)), where))
    if len(body) <= 2:
        return Messages(pa.array([], pa.binary()), _empty())
    payloads, ends, sizes = _framed(body)
    ends = _compute.add(ends, where.position)
    _check_end(ends[-1].as_py(), where)
    seqs = numbers(where.seq, len(payloads))
    return Messages(payloads, _measured(_compute.subtract(ends, sizes), ends, seqs, where))


def joined_messages(answers: Sequence[tuple[bytes, Where]]) -> tuple[bytes, Messages]:
    """Join many small JSON arrays into one, and return its messages.

    An Arrow array for each answer would cost more.
    """
    inner = [body[1:-1] for body, _ in answers]
    body = b"[" + _SEPARATOR.join(inner) + b"]"
    payloads, ends, sizes = _framed(body)
    wheres = [where for _, where in answers]
    counts = [message_count(each) for each in inner]
    shifts, at = [], 0
    for each, where in zip(inner, wheres, strict=True):
        shifts.append(where.position - at)
        at += len(each) + len(_SEPARATOR)
        _check_end(at + shifts[-1], where)
    ends = _compute.add(ends, _spread(shifts, counts, pa.int64()))
    seqs = pa.array(
        [
            where.seq + index
            for where, count in zip(wheres, counts, strict=True)
            for index in range(count)
        ],
        pa.int64(),
    )
    generations = [where.end_offset.partition("_")[0] for where in wheres]
    columns = [
        _spread([where.stream for where in wheres], counts, pa.string()),
        _spread([where.generation for where in wheres], counts, pa.int64()),
        _compute.subtract(ends, sizes),
        seqs,
        _offsets(_spread(generations, counts, pa.string()), ends),
    ]
    return body, Messages(payloads, columns)


def message_count(body: bytes) -> int:
    """The number of messages of a non-empty array: no JSON message contains the separator."""
    return body.count(_SEPARATOR) + 1


def _framed(body: bytes) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Split messages in wire shape: payloads, their ends (from 0), sizes with separator."""
    whole = pa.array([body[1:-1]], pa.large_binary())
    payloads = _compute.split_pattern(whole, _SEPARATOR).values.cast(pa.binary())
    sizes = _compute.add(_compute.binary_length(payloads).cast(pa.int64()), len(_SEPARATOR))
    return payloads, _compute.cumulative_sum(sizes), sizes


def _check_end(end: int, where: Where) -> None:
    if end != where.end_byte:
        raise ProtocolError(
            f"An answer of {where.stream} ends at {where.end_offset}, and its messages end at "
            f"byte {end}: something between the server and this reader rewrites JSON. Bypass it."
        )


def byte_messages(body: bytes, where: Where) -> Messages:
    """Cut a byte stream, which has no messages, into pieces at fixed bytes."""
    view = memoryview(body)
    first = SPARK_ROW_BYTES - where.position % SPARK_ROW_BYTES
    cuts = [0, *range(first, len(body), SPARK_ROW_BYTES), len(body)] if body else []
    pieces = [view[low:high] for low, high in pairwise(cuts)]
    payloads = pa.array([bytes(piece) for piece in pieces], pa.binary())
    starts = pa.array([where.position + low for low in cuts[:-1]], pa.int64())
    if where.end_byte is None:
        return Messages(payloads, _counted(starts, where))
    ends = pa.array([where.position + high for high in cuts[1:]], pa.int64())
    return Messages(payloads, _measured(starts, ends, starts, where))


def raw_batch(messages: Messages) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*messages.columns, messages.payloads], schema=RAW_ARROW)


def take(messages: Messages, skip: int, count: int | None) -> Messages:
    """The `count` messages after the first `skip`; None for all of them."""
    length = len(messages) - skip if count is None else min(count, len(messages) - skip)
    return Messages(
        messages.payloads.slice(skip, length),
        [column.slice(skip, length) for column in messages.columns],
    )


def repeated(value: str | int | None, count: int, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    return pa.repeat(pa.scalar(value, kind), count)


def numbers(first: int, count: int) -> pa.Array:
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return _compute.cumulative_sum(ones, start=first - 1)


def texts(values: Sequence[str | None], *, sparse: bool = False) -> pa.Array:
    """A column of texts; in a sparse one an empty text stands for null."""
    if sparse:
        if not any(values):
            return pa.nulls(len(values), pa.string())
        return pa.array([value or None for value in values], pa.string())
    return pa.array(values, pa.string())


def raw_texts(values: Sequence[msgspec.Raw]) -> pa.Array:
    """A column of JSON texts from views into a larger body; an empty one stands for null."""
    # Joined at once: a Python object for each text would take twice as long as everything else.
    data = b"".join(values)
    if not data:
        return pa.nulls(len(values), pa.string())
    lengths = pa.array(list(map(len, values)), pa.int32())
    ends = _compute.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    present = _compute.not_equal(lengths, 0)
    valid = None if all(values) else present.buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), len(values), [valid, offsets.buffers()[1], pa.py_buffer(data)]
    )


def _measured(starts: pa.Array, ends: pa.Array, seqs: pa.Array, where: Where) -> list[pa.Array]:
    """Location columns of a stream whose offsets are generation and byte."""
    count = len(starts)
    generation = where.end_offset.partition("_")[0]
    return [
        repeated(where.stream, count, pa.string()),
        repeated(where.generation, count, pa.int64()),
        starts,
        seqs,
        _offsets(generation, ends),
    ]


def _offsets(generations: pa.Array | str, ends: pa.Array) -> pa.Array:
    digits = _compute.utf8_lpad(ends.cast(pa.string()), OFFSET_DIGITS, "0")
    return _compute.binary_join_element_wise(generations, digits, "_")


def _spread(values: Sequence[Any], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Repeat each value as often as its count says."""
    pairs = zip(values, counts, strict=True)
    return pa.array([value for value, count in pairs for _ in range(count)], kind)


def _counted(seqs: pa.Array, where: Where) -> list[pa.Array]:
    """Location columns of messages that have numbers but no offsets.

    Only the end of an answer has an offset, and answers do not end at the same message each time.
    """
    count = len(seqs)
    return [
        repeated(where.stream, count, pa.string()),
        repeated(where.generation, count, pa.int64()),
        seqs,
        seqs,
        pa.nulls(count, pa.string()),
    ]


def _empty() -> list[pa.Array]:
    return [pa.array([], RAW_ARROW.field(index).type) for index in range(5)]
