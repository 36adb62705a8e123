"""State events as Arrow columns: events of a few shapes are cut out of the answer, other plain
changes are decoded at once, the rest message by message. A message that is not an event becomes a
row with an error, never a failure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from penstock.errors import InvalidEvent
from penstock.limits import JSON_DEPTH_MAX
from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.source.arrow import Frame, Messages, raw_texts, repeated, texts
from penstock.spark.source.event_shapes import SHAPES_MAX, Events, Rows, learn
from penstock.state import parse
from penstock.state.event import ABSENT, ChangeEvent, Control, Operation
from penstock.state.json import SHALLOW_BYTES_MAX

_Text = Annotated[str, msgspec.Meta(min_length=1)]
# An empty text stands for an absent one: none of these fields may be empty.
_NONE: Final = ""


class _Headers(msgspec.Struct, frozen=True, gc=False):
    operation: Operation | None = None
    control: Control | None = None
    txid: _Text = _NONE
    timestamp: str = _NONE
    offset: _Text = _NONE


class _Event(msgspec.Struct, frozen=True, gc=False):
    headers: _Headers
    type: _Text = _NONE
    key: _Text = _NONE
    value: Raw = ABSENT
    old_value: Raw = ABSENT


class _Headed(msgspec.Struct, frozen=True, gc=False):
    headers: Raw = ABSENT


class _Row(NamedTuple):
    """One event, in the order of the columns after its location."""

    kind: str
    type: str | None = None
    key: str | None = None
    operation: str | None = None
    value: str | None = None
    old_value: str | None = None
    txid: str | None = None
    timestamp: str | None = None
    control: str | None = None
    control_offset: str | None = None
    error: str | None = None


_decode: Final = msgspec.json.Decoder(list[_Event]).decode
_decode_one: Final = msgspec.json.Decoder(_Event).decode
_decode_headers: Final = msgspec.json.Decoder(_Headed).decode
_IRREGULAR: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_STRING: Final = pa.string()


def state_batch(messages: Messages) -> pa.RecordBatch:
    """The messages as state events."""
    frame = messages.frame
    columns = None if frame is None else _by_shape(frame)
    if columns is None:
        columns = _decoded(messages.payloads, None if frame is None else frame.body)
    return pa.RecordBatch.from_arrays([*messages.columns, *columns], schema=STATE_ARROW)


def with_headers(events: pa.RecordBatch, messages: Messages | None) -> pa.RecordBatch:
    """Events with the column `headers`: the member of that name as it was sent, null if there is
    none. Rows that no message made have none."""
    payloads = [] if messages is None else messages.payloads.to_pylist()
    texts = [_headers_of(payload) for payload in payloads] or [None] * events.num_rows
    return events.append_column("headers", pa.array(texts, _STRING))


def _headers_of(payload: bytes) -> str | None:
    try:
        return bytes(_decode_headers(payload).headers).decode() or None
    except _IRREGULAR:
        return None


def _by_shape(frame: Frame) -> list[pa.Array] | None:
    """The columns of an answer whose events have a few shapes; the others are decoded.

    None if most have to be decoded anyway.
    """
    if not _is_utf8(frame.body):
        return None
    events = Events(frame)
    remaining = np.arange(len(frame))
    parts: list[Rows] = []
    while len(remaining) and len(parts) < SHAPES_MAX:
        first = int(remaining[0])
        shape = learn(frame.body[frame.starts[first] : frame.ends[first]])
        if shape is None:
            break
        rows = events.matching(shape, remaining)
        if not len(rows.messages):
            break
        parts.append(rows)
        is_remaining = np.zeros(len(frame), np.bool_)
        is_remaining[remaining] = True
        is_remaining[rows.messages] = False
        remaining = np.flatnonzero(is_remaining)
    if len(remaining) * 2 > len(frame):
        return None
    tables = [_columns_of(rows) for rows in parts]
    if len(remaining):
        starts, ends = frame.starts[remaining], frame.ends[remaining]
        tables.append(_decoded(frame.texts(starts, ends, pa.binary()), None))
    if len(tables) == 1:
        return tables[0]
    order = np.argsort(np.concatenate([*(rows.messages for rows in parts), remaining]))
    indices = pa.array(order)
    return [pa.concat_arrays(arrays).take(indices) for arrays in zip(*tables, strict=True)]


def _columns_of(rows: Rows) -> list[pa.Array]:
    count = len(rows.messages)
    columns = {"kind": repeated("change", count, _STRING), **rows.columns}
    return [columns[name] if name in columns else pa.nulls(count, _STRING) for name in _Row._fields]


def _decoded(payloads: pa.Array, body: bytes | None) -> list[pa.Array]:
    """The columns of messages; `body` is their array, if there is one."""
    columns = None if body is None else _at_once(body, len(payloads))
    return _one_by_one(payloads) if columns is None else columns


def _is_utf8(body: bytes) -> bool:
    try:
        return body.isascii() or body.decode() is not None
    except UnicodeDecodeError:
        return False


def reset_batch(
    stream: str, generation: int | None, position: int, seq: int, offset: str | None, reason: str
) -> pa.RecordBatch:
    """A batch of one reset row, which invalidates the earlier rows of the stream."""
    row = _Row("control", control="reset", value=msgspec.json.encode({"reason": reason}).decode())
    where = [stream, generation, position, seq, offset]
    arrays = [
        pa.array([value], STATE_ARROW.field(index).type)
        for index, value in enumerate([*where, *row])
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=STATE_ARROW)


def _at_once(body: bytes, count: int) -> list[pa.Array] | None:
    """The columns of an array of plain change events; None if it has anything else."""
    try:
        events = _decode(body) if _is_utf8(body) else []
    except _IRREGULAR:
        return None
    headers = [event.headers for event in events]
    operations = [each.operation for each in headers]
    values = [event.value for event in events]
    olds = [event.old_value for event in events]
    controls = [each.control for each in headers]
    if None in operations or any(controls):
        return None
    types, keys = [event.type for event in events], [event.key for event in events]
    if not all(types) or not all(keys) or len(events) != count:
        return None
    if not all(values) and any(
        not value and operation != "delete"
        for value, operation in zip(values, operations, strict=True)
    ):
        return None
    for raws in (values, olds):
        # The longest value is checked first: most answers have none that can be nested too deep.
        if max(map(len, raws), default=0) > SHALLOW_BYTES_MAX and any(map(_may_be_deep, raws)):
            return None
    return [
        repeated("change", count, _STRING),
        texts(types),
        texts(keys),
        texts(operations),
        raw_texts(values),
        raw_texts(olds),
        texts([each.txid for each in headers], sparse=True),
        texts([each.timestamp for each in headers], sparse=True),
        pa.nulls(count, _STRING),
        pa.nulls(count, _STRING),
        pa.nulls(count, _STRING),
    ]


def _one_by_one(payloads: pa.Array) -> list[pa.Array]:
    rows = [_regular(payload) or _explained(payload) for payload in payloads.to_pylist()]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_Row._fields)
    return [pa.array(column, _STRING) for column in columns]


def _regular(payload: bytes) -> _Row | None:
    """The row of a plain change event; None if the message is anything else."""
    try:
        event = _decode_one(payload)
        value, old_value = bytes(event.value).decode(), bytes(event.old_value).decode()
    except _IRREGULAR:
        return None
    headers, type_, key = event.headers, event.type, event.key
    operation = headers.operation
    if operation is None or headers.control or not type_ or not key:
        return None
    if (not value and operation != "delete") or not payload.isascii():
        return None
    if _may_be_deep(event.value) or _may_be_deep(event.old_value):
        return None
    return _Row(
        "change",
        type_,
        key,
        operation,
        value or None,
        old_value or None,
        headers.txid or None,
        headers.timestamp or None,
    )


def _may_be_deep(raw: Raw) -> bool:
    """Whether JSON may be nested too deep, which is rare; the full parser decides."""
    if len(raw) <= SHALLOW_BYTES_MAX:
        return False
    data = bytes(raw)
    return data.count(b"{") + data.count(b"[") > JSON_DEPTH_MAX


def _explained(payload: bytes) -> _Row:
    try:
        event: Any = parse(payload, strict_timestamp=False)
    except InvalidEvent as error:
        return _Row("invalid", value=payload.decode("utf-8", "replace"), error=error.detail)
    if isinstance(event, ChangeEvent):
        return _Row(
            "change",
            type=event.type,
            key=event.key,
            operation=event.operation,
            value=_text(event.raw_value),
            old_value=_text(event.raw_old_value),
            txid=event.txid,
            timestamp=event.timestamp or None,
        )
    return _Row("control", control=event.control, control_offset=event.offset)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()
