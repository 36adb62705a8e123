"""Errors of Spark as one message, and the Penstock errors inside them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import penstock.spark
from penstock import errors
from penstock.spark.error_text import (
    error_message,
    is_java_gone,
    silence_pyspark_logging,
    unwrap_penstock_error,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRAPPED = """[STREAM_FAILED] Query [id = 7f36, runId = 3060] terminated with exception: {} SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 7f36]
\tat org.apache.spark.sql.Something
"""  # noqa: E501 - as Spark writes it


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WRAPPED.format("Python worker failed to connect back."),
         "Python worker failed to connect back."),
        ("[UNRESOLVED] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;",
         "[UNRESOLVED] A column `x` cannot be resolved. line 1 pos 7"),
        ("[PARSE] Syntax error at 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)",
         "[PARSE] Syntax error at 'SELEC'. (line 1, pos 0)"),
        (WRAPPED.format("x") + "penstock.errors.Unauthorized: Send a token.\n\tat java",
         "Send a token."),
        ("An error occurred while calling None.org.apache.X.\n: java.lang.IllegalStateException: "
         "Cannot call methods on a stopped SparkContext.\nThis stopped",
         "Cannot call methods on a stopped SparkContext."),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_an_error_message_is_one_line(text: str, words: str) -> None:
    assert error_message(RuntimeError(text)) == words


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (ConnectionRefusedError(111, "Connection refused"), True),
        (RuntimeError("An error occurred while calling o82.lastProgress"), True),
        (RuntimeError("Py4JNetworkError: Answer from Java side is empty"), True),
        (RuntimeError("org does not exist in the JVM"), True),
        (RuntimeError("An error occurred while calling o1.load.\n: java.lang.Error: x"), False),
        (FileNotFoundError(2, "none"), False),
    ],
)
def test_the_end_of_java_has_its_own_message(error: Exception, gone: bool) -> None:
    assert is_java_gone(error) is gone
    assert ("Java process is gone" in error_message(error)) is gone


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x\npenstock.errors.ConnectionFailed: no answer\n\tat y", errors.ConnectionFailed),
        ("penstock.errors.Unauthorized: a\npenstock.errors.DataLost: b", errors.DataLost),
        ("penstock.errors.StateMoved: needs more than a sentence", None),
        ("penstock.errors.Final: no error", None),
        ("penstock.spark.source.arrow.Nothing: unknown", None),
        ("java.lang.Error: x", None),
    ],
)
def test_a_wrapped_error_is_unwrapped_to_its_class(text: str, kind: type[Exception] | None) -> None:
    unwrapped = unwrap_penstock_error(RuntimeError(text))
    assert (None if unwrapped is None else type(unwrapped)) == kind
    assert unwrapped is None or unwrapped.detail == error_message(RuntimeError(text))


class Collector(logging.Handler):
    """What would have been printed."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_an_sql_error_is_not_printed_before_it_is_caught(spark: SparkSession) -> None:
    collector = Collector()
    silence_pyspark_logging()
    loggers = [logging.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    for logger in loggers:
        logger.addHandler(collector)
    try:
        with pytest.raises(Exception, match="nowhere"):
            spark.sql("SELECT * FROM nowhere")
        with pytest.raises(Exception, match="nothing"):
            spark.range(1).select("nothing")
        assert collector.records == []
    finally:
        for logger in loggers:
            logger.removeHandler(collector)
            logger.disabled = False


def test_the_old_name_of_error_message_warns_and_works() -> None:
    with pytest.warns(DeprecationWarning, match="is now penstock.spark.error_message"):
        old = penstock.spark.plain
    assert old is error_message
