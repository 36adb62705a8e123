"""RFC 3339 timestamps, checked to the letter and never interpreted: they order nothing."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

# Everything but the two things that need arithmetic: 29 February and a second 60.
_DATE = (
    r"[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_USUAL: Final = re.compile(
    rf"{_DATE}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?{_ZONE}"
)
_RARE: Final = re.compile(
    rf"(?:{_DATE}|([0-9]{{4}})-02-29)[Tt]"
    rf"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.[0-9]+)?({_ZONE})"
)


def is_rfc3339(text: str) -> bool:
    """Whether text is an RFC 3339 `date-time`.

    `t` and `z` may be lower-case and any offset may be given, but not left out. A leap second is
    the last one of a day in UTC; which days had one is a list that grows, so it is not checked.
    """
    if _USUAL.fullmatch(text) is not None:
        return True
    match = _RARE.fullmatch(text)
    if match is None:
        return False
    leap_year, hour, minute, second, zone = match.groups()
    if leap_year is not None and not _is_leap(int(leap_year)):
        return False
    if second != "60":
        return True
    minutes = int(hour) * 60 + int(minute)
    if zone[0] in "+-":
        offset = int(zone[1:3]) * 60 + int(zone[4:6])
        minutes += -offset if zone[0] == "+" else offset
    return minutes % 1440 == 1439


def format_timestamp(timestamp: str | datetime) -> str:
    """The text of a timestamp; a datetime has to know its time zone."""
    if isinstance(timestamp, str):
        return timestamp
    if timestamp.tzinfo is None:
        raise ValueError("a datetime without a time zone is no RFC 3339 timestamp: use tzinfo=UTC")
    return timestamp.isoformat().replace("+00:00", "Z")


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
