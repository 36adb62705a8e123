r"""The escaping that a table can declare: `\t`, `\n`, `\r` and `\\` in keys and records."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidRow

_PLAIN: Final = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)


def escape(text: str) -> str:
    """Text without tab, CR and LF that `unescape` makes the same again."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if "\t" in text or "\n" in text or "\r" in text:
        text = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text


def unescape(text: str, field: str = "text") -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        found = _PLAIN.get(match[1])
        if found is None:
            raise InvalidRow(
                rf"The {field} has {match[0]!r}: a backslash stands before t, n, r or another "
                "backslash.",
                field=field,
            )
        return found

    return _ESCAPE.sub(plain, text)
