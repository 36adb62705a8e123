"""Query strings: raw bytes to text. A parameter comes at most once, unless its resource takes it
more often; others are ignored, unless one looks like a misspelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from penstock.errors import InvalidParameter, UnknownParameter
from penstock.protocol.timestamps import unix_us

_DIGITS_MAX = 16
# Of a query with many unknown names the first ones are compared with the known ones.
_COMPARED_MAX = 8
_COMPARED_CHARACTERS_MAX = 12


def parse_query(query: bytes, names: frozenset[str], *, strict: bool = False) -> dict[str, str]:
    """Return the parameters of a raw query that have one of `names`.

    A repeated one is refused: there is no telling which is meant. So is one whose name is nearly
    one of `names`; the protocol has servers ignore the rest. `strict` refuses a value that is not
    UTF-8; otherwise what is not becomes U+FFFD.
    """
    return dict(_pairs(query, names, frozenset(), strict=names if strict else frozenset()))


def parse_lists(
    query: bytes, names: frozenset[str], *, repeated: frozenset[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the parameters of a raw query that come once, and those in `repeated`, which may come
    more often and have to be UTF-8."""
    single: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in _pairs(query, names, repeated, strict=repeated):
        if name in repeated:
            lists.setdefault(name, []).append(value)
        else:
            single[name] = value
    return single, lists


def parse_pairs(
    query: bytes, names: frozenset[str], *, repeated: frozenset[str]
) -> list[tuple[str, str]]:
    """Return the parameters of a raw query that have one of `names`, in their order.

    Those in `repeated` may come more than once. For the rest it is as `parse_query`, strictly."""
    return list(_pairs(query, names, repeated, strict=names))


def _pairs(
    query: bytes, names: frozenset[str], repeated: frozenset[str], *, strict: frozenset[str]
) -> Iterator[tuple[str, str]]:
    if not query:
        return
    seen: set[str] = set()
    compared = 0
    for part in query.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name = _text(raw_name)
        if name not in names:
            if compared < _COMPARED_MAX and 0 < len(name) <= _COMPARED_CHARACTERS_MAX:
                compared += 1
                if (nearest := nearest_name(name, names)) is not None:
                    raise UnknownParameter(
                        f"There is no parameter `{name}` here; did you mean `{nearest}`?"
                    )
            continue
        if name in seen and name not in repeated:
            raise InvalidParameter(f"`{name}` comes more than once; send it once.")
        seen.add(name)
        try:
            value = _text(raw_value, "strict" if name in strict else "replace")
        except UnicodeDecodeError:
            raise InvalidParameter(f"`{name}` must be UTF-8, percent-encoded.") from None
        yield name, value


@lru_cache(maxsize=1024)
def nearest_name(name: str, names: frozenset[str]) -> str | None:
    """Return the one of `names` of which `name` may be a misspelling; None if there is none.

    Case, `-` and `_` do not count. Names up to three letters may have two of them exchanged or be
    in the plural, up to five letters one mistake, longer ones two.
    """
    plain = _plain(name)
    for known in sorted(names):
        meant = _plain(known)
        mistakes = _mistakes(plain, meant)
        is_near = mistakes == 1 and (sorted(plain) == sorted(meant) or plain == f"{meant}s")
        if mistakes <= (0 if len(meant) <= 3 else 1 if len(meant) <= 5 else 2) or is_near:
            return known
    return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _mistakes(one: str, other: str) -> int:
    """Return how many letters have to be added, removed, replaced or exchanged with the next."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        before_that, before, row = before, row, [i + 1]
        for j, target in enumerate(other):
            cost = min(before[j] + (letter != target), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == other[j - 1] and one[i - 1] == target:
                cost = min(cost, before_that[j - 1] + 1)
            row.append(cost)
    return row[-1]


def parse_time(name: str, text: str) -> int:
    """Return microseconds since 1970 of a time: RFC 3339 with its zone, or milliseconds."""
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text) * 1000
    # A plus sign that was not percent-encoded is a space by now, and can be nothing else there.
    time_us = unix_us(f"{text[:-6]}+{text[-5:]}" if text[-6:-5] == " " else text)
    if time_us is None:
        raise InvalidParameter(
            f"`{name}` must be a time with its zone, such as 2026-11-01T10:00:00Z, or milliseconds "
            "since 1970."
        )
    return time_us


def parse_count(name: str, text: str, *, minimum: int = 1, maximum: int | None = None) -> int:
    """Return a decimal number, a positive one unless `minimum` says otherwise."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX or int(text) < minimum:
        raise InvalidParameter(f"`{name}` must be a whole number of at least {minimum}.")
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
