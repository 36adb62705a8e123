"""Rows of a DataFrame as messages for the sink: JSON objects, state events, STP rows or unchanged
payloads. Pure: Arrow in, bytes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.errors import InvalidEvent, InvalidOption, InvalidRow, NotWritable
from penstock.state.events import change, reset, snapshot_end, snapshot_start, up_to_date
from penstock.stp.rows import Change, format_change

SinkMode = Literal["json", "state", "stp", "raw"]
Encoded = tuple[str, bytes]  # the target and the message

_SHOWN_CHARACTERS_MAX: Final = 200
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_check: Final = msgspec.json.Decoder(msgspec.Raw).decode
_CONTROLS: Final[dict[str, Callable[..., Any]]] = {
    "reset": reset,
    "snapshot-start": snapshot_start,
    "snapshot-end": snapshot_end,
    "up-to-date": lambda *, offset: up_to_date(),
}
_NAMED_HEADERS: Final = frozenset({"operation", "txid", "timestamp", "control"})
_REQUIRED_COLUMNS: Final[dict[SinkMode, tuple[str, ...]]] = {
    "json": (),
    "state": ("key",),
    "stp": ("key",),
    "raw": ("payload",),
}


class Encoder:
    """Encodes the rows of one schema."""

    def __init__(
        self, mode: SinkMode, schema: StructType, *, target: str | None, entity: str | None
    ) -> None:
        self._mode: SinkMode = mode
        self._target = target
        self._type = entity
        names = schema.fieldNames()
        self._value_is_json = "value" in names and isinstance(schema["value"].dataType, StringType)
        self._check(mode, schema)

    def _check(self, mode: SinkMode, schema: StructType) -> None:
        names = schema.fieldNames()
        required = [*_REQUIRED_COLUMNS[mode], *([] if self._target else ["stream"])]
        if mode == "state" and self._type is None:
            required.append("type")
        missing = [name for name in required if name not in names]
        if missing:
            hints = {"stream": " or the option stream", "type": " or the option type"}
            raise InvalidOption(
                f"To write as {mode} the rows need a column {missing[0]}"
                f"{hints.get(missing[0], '')}; they have {', '.join(names)}."
            )
        if mode == "raw" and not isinstance(schema["payload"].dataType, StringType | BinaryType):
            raise InvalidOption("The column payload has to be of type STRING or BINARY.")

    def encode(self, batch: pa.RecordBatch, *, escape: bool = False) -> Iterator[Encoded]:
        """Yield the target and message of each row; `escape` is for tables that declare it."""
        writers: dict[SinkMode, Callable[[dict[str, Any]], bytes]] = {
            "json": self._json,
            "state": self._state,
            "stp": partial(self._stp, escape=escape),
            "raw": self._raw,
        }
        write = writers[self._mode]
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            target = self._target or row.pop("stream", None)
            if not target:
                raise NotWritable(f"A row names no target stream: {_shown(row)}")
            yield target, write(row)

    def _json(self, row: dict[str, Any]) -> bytes:
        return _encode(row)

    def _raw(self, row: dict[str, Any]) -> bytes:
        payload = row["payload"]
        if payload is None:
            raise NotWritable(f"A row has no payload: {_shown(row)}")
        return payload.encode() if isinstance(payload, str) else bytes(payload)

    def _state(self, row: dict[str, Any]) -> bytes:
        try:
            if row.get("control") is not None:
                return self._control(row)
            operation: Any = row.get("operation") or "upsert"
            event = change(
                operation,
                row.get("type") or self._type or "",
                row["key"],
                self._value(row, "value"),
                old_value=self._value(row, "old_value"),
                txid=row.get("txid"),
                timestamp=row.get("timestamp"),
                headers=self._headers(row),
            )
        except InvalidEvent as error:
            raise NotWritable(f"A row is not a state event: {error.detail} {_shown(row)}") from None
        return event.to_json()

    def _headers(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """The headers of an event beyond those that have a column; it may have them as the source
        returns them, with those."""
        headers = row.get("headers")
        if isinstance(headers, str):
            try:
                headers = msgspec.json.decode(headers)
            except (msgspec.DecodeError, UnicodeEncodeError):
                headers = ()
        if headers is None:
            return None
        if not isinstance(headers, dict):
            raise NotWritable(
                f"The column headers has no JSON object, map or struct: {_shown(row)}"
            )
        return {name: value for name, value in headers.items() if name not in _NAMED_HEADERS}

    def _control(self, row: dict[str, Any]) -> bytes:
        make = _CONTROLS.get(row["control"])
        if make is None:
            raise NotWritable(f"Control {row['control']!r} is unknown: use {', '.join(_CONTROLS)}.")
        event: Any = make(offset=row.get("control_offset"))
        return bytes(event.to_json())

    def _value(self, row: dict[str, Any], name: str) -> Any:
        """Return a value as JSON; a text has to be JSON already, as the source returns it."""
        value = row.get(name)
        if value is None:
            return msgspec.UNSET
        if not isinstance(value, str) or (name == "value" and not self._value_is_json):
            return msgspec.Raw(_encode(value))
        try:
            return _check(value)
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise NotWritable(
                f"The column {name} holds a text that is not JSON: {_shown(row)}. Make it JSON "
                f"with to_json({name}), or a struct."
            ) from None

    def _stp(self, row: dict[str, Any], *, escape: bool) -> bytes:
        deletes = row.get("action") == "-" or row.get("operation") == "delete"
        key, record = row["key"], "" if deletes else row.get("record")
        if record is None or not key:
            raise NotWritable(f"A row needs a key, and a record unless it deletes: {_shown(row)}")
        if not isinstance(record, str):
            record = _encode(record).decode()
        try:
            return format_change(Change("-" if deletes else "+", key, record), escape=escape)
        except InvalidRow as error:
            raise NotWritable(f"A row is not an STP row: {error.detail} {_shown(row)}") from None


def _shown(row: dict[str, Any]) -> str:
    return str(row)[:_SHOWN_CHARACTERS_MAX]
