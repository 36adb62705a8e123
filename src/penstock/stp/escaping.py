r"""The escaping that a table can declare: `\t`, `\n`, `\r` and `\\` in keys and records."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidRow

_PLAIN: Final = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(.?)", re.DOTALL)


def escape(text: str) -> str:
    """Return the text without tab, CR and LF; `unescape` is the inverse."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if "\t" in text or "\n" in text or "\r" in text:
        text = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return text


def unescape(text: str, field: str = "text") -> str:
    """Return the text that `escape` was applied to; raise InvalidRow for an unknown escape."""
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        character = _PLAIN.get(match[1])
        if character is None:
            raise InvalidRow(
                rf"The {field} has {match[0]!r}: a backslash stands before t, n, r or another "
                "backslash.",
                field=field,
            )
        return character

    return _ESCAPE.sub(plain, text)
