"""What went wrong, in a sentence: Spark wraps an error of ours in pages of stack traces."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^penstock(?:\.\w+)+: (.+?)$", re.MULTILINE)


def plain(error: BaseException) -> str:
    """The sentence of the innermost error of Penstock, else the first line of what Spark says."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return str(found[-1]).strip()
    return text.strip().partition("\n")[0] or type(error).__name__
