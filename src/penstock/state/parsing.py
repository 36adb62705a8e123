"""From JSON bytes to checked events, fast: one typed decoding of a whole array, then one look at
each event. Only where that fails are events read one by one, by the reader that explains.
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
    """An event whose unknown fields are dropped: enough for the state, which has no place for
    them."""

    headers: _LooseHeaders


_decode_one: Final = msgspec.json.Decoder(ChangeEvent).decode
_decode_array: Final = msgspec.json.Decoder(list[ChangeEvent]).decode
_decode_loosely: Final = msgspec.json.Decoder(list[_LooseEvent]).decode
_check_syntax: Final = msgspec.json.Decoder(Raw).decode
_split: Final = msgspec.json.Decoder(list[Raw]).decode


def parse(data: Any, *, strict_timestamp: bool = True) -> StateEvent:
    """The event in JSON bytes or text, or in the dict that it was decoded to.

    Without `strict_timestamp` a timestamp may be any text: right for reading, where an advisory
    field is no reason to lose an event; what is written should be strict.
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
    """The events of a JSON array, as a read of a stream returns it.

    An invalid event makes it raise, with its `index` in the error; with `on_invalid` that is
    called instead, and the event left out.
    """
    data = _bytes(array)
    events = decode_exactly(data, strict_timestamp=strict_timestamp)
    return _read_one_by_one(data, strict_timestamp, on_invalid) if events is None else events


def decode_exactly(array: bytes, *, strict_timestamp: bool) -> list[StateEvent] | None:
    """The events of an array without unknown fields; None if it is anything else."""
    return _decode(_decode_array, array, strict_timestamp=strict_timestamp)


def decode_loosely(array: bytes) -> list[StateEvent] | None:
    """The change events of an array, without their unknown fields; None if it is anything else."""
    events = _decode(_decode_loosely, array, strict_timestamp=False)
    if events is None or any(type(event) is ControlEvent for event in events):
        return None
    return events


def _decode(
    decode: Callable[[bytes], list[Any]], array: bytes, *, strict_timestamp: bool
) -> list[StateEvent] | None:
    try:
        # The decoder does not look at the bytes of raw strings, so UTF-8 is checked apart.
        array.isascii() or array.decode()
        events = decode(array)
        return events if _check(events, strict_timestamp=strict_timestamp) else None
    except (InvalidEvent, *_NOT_JSON):
        return None


def _check(events: list[Any], *, strict_timestamp: bool) -> bool:
    """Whether typed events obey the rules that types cannot say; control events become such."""
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
    """How many events have a timestamp that a strict reader would refuse."""
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
            found = in_array(error, index, bytes(raw))
            if on_invalid is None:
                raise found from None
            on_invalid(found)
    return events


def _read(raw: bytes | Raw, *, strict_timestamp: bool) -> StateEvent:
    """The event in bytes that are known to be JSON."""
    try:
        events: list[Any] = [_decode_one(raw)]
        if _check(events, strict_timestamp=strict_timestamp):
            return cast("StateEvent", events[0])
    except (InvalidEvent, msgspec.DecodeError):
        pass
    return read_event(raw, strict_timestamp=strict_timestamp)


def in_array(error: InvalidEvent, index: int, raw: bytes) -> InvalidEvent:
    """The same error, saying which event of an array it is about."""
    detail = f"Event {index}: {error.detail}"
    found = type(error)(detail, field=error.field, rule=error.rule, index=index, raw=raw)
    found.__cause__ = error.__cause__
    return found


def _elements(data: bytes) -> list[Raw]:
    _need_json(data)
    try:
        return _split(data)
    except msgspec.DecodeError:
        raise InvalidEvent(
            "Events come as a JSON array: for a single one use parse.", rule="array"
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
