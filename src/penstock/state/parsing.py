"""The fast parser of events: one typed decoding of a whole array, then one check of each event.

Where that fails `careful_parsing` reads the events one by one and names the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw

from penstock.errors import InvalidEvent
from penstock.protocol.timestamps import is_rfc3339
from penstock.state.careful_parsing import read_event
from penstock.state.event import ChangeEvent, ControlEvent, Headers, StateEvent
from penstock.state.json import SHALLOW_BYTES_MAX, check_depth, write_json

_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _LooseHeaders(Headers, frozen=True, gc=False, forbid_unknown_fields=False):
    """Headers whose unknown fields are dropped."""


class _LooseEvent(ChangeEvent, frozen=True, eq=False, gc=False, forbid_unknown_fields=False):
    """An event whose unknown fields are dropped: a state does not need them."""

    headers: _LooseHeaders


_decode_one: Final = msgspec.json.Decoder(ChangeEvent).decode
_decode_array: Final = msgspec.json.Decoder(list[ChangeEvent]).decode
_decode_loosely: Final = msgspec.json.Decoder(list[_LooseEvent]).decode
_check_syntax: Final = msgspec.json.Decoder(Raw).decode
_split: Final = msgspec.json.Decoder(list[Raw]).decode


def parse(data: Any, *, strict_timestamp: bool = True) -> StateEvent:
    """Return the event in JSON bytes or text, or in a dict.

    Without `strict_timestamp` a timestamp may be any text. Read that way, because an advisory field
    is no reason to lose an event; write strictly.
    """
    raw = _bytes(data) if _is_json(data) else write_json(data, "event")
    _need_json(raw)
    try:
        return _read(raw, strict_timestamp=strict_timestamp)
    except InvalidEvent as error:
        error.raw = raw
        raise


def parse_many(
    array: bytes | str,
    *,
    strict_timestamp: bool = True,
    on_invalid: Callable[[InvalidEvent], None] | None = None,
) -> list[StateEvent]:
    """Return the events of a JSON array, as a read of a stream returns it.

    An invalid event raises InvalidEvent, which has its `index`; with `on_invalid` that function is
    called instead, and the event is left out.
    """
    data = _bytes(array)
    events = decode_exactly(data, strict_timestamp=strict_timestamp)
    return _read_one_by_one(data, strict_timestamp, on_invalid) if events is None else events


def decode_exactly(array: bytes, *, strict_timestamp: bool) -> list[StateEvent] | None:
    """Return the events of an array without unknown fields; None for any other input."""
    return _decode(_decode_array, array, strict_timestamp=strict_timestamp)


def decode_loosely(array: bytes) -> list[StateEvent] | None:
    """Return the change events of an array, without unknown fields; None for any other input."""
    events = decode_names(array)
    if events is None or any(type(event) is ControlEvent for event in events):
        return None
    return events


def decode_names(array: bytes) -> list[StateEvent] | None:
    """Return the events of an array without unknown fields, those of control events included: for
    their types and keys alone. None if one is invalid, or a control event that looks like a change.
    """
    return _decode(_decode_loosely, array, strict_timestamp=False)


def _decode(
    decode: Callable[[bytes], list[Any]], array: bytes, *, strict_timestamp: bool
) -> list[StateEvent] | None:
    try:
        # The decoder does not check the bytes of raw strings, so UTF-8 is checked here.
        array.isascii() or array.decode()
        events = decode(array)
        return events if _check(events, strict_timestamp=strict_timestamp) else None
    except (InvalidEvent, *_NOT_JSON):
        return None


def _check(events: list[Any], *, strict_timestamp: bool) -> bool:
    """Whether typed events obey the rules that types cannot express. Replaces control events."""
    for index, event in enumerate(events):
        headers, value = event.headers, event._value
        if headers.control or not event.type or not event.key:
            if headers.operation or not headers.control or event.key or event.type:
                return False
            if value or event._old_value:
                return False
            events[index] = ControlEvent(headers=headers)
        elif not value:
            if headers.operation != "delete":
                return False
        elif not headers.operation:
            return False
        elif len(value) > SHALLOW_BYTES_MAX:
            check_depth(value, "value")
        if len(event._old_value) > SHALLOW_BYTES_MAX:
            check_depth(event._old_value, "old_value")
        timestamp = headers.timestamp
        if strict_timestamp and timestamp is not UNSET and not is_rfc3339(timestamp):
            return False
    return True


def odd_timestamps(events: Iterable[Any]) -> int:
    """Return the number of events whose timestamp is not RFC 3339."""
    odd = 0
    for event in events:
        timestamp = event.headers.timestamp
        if timestamp is not UNSET and not is_rfc3339(timestamp):
            odd += 1
    return odd


def _read_one_by_one(
    data: bytes, strict_timestamp: bool, on_invalid: Callable[[InvalidEvent], None] | None
) -> list[StateEvent]:
    events: list[StateEvent] = []
    for index, raw in enumerate(_elements(data)):
        try:
            events.append(_read(raw, strict_timestamp=strict_timestamp))
        except InvalidEvent as error:
            failure = in_array(error, index, bytes(raw))
            if on_invalid is None:
                raise failure from None
            on_invalid(failure)
    return events


def _read(raw: bytes | Raw, *, strict_timestamp: bool) -> StateEvent:
    """Return the event in valid JSON."""
    try:
        events: list[Any] = [_decode_one(raw)]
        if _check(events, strict_timestamp=strict_timestamp):
            return cast("StateEvent", events[0])
    except (InvalidEvent, msgspec.DecodeError):
        pass
    return read_event(raw, strict_timestamp=strict_timestamp)


def in_array(error: InvalidEvent, index: int, raw: bytes) -> InvalidEvent:
    """Return the error with the index of its event in an array."""
    detail = f"Event {index}: {error.detail}"
    failure = type(error)(detail, field=error.field, rule=error.rule, index=index, raw=raw)
    failure.__cause__ = error.__cause__
    return failure


def _elements(data: bytes) -> list[Raw]:
    _need_json(data)
    try:
        return _split(data)
    except msgspec.DecodeError:
        raise InvalidEvent(
            "This is not a JSON array: use parse for a single event.", rule="array"
        ) from None


def _need_json(data: bytes) -> None:
    try:
        data.isascii() or data.decode()
        _check_syntax(data)
    except _NOT_JSON as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        if isinstance(error, RecursionError):
            reason = "nested too deep"
        elif isinstance(error, UnicodeDecodeError):
            reason = "invalid UTF-8"
        raise InvalidEvent(f"This is not JSON: {reason}.", rule="json", raw=data) from None


def _is_json(data: Any) -> bool:
    return isinstance(data, bytes | bytearray | memoryview | str | Raw)


def _bytes(data: Any) -> bytes:
    try:
        return data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError:
        raise InvalidEvent("This is not JSON: half of a surrogate pair.", rule="json") from None
