"""Events of the State Protocol: parsing and building them.

Knows JSON only: no stream, no client, no server. `parse` and `parse_many` read events; the builders
make checked events to append: `stream.append(insert("user", "1", …))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from msgspec import UNSET

from penstock.errors import InvalidEvent
from penstock.protocol.timestamps import format_timestamp, is_rfc3339
from penstock.state.event import (
    CONTROLS,
    OPERATIONS,
    ChangeEvent,
    Control,
    ControlEvent,
    Operation,
    StateEvent,
)
from penstock.state.json import encode_value
from penstock.state.parsing import parse, parse_many

__all__ = [
    "CONTROLS",
    "OPERATIONS",
    "ChangeEvent",
    "Control",
    "ControlEvent",
    "Operation",
    "StateEvent",
    "change",
    "delete",
    "insert",
    "is_rfc3339",
    "parse",
    "parse_many",
    "reset",
    "snapshot_end",
    "snapshot_start",
    "up_to_date",
    "update",
    "upsert",
]

Timestamp = str | datetime | None
_Headers = Mapping[str, Any] | None
_NAMED: Final = frozenset({"operation", "control", "txid", "timestamp"})


def insert(
    type: str,
    key: str,
    value: Any,
    *,
    txid: str | None = None,
    timestamp: Timestamp = None,
    headers: _Headers = None,
) -> ChangeEvent:
    """Return the event that creates an entity. `headers` adds headers of your own."""
    return change("insert", type, key, value, txid=txid, timestamp=timestamp, headers=headers)


def update(
    type: str,
    key: str,
    value: Any,
    *,
    old_value: Any = UNSET,
    txid: str | None = None,
    timestamp: Timestamp = None,
    headers: _Headers = None,
) -> ChangeEvent:
    """Return the event that replaces an entity's value; `old_value` is for information."""
    return change("update", type, key, value, old_value=old_value, txid=txid,
                  timestamp=timestamp, headers=headers)  # fmt: skip


def upsert(
    type: str,
    key: str,
    value: Any,
    *,
    old_value: Any = UNSET,
    txid: str | None = None,
    timestamp: Timestamp = None,
    headers: _Headers = None,
) -> ChangeEvent:
    """Return the event that sets an entity's value, new or not. It is not in the protocol's text,
    but in wide use."""
    return change("upsert", type, key, value, old_value=old_value, txid=txid,
                  timestamp=timestamp, headers=headers)  # fmt: skip


def delete(
    type: str,
    key: str,
    *,
    old_value: Any = UNSET,
    txid: str | None = None,
    timestamp: Timestamp = None,
    headers: _Headers = None,
) -> ChangeEvent:
    """Return the event that removes an entity; `old_value` is for information."""
    return change("delete", type, key, old_value=old_value, txid=txid,
                  timestamp=timestamp, headers=headers)  # fmt: skip


def change(
    operation: Operation,
    type: str,
    key: str,
    value: Any = UNSET,
    *,
    old_value: Any = UNSET,
    txid: str | None = None,
    timestamp: Timestamp = None,
    headers: _Headers = None,
) -> ChangeEvent:
    """Return a change event of any operation, checked like one that was read."""
    fields: dict[str, Any] = {"type": type, "key": key}
    if value is not UNSET:
        fields["value"] = encode_value(value)
    if old_value is not UNSET:
        fields["old_value"] = encode_value(old_value, "old_value")
    named: dict[str, Any] = {"operation": operation}
    if txid is not None:
        named["txid"] = txid
    if timestamp is not None:
        named["timestamp"] = _formatted(timestamp)
    return cast("ChangeEvent", parse({**fields, "headers": {**named, **_own(headers)}}))


def snapshot_start(*, offset: str | None = None) -> ControlEvent:
    """Return the event that begins a consistent snapshot."""
    return _control("snapshot-start", offset)


def snapshot_end(*, offset: str | None = None) -> ControlEvent:
    """Return the event that completes a snapshot."""
    return _control("snapshot-end", offset)


def reset(*, offset: str | None = None, location: str | None = None) -> ControlEvent:
    """Return the event that invalidates the state before it, or with an `offset`, ahead or behind,
    everything before that offset.

    With a `location`, the path or URL of another stream, they continue there.
    """
    return _control("reset", offset, {} if location is None else {"location": location})


def up_to_date() -> ControlEvent:
    """Return the event that says that the producer has sent everything for now."""
    return _control("up-to-date", None)


def _control(
    control: Control, offset: str | None, more: Mapping[str, str] | None = None
) -> ControlEvent:
    headers = {"control": control} if offset is None else {"control": control, "offset": offset}
    return cast("ControlEvent", parse({"headers": {**headers, **(more or {})}}))


def _formatted(timestamp: str | datetime) -> str:
    try:
        return format_timestamp(timestamp)
    except ValueError as error:
        field = "headers.timestamp"
        raise InvalidEvent(f"{field}: {error}.", field=field, rule="rfc3339") from None


def _own(headers: _Headers) -> Mapping[str, Any]:
    for name in headers or ():
        if name in _NAMED:
            raise InvalidEvent(
                f"headers.{name} is a header of the protocol: it cannot be an extra header.",
                field=f"headers.{name}",
                rule="reserved",
            )
    return headers or {}
