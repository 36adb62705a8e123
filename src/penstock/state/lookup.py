"""Finding entities by the fields of their values: the same notion of equality everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.state.json import decode_value, encode_value, same_json

ABSENT: Final = object()


def as_json(value: Any) -> Any:
    """What a value is in JSON: an enum its text, a date its spelling."""
    return decode_value(encode_value(value))


def token(value: Any) -> bytes:
    """Text that equal JSON values share; different ones may, too, if they are lists or objects."""
    if value is None:
        return b"null"
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return b"=" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int | float):
        whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if whole else value).encode()
    return b"[" if isinstance(value, list) else b"{"


def tokens(raw: bytes, fields: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The fields of an object that an index keeps; a field that is not there has no token."""
    value = decode_value(raw)
    if isinstance(value, dict):
        for field in fields:
            if field in value:
                yield field, token(value[field])


def matches(raw: bytes, wanted: Mapping[str, Any]) -> bool:
    """Whether every wanted field is there, with the wanted JSON value."""
    if not wanted:
        return True
    value = decode_value(raw)
    return isinstance(value, dict) and all(
        same_json(value.get(field, ABSENT), each) for field, each in wanted.items()
    )
