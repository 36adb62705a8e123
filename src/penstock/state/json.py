"""JSON values of the State Protocol: decoding, encoding and comparing them.

The log stores every valid JSON value as it was sent, so every valid JSON value can be decoded here.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.errors import InvalidEvent, InvalidJson
from penstock.protocol import json_mode
from penstock.protocol.json_values import decode_json

# Brackets come in pairs: a value this short cannot be nested too deep.
SHALLOW_BYTES_MAX: Final = 2 * limits.JSON_DEPTH_MAX

_decode: Final = msgspec.json.Decoder().decode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_encode: Final = msgspec.json.Encoder().encode


def decode_value(raw: bytes | msgspec.Raw) -> Any:
    """Return the Python value of valid JSON. Integers are exact; a number with a fraction or an
    exponent that is too large for a float is infinite."""
    try:
        return _decode(raw)
    except msgspec.ValidationError:  # valid JSON with a number that msgspec has no type for
        return decode_json(bytes(raw))


def encode_value(value: Any, field: str = "value") -> msgspec.Raw:
    """Return the JSON of a value; `msgspec.Raw` counts as encoded JSON."""
    if isinstance(value, msgspec.Raw):
        check_encoded(value, field)
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidEvent(
            f"{field} is bytes, which JSON cannot represent: pass text, or msgspec.Raw(...) for "
            "encoded JSON.",
            field=field,
            rule="json",
        )
    encoded = msgspec.Raw(write_json(value, field))
    check_depth(encoded, field)
    return encoded


def write_json(value: Any, field: str) -> bytes:
    """Return the JSON of a value, of any depth."""
    try:
        data = _encode(value)
        # The encoder writes null for numbers that JSON cannot represent.
        if b"null" in data:
            _check_finite(msgspec.to_builtins(value, enc_hook=_nothing))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        detail = f"{field} cannot be written as JSON: {error}."
        raise InvalidEvent(detail, field=field, rule="json") from error
    return data


def check_encoded(raw: msgspec.Raw, field: str) -> None:
    """Refuse bytes that are not one JSON value."""
    try:
        bytes(raw).decode()
        _decode_raw(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidEvent(f"{field} is not JSON: {error}.", field=field, rule="json") from None
    check_depth(raw, field)


def check_depth(raw: msgspec.Raw, field: str) -> None:
    """Refuse valid JSON that is nested too deep. The outermost array is not counted."""
    if len(raw) <= SHALLOW_BYTES_MAX:
        return
    value = bytes(raw).strip()
    try:
        json_mode.check_depth(value, limits.JSON_DEPTH_MAX + value.startswith(b"["))
    except InvalidJson:
        raise InvalidEvent(
            f"{field} is nested deeper than {limits.JSON_DEPTH_MAX} levels.",
            field=field,
            rule="depth",
        ) from None


def same_json(one: Any, other: Any) -> bool:
    """Whether JSON values are equal: as in Python, but true is not 1 and false is not 0."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same_json(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same_json(*pair) for pair in zip(one, other, strict=True))
        )
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def same_raw(one: bytes | msgspec.Raw, other: bytes | msgspec.Raw) -> bool:
    """Whether two JSON texts mean the same; either may be empty."""
    if one == other:
        return True
    if not one or not other:
        return False
    return same_json(decode_value(one), decode_value(other))


def _check_finite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON cannot represent {value}")
    elif isinstance(value, dict):
        for each in value.values():
            _check_finite(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _check_finite(each)


def _nothing(_: msgspec.Raw) -> None:
    """Stand in for encoded JSON, which is checked elsewhere."""
