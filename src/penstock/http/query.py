"""Query strings: raw bytes to text, each known name at most once, unknown names ignored."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from penstock.errors import InvalidParameter

_DIGITS_MAX = 16


def parse_query(query: bytes, known: Collection[str]) -> dict[str, str]:
    """The known parameters of a raw query. A repeated one is refused: which one is meant?"""
    found: dict[str, str] = {}
    if not query:
        return found
    for part in query.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name = _text(raw_name)
        if name not in known:
            continue
        if name in found:
            raise InvalidParameter(f"`{name}` is given more than once; send it once.")
        found[name] = _text(raw_value)
    return found


def parse_count(name: str, text: str, *, maximum: int | None = None) -> int:
    """A positive decimal number."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX or int(text) < 1:
        raise InvalidParameter(f"`{name}` must be a whole number of at least 1.")
    value = int(text)
    if maximum is not None and value > maximum:
        raise InvalidParameter(f"`{name}` can be at most {maximum} on this server.")
    return value


def _text(raw: bytes) -> str:
    if b"+" in raw:
        raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    return raw.decode("utf-8", "replace")
