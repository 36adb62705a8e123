"""RFC 3339 timestamps, checked strictly: the one module that knows their form.

Pure text and numbers. The purpose of a timestamp, and how many characters it may have, are the
caller's.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Final

_ERA_YEARS: Final = 400  # after which the calendar repeats
_ERA_DAYS: Final = 146_097
_UNIX_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

# Everything but the two things that need arithmetic: 29 February and a second 60.
_DATE = (
    r"[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_USUAL: Final = re.compile(
    rf"{_DATE}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?{_ZONE}"
)
_PARTS: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]"
    r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)


def is_rfc3339(text: str) -> bool:
    """Whether text is an RFC 3339 `date-time`.

    `t` and `z` may be lower-case and any offset may be given, but not left out. A leap second is
    the last one of a day in UTC; which days had one is a list that grows, so it is not checked.
    """
    return _USUAL.fullmatch(text) is not None or unix_us(text) is not None


def unix_us(text: str) -> int | None:
    """Return microseconds since 1970 (UTC); None if text is no RFC 3339 `date-time`.

    What is finer than a microsecond is cut off.
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        # RFC 3339 has a year 0, which Python's calendar has not.
        days = date(year or _ERA_YEARS, month, day).toordinal() - _UNIX_EPOCH_DAY
    except ValueError:
        return None
    if year == 0:
        days -= _ERA_DAYS
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    if match[8] is not None:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds += -offset if match[8] == "+" else offset
    if second == 60 and seconds % 86_400 != 0:
        return None
    return seconds * 1_000_000 + int((match[7] or "")[:6].ljust(6, "0"))


def format_timestamp(timestamp: str | datetime) -> str:
    """Return the text of a timestamp; a datetime needs a time zone."""
    if isinstance(timestamp, str):
        return timestamp
    if timestamp.tzinfo is None:
        raise ValueError("A datetime without a time zone is no RFC 3339 timestamp. Use tzinfo=UTC.")
    return timestamp.isoformat().replace("+00:00", "Z")
