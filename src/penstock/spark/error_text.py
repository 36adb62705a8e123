"""What went wrong, in a sentence: Spark wraps an error of ours in pages of stack traces."""

from __future__ import annotations

import logging
import re
from typing import Final

from penstock import DISTRIBUTION, errors
from penstock.errors import PenstockError

_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_PYTHON: Final = (
    f"Every executor (and with Spark Connect the server) needs Python with {DISTRIBUTION}[spark]; "
    "the setting spark.pyspark.python, or PYSPARK_PYTHON, says which one it is there."
)
_OURS: Final = re.compile(r"^penstock(?:\.\w+)*\.(\w+): (.+?)$", re.MULTILINE)

_WRAPPER: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_CALL: Final = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5};?\s*")
_LOST: Final = re.compile(
    r"\APy4JNetworkError|Answer from Java side is empty|does not exist in the JVM\Z|"
    r"An error occurred while calling \S+\s*\Z"
)
_GONE: Final = (
    "Spark's Java process is gone: something has killed it, or it ran out of memory (the setting "
    "spark.driver.memory gives it more). What was committed is kept; the next run goes on there."
)


def missing_package(error: ModuleNotFoundError) -> ImportError:
    """The error to raise where a package that the extra `spark` brings is not installed."""
    return ImportError(f"penstock.spark needs {error.name}: pip install '{DISTRIBUTION}[spark]'")


def plain(error: BaseException) -> str:
    """The sentence of the innermost error of Penstock, else the first line of what Spark says."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return str(found[-1][1]).strip()
    if is_without_java(error):
        return _GONE
    for pattern, words in (
        (_PACKAGE, "The Python that Spark's tasks run in lacks the package {}"),
        (_PROGRAM, "Spark's tasks cannot run the Python {}"),
    ):
        missing = pattern.search(text)
        if missing:
            return f"{words.format(missing[1])}. {_PYTHON}"
    first = _CALL.sub("", text.strip()).partition("\n")[0]
    return _SQLSTATE.sub(" ", _WRAPPER.sub("", first)).strip(" ;") or type(error).__name__


def is_without_java(error: BaseException) -> bool:
    """Whether an error of Py4J's says no more than that nobody answers."""
    told = _LOST.search(f"{type(error).__name__}: {error}")
    return isinstance(error, ConnectionError) or told is not None


def hush() -> None:
    """Keep PySpark from printing an error of SQL as a page of JSON before anybody catches it, and
    from printing where it was when Java went away."""
    from pyspark import accumulators
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        # PySpark makes the server itself: there is no other place to say it.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Of a connection that ends Py4J tells the root."""
    return "/py4j/" not in record.pathname


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
