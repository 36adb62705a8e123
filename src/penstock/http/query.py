"""Query strings: raw bytes to text. A parameter comes at most once; others are ignored."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from penstock.errors import InvalidParameter

_DIGITS_MAX = 16


def parse_query(query: bytes, names: Collection[str], *, strict: bool = False) -> dict[str, str]:
    """Return the parameters of a raw query that have one of `names`.

    A repeated one is refused: there is no telling which is meant. `strict` refuses a value that is
    not UTF-8; otherwise what is not becomes U+FFFD.
    """
    parameters: dict[str, str] = {}
    if not query:
        return parameters
    for part in query.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name = _text(raw_name)
        if name not in names:
            continue
        if name in parameters:
            raise InvalidParameter(f"`{name}` comes more than once; send it once.")
        try:
            parameters[name] = _text(raw_value, "strict" if strict else "replace")
        except UnicodeDecodeError:
            raise InvalidParameter(f"`{name}` must be UTF-8, percent-encoded.") from None
    return parameters


def parse_count(name: str, text: str, *, maximum: int | None = None) -> int:
    """Return a positive decimal number."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX or int(text) < 1:
        raise InvalidParameter(f"`{name}` must be a whole number of at least 1.")
    value = int(text)
    if maximum is not None and value > maximum:
        raise InvalidParameter(f"`{name}` can be at most {maximum} on this server.")
    return value


def _text(raw: bytes, errors: str = "replace") -> str:
    if b"+" in raw:
        raw = raw.replace(b"+", b" ")
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    return raw.decode("utf-8", errors)
