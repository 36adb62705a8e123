"""The careful parser of one event: slower than the typed decoder, but it preserves unknown fields
and names the field that breaks a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.errors import InvalidEvent
from penstock.protocol.timestamps import is_rfc3339
from penstock.state.event import (
    ABSENT,
    CONTROLS,
    OPERATIONS,
    ChangeEvent,
    ControlEvent,
    Headers,
    StateEvent,
    UnknownFields,
)
from penstock.state.json import check_depth, decode_value

_QUOTED_CHARACTERS_MAX: Final = 64
_Fields = dict[str, Raw]
_decode_object: Final = msgspec.json.Decoder(_Fields).decode


def read_event(raw: bytes | Raw, *, strict_timestamp: bool) -> StateEvent:
    """Return the event in valid JSON; raise InvalidEvent with the field and the rule it breaks."""
    fields = _object(raw, None)
    if "headers" not in fields:
        raise _broken("headers", "required", "is missing: every event has headers")
    headers = _object(fields.pop("headers"), "headers")
    if "operation" in headers and "control" in headers:
        raise _broken(
            "headers",
            "exclusive",
            "has both operation and control: an event is either a change or a control event",
        )
    if "operation" in headers:
        return _read_change(fields, headers, strict_timestamp=strict_timestamp)
    if "control" in headers:
        return _read_control(fields, headers)
    raise _broken(
        "headers",
        "required",
        "has neither operation (a change event) nor control (a control event)",
    )


def _read_change(fields: _Fields, headers: _Fields, *, strict_timestamp: bool) -> ChangeEvent:
    operation = _one_of(headers.pop("operation"), "headers.operation", OPERATIONS)
    txid = _optional(headers, "txid")
    timestamp = _timestamp(headers, strict=strict_timestamp)
    type_, key = _required(fields, "type"), _required(fields, "key")
    value, old_value = fields.pop("value", ABSENT), fields.pop("old_value", ABSENT)
    if not value and operation != "delete":
        raise _broken("value", "required", f"is missing: {operation} needs one, which may be null")
    for field, raw in ("value", value), ("old_value", old_value):
        check_depth(raw, field)
    return ChangeEvent(
        headers=Headers(
            operation=operation,
            txid=txid,
            timestamp=timestamp,
            ttl=headers.pop("ttl", UNSET),
            expires_at=headers.pop("expires_at", UNSET),
            reason=headers.pop("reason", UNSET),
            unknown=_unknown(headers),
        ),
        type=type_,
        key=key,
        _value=value,
        _old_value=old_value,
        unknown=_unknown(fields),
    )


def _read_control(fields: _Fields, headers: _Fields) -> ControlEvent:
    control = _one_of(headers.pop("control"), "headers.control", CONTROLS)
    offset = _optional(headers, "offset")
    location: str | UnsetType = UNSET
    if "location" in headers:
        text = decode_value(headers["location"])
        # A location that is no text is an unknown header: writers may use the name for their own.
        if isinstance(text, str) and text:
            location = text
            del headers["location"]
    return ControlEvent(
        headers=Headers(
            control=control, offset=offset, location=location, unknown=_unknown(headers)
        ),
        unknown=_unknown(fields),
    )


def _object(raw: bytes | Raw, field: str | None) -> _Fields:
    try:
        return _decode_object(raw)
    except msgspec.ValidationError:
        kind = _kind(decode_value(raw))
    if field is None:
        raise InvalidEvent(f"An event is a JSON object, not {kind}.", rule="type")
    raise _broken(field, "type", f"must be an object, not {kind}")


def _required(fields: _Fields, field: str) -> str:
    if field not in fields:
        raise _broken(field, "required", "is missing: every change event has one")
    return _text(fields.pop(field), field)


def _optional(headers: _Fields, name: str) -> str | UnsetType:
    return _text(headers.pop(name), f"headers.{name}") if name in headers else UNSET


def _timestamp(headers: _Fields, *, strict: bool) -> str | UnsetType:
    if "timestamp" not in headers:
        return UNSET
    field = "headers.timestamp"
    text = _string(headers.pop("timestamp"), field)
    if strict and not is_rfc3339(text):
        raise _broken(
            field,
            "rfc3339",
            f"{_quoted(text)} is not an RFC 3339 time with a time zone, such as "
            "2025-01-15T10:30:00Z",
        )
    return text


def _text(raw: Raw, field: str) -> str:
    text = _string(raw, field)
    if not text:
        raise _broken(field, "non-empty", "must not be empty")
    return text


def _string(raw: Raw, field: str) -> str:
    value = decode_value(raw)
    if not isinstance(value, str):
        raise _broken(field, "type", f"must be a string, not {_kind(value)}")
    return value


def _one_of(raw: Raw, field: str, allowed: tuple[Any, ...]) -> Any:
    text = _string(raw, field)
    if text not in allowed:
        words = ", ".join(allowed[:-1]) + f" or {allowed[-1]}"
        raise _broken(field, "vocabulary", f"{_quoted(text)} is unknown: use {words}")
    return text


def _unknown(fields: Mapping[str, Raw]) -> UnknownFields | UnsetType:
    # Copied, so that a few unknown bytes do not keep a whole array in memory.
    return UnknownFields({name: bytes(raw) for name, raw in fields.items()}) if fields else UNSET


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    kinds: dict[Any, str] = {str: "a string", list: "an array", dict: "an object"}
    return kinds.get(type(value), "a number")


def _quoted(text: str) -> str:
    return repr(text[:_QUOTED_CHARACTERS_MAX])


def _broken(field: str, rule: str, problem: str) -> InvalidEvent:
    return InvalidEvent(f"{field} {problem}.", field=field, rule=rule)
