"""Finding entities by the fields of their values, with one definition of equality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.state.json import decode_value, encode_value, same_json

ABSENT: Final = object()


def as_json(value: Any) -> Any:
    """Return a value as its JSON decodes: an enum or a date becomes text."""
    return decode_value(encode_value(value))


def token(value: Any) -> bytes:
    """Return the index key of a JSON value. Equal values share it; lists share one, and objects."""
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
    """Yield the indexed fields that an object has, each with its token."""
    value = decode_value(raw)
    if isinstance(value, dict):
        for field in fields:
            if field in value:
                yield field, token(value[field])


def matches(raw: bytes, fields: Mapping[str, Any]) -> bool:
    """Whether an object has all the fields, with these JSON values."""
    if not fields:
        return True
    value = decode_value(raw)
    return isinstance(value, dict) and all(
        same_json(value.get(field, ABSENT), expected) for field, expected in fields.items()
    )
