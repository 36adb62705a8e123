"""What went wrong, in a sentence: Spark wraps an error of ours in pages of stack traces."""

from __future__ import annotations

import re
from typing import Final

from penstock import errors
from penstock.errors import PenstockError

_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_PYTHON: Final = (
    "Every executor (and with Spark Connect the server) needs Python with penstock[spark]; the "
    "setting spark.pyspark.python, or PYSPARK_PYTHON, says which one it is there."
)
_OURS: Final = re.compile(r"^penstock(?:\.\w+)*\.(\w+): (.+?)$", re.MULTILINE)

_WRAPPER: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_CALL: Final = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5};?\s*")


def plain(error: BaseException) -> str:
    """The sentence of the innermost error of Penstock, else the first line of what Spark says."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return str(found[-1][1]).strip()
    for pattern, words in (
        (_PACKAGE, "The Python that Spark's tasks run in lacks the package {}"),
        (_PROGRAM, "Spark's tasks cannot run the Python {}"),
    ):
        missing = pattern.search(text)
        if missing:
            return f"{words.format(missing[1])}. {_PYTHON}"
    first = _CALL.sub("", text.strip()).partition("\n")[0]
    return _SQLSTATE.sub(" ", _WRAPPER.sub("", first)).strip(" ;") or type(error).__name__


def hush() -> None:
    """Keep PySpark from printing an error of SQL as a page of JSON before anybody catches it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def rebuilt(error: BaseException) -> PenstockError | None:
    """The innermost error of Penstock as what it was, if it is one that has only its sentence."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, words = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        return None
    try:
        return kind(words.strip())
    except TypeError:
        return None
