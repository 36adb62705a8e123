"""Errors of Spark, Java, delta-rs, Arrow and the disk as one sentence of Penstock's.

Loads none of those packages by itself: it also reports which of them is missing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypeVar, cast

from penstock import DISTRIBUTION, errors
from penstock.errors import DataLost, PenstockError, WarehouseBroken, WarehouseInUse

_Method = TypeVar("_Method", bound=Callable[..., Any])

# What Spark and Java write
_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_PENSTOCK_ERROR: Final = re.compile(r"^penstock(?:\.\w+)*\.(\w+): (.+?)$", re.MULTILINE)
_QUERY_PREFIX: Final = re.compile(
    r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: "
)
_CALL_PREFIX: Final = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5};?\s*")
_NO_JAVA: Final = re.compile(
    r"\APy4JNetworkError|Answer from Java side is empty|does not exist in the JVM\Z|"
    r"An error occurred while calling \S+\s*\Z"
)
# What delta-rs and object stores write
_COLOURS: Final = re.compile(r"\x1b\[\d*m")
_BACKTRACE: Final = re.compile(r"\s*(\d+: |at )")
_ACCESS_DENIED: Final = re.compile(
    r"\b403\b|forbidden|access_?denied|signature|access_key", re.IGNORECASE
)
_NO_BUCKET: Final = re.compile(r"\b404\b|no_?such_?bucket", re.IGNORECASE)
_STORAGE_TEXT_MAX: Final = 400

_PYTHON_ADVICE: Final = (
    f"Every executor (and with Spark Connect the server) needs Python with {DISTRIBUTION}[spark]; "
    "the setting spark.pyspark.python, or PYSPARK_PYTHON, says which Python that is."
)
_JAVA_GONE: Final = (
    "Spark's Java process is gone: it was killed, or it ran out of memory (the setting "
    "spark.driver.memory gives it more). What was committed is safe; the next run continues there."
)


def missing_package(error: ModuleNotFoundError) -> ImportError:
    """The error to raise where a package of the extra `spark` is not installed."""
    return ImportError(f"penstock.spark needs {error.name}: pip install '{DISTRIBUTION}[spark]'")


def error_message(error: BaseException) -> str:
    """Return the message of the innermost Penstock error, else the first line of Spark's text."""
    text = str(error)
    wrapped = _PENSTOCK_ERROR.findall(text)
    if wrapped:
        return str(wrapped[-1][1]).strip()
    if is_java_gone(error):
        return _JAVA_GONE
    for pattern, sentence in (
        (_PACKAGE, "The Python that Spark's tasks run in lacks the package {}"),
        (_PROGRAM, "Spark's tasks cannot run the Python {}"),
    ):
        missing = pattern.search(text)
        if missing:
            return f"{sentence.format(missing[1])}. {_PYTHON_ADVICE}"
    first = _CALL_PREFIX.sub("", text.strip()).partition("\n")[0]
    return _SQLSTATE.sub(" ", _QUERY_PREFIX.sub("", first)).strip(" ;") or type(error).__name__


def is_java_gone(error: BaseException) -> bool:
    """Whether an error means that Spark's Java process no longer answers."""
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, ConnectionError) or _NO_JAVA.search(text) is not None


def unwrap_penstock_error(error: BaseException) -> PenstockError | None:
    """Return the innermost Penstock error in its own class, if that takes only a message."""
    wrapped = _PENSTOCK_ERROR.findall(str(error))
    if not wrapped:
        return None
    name, message = wrapped[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        return None
    try:
        return kind(message.strip())
    except TypeError:
        return None


def silence_pyspark_logging() -> None:
    """Keep PySpark and Py4J from printing errors before anybody can catch them.

    PySpark prints an SQL error as a page of JSON, and a stack trace when Java goes away.
    """
    from pyspark import accumulators
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        # PySpark creates the server itself, so that only its class can be changed.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_from_py4j)


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs the end of a connection with the root logger."""
    return "/py4j/" not in record.pathname


def data_lost(name: str, reason: str) -> DataLost:
    """The error for a stream or table that has lost messages which were not read yet."""
    return DataLost(
        f"Stream {name}: {reason} What was not read of it is lost. With the option "
        "failOnDataLoss=false the query continues, and a reset row invalidates what was read of "
        "the stream."
    )


@contextmanager
def warehouse_errors(uri: str) -> Iterator[None]:
    """Raise errors of delta-rs, Arrow and the disk as errors of the table at `uri`."""
    try:
        yield
    except Exception as error:
        translated = _warehouse_error(uri, error)
        if translated is None:
            raise
        raise translated from error


def translates_storage_errors(method: _Method) -> _Method:
    """Run a method inside `warehouse_errors` of its object's `uri`."""

    @wraps(method)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        with warehouse_errors(self.uri):
            return method(self, *args, **options)

    return cast("_Method", wrapped)


def _warehouse_error(uri: str, error: Exception) -> PenstockError | None:
    from deltalake.exceptions import CommitFailedError, DeltaError
    from pyarrow import ArrowException

    if isinstance(error, CommitFailedError):
        return WarehouseInUse(
            f"Another writer has changed {uri} at the same moment. Only one pipeline can write a "
            "warehouse at a time: stop the other one."
        )
    if not isinstance(error, DeltaError | OSError | ArrowException):
        return None
    text = str(error)
    problem = f"{uri} cannot be read or written: {storage_message(text).rstrip('.')}."
    return WarehouseBroken(f"{problem} {_advice(uri, text)}")


def _advice(uri: str, text: str) -> str:
    """What to check when the table at `uri` cannot be read or written."""
    if "://" not in uri:
        rebuild = ", or delete it: the next run rebuilds it from events" if "/state/" in uri else ""
        return (
            "Check the path and its permissions; if the table is damaged restore it from a "
            f"copy{rebuild}."
        )
    if _ACCESS_DENIED.search(text):
        return (
            "Are the credentials right (warehouse.options, or the environment of driver and "
            "executors), and may they read, write, list and delete there?"
        )
    if _NO_BUCKET.search(text):
        return "Does the bucket exist?"
    return "Is the endpoint right, and can this machine reach it? Else the table may be damaged."


def storage_message(text: str) -> str:
    """Return an error text of delta-rs in one line, without Rust's stack and its drawings."""
    lines = _COLOURS.sub("", text).replace("↳", " ").splitlines()
    message = " ".join(" ".join(line for line in lines if not _BACKTRACE.match(line)).split())
    if len(message) <= _STORAGE_TEXT_MAX:
        return message
    # The first causes and the last one say most: those between are wrappers.
    return f"{message[: _STORAGE_TEXT_MAX * 2 // 3]} … {message[-_STORAGE_TEXT_MAX // 3 :]}"
