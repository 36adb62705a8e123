"""What a check has found: a state, a sentence, and what to do."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
ERROR: Final = "error"


class Finding(NamedTuple):
    """`advice` says what to do; there is none where nothing is wrong."""

    check: str
    state: str
    text: str
    advice: str = ""
