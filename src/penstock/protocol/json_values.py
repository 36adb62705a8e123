"""The Python value of any valid JSON: what other servers, and older versions of this one, store.

`json_mode` bounds what is appended. Readers must not fail on what was stored without that bound.
"""

from __future__ import annotations

import json
from typing import Any, Final

# Python refuses to convert long integers, by default above 4,300 digits and at the strictest above
# 640, because `int` takes time in the square of their length.
_DIGITS_AT_ONCE: Final = 512


def decode_json(data: bytes | str) -> Any:
    """Return the value of valid JSON. Integers are exact, whatever their length; a fraction or an
    exponent makes a float, which is infinite if it is too large for one."""
    return json.loads(data, parse_int=exact_integer)


def exact_integer(text: str) -> int:
    """Return the integer of decimal digits, with `-` before them if it is negative.

    Neighbouring parts are joined until one is left, so that a million digits take half a second.
    """
    digits = text.removeprefix("-")
    first = len(digits) % _DIGITS_AT_ONCE
    parts = [int(digits[:first])] if first else []
    parts += [
        int(digits[start : start + _DIGITS_AT_ONCE])
        for start in range(first, len(digits), _DIGITS_AT_ONCE)
    ]
    base = 10**_DIGITS_AT_ONCE
    while len(parts) > 1:
        odd = len(parts) % 2
        pairs = zip(parts[odd::2], parts[odd + 1 :: 2], strict=True)
        parts = parts[:odd] + [high * base + low for high, low in pairs]
        base *= base
    return parts[0] if digits is text else -parts[0]
