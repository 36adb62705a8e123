"""The notation that JWTs and key sets share, base64url and JSON, parsed strictly. Pure."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NoReturn

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
# A string, which ends with the text if it is not closed, or a bracket. Linear: nothing backtracks.
_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


class Malformed(ValueError):
    """Text that is not what it claims to be. The message says what it is not."""


def decode_base64url(text: str) -> bytes:
    """Return the bytes of base64url without padding, in its one canonical spelling.

    Lenient decoders ignore other characters and the unused bits at the end: many texts would then
    be the same token.
    """
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        raise Malformed("not base64url")
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != text:
        raise Malformed("not base64url")
    return data


def parse_object(data: bytes, *, depth_max: int) -> dict[str, Any]:
    """Return a JSON object whose nesting is bounded and in which no name occurs twice.

    Parsers differ in which of two members of the same name they use.
    """
    try:
        text = data.decode("utf-8")
        _check_depth(text, depth_max)
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except Malformed:
        raise
    except (ValueError, RecursionError):  # also UTF-8, and integers of thousands of digits
        raise Malformed("not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value


def _check_depth(text: str, depth_max: int) -> None:
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > depth_max:
            raise Malformed("nested too deeply")


def _distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        raise Malformed("a JSON object with a name that occurs twice")
    return value


def _refuse_constant(_name: str) -> NoReturn:
    raise Malformed("not JSON")  # NaN and Infinity, which Python accepts
