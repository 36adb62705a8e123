"""Errors of Spark's in a sentence, and what they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock import errors
from penstock.spark.words import hush, plain, rebuilt

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
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_an_error_is_a_sentence(text: str, words: str) -> None:
    assert plain(RuntimeError(text)) == words


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x\npenstock.errors.ConnectionFailed: no answer\n\tat y", errors.ConnectionFailed),
        ("penstock.errors.Unauthorized: a\npenstock._error_spark.DataLost: b", errors.DataLost),
        ("penstock.errors.StateMoved: needs more than a sentence", None),
        ("penstock.errors.Final: no error", None),
        ("penstock.spark.arrow.Nothing: unknown", None),
        ("java.lang.Error: x", None),
    ],
)
def test_an_error_of_ours_is_what_it_was(text: str, kind: type[Exception] | None) -> None:
    found = rebuilt(RuntimeError(text))
    assert (None if found is None else type(found)) == kind
    assert found is None or found.detail == plain(RuntimeError(text))


@pytest.fixture
def hushed() -> Iterator[None]:
    hush()
    yield
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = False


def test_an_error_of_sql_is_not_printed_before_it_is_caught(
    spark: SparkSession, hushed: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match="nowhere"):
        spark.sql("SELECT * FROM nowhere")
    with pytest.raises(Exception, match="nothing"):
        spark.range(1).select("nothing")
    assert capfd.readouterr().err == ""
