"""Names and patterns of streams: `*` and `?` stay within a segment, `**` crosses them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WILD: Final = re.compile(r"[*?]")


def is_pattern(name: str) -> bool:
    return _WILD.search(name) is not None and not is_url(name)


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def literal_prefix(pattern: str) -> str:
    """What every match begins with: all that has to be listed."""
    return _WILD.split(pattern, maxsplit=1)[0]


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        match part:
            case "**/":
                text += "(?:.*/)?"
            case "**":
                text += ".*"
            case "*":
                text += "[^/]*"
            case "?":
                text += "[^/]"
            case _:
                text += re.escape(part)
    return re.compile(text, re.DOTALL)


def matches(pattern: str, path: str) -> bool:
    return compiled(pattern).fullmatch(path) is not None
