"""What went wrong, in a sentence: Spark wraps an error of ours in pages of stack traces."""

from __future__ import annotations

import re
from typing import Final

_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_OURS: Final = re.compile(r"^penstock(?:\.\w+)+: (.+?)$", re.MULTILINE)
_ADVICE: Final = (
    "Every executor (and with Spark Connect the server) needs Python with penstock[spark]; the "
    "setting spark.pyspark.python, or PYSPARK_PYTHON, says which one it is there."
)


def plain(error: BaseException) -> str:
    """The sentence of the innermost error of Penstock, else the first line of what Spark says."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return str(found[-1]).strip()
    for pattern, words in (
        (_PACKAGE, "The Python that Spark's tasks run in lacks the package {}"),
        (_PROGRAM, "Spark's tasks cannot run the Python {}"),
    ):
        missing = pattern.search(text)
        if missing:
            return f"{words.format(missing[1])}. {_ADVICE}"
    return text.strip().partition("\n")[0] or type(error).__name__
