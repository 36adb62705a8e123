"""Log lines: one JSON object each when nobody watches, with the exception when there is one."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.http.log_format import configure


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger("penstock")
    before = (root.handlers, root.level, root.propagate)
    yield
    root.handlers, root.level, root.propagate = before


def test_a_line_is_one_json_object_with_level_logger_and_time() -> None:
    out = io.StringIO()
    configure("info", out)
    logging.getLogger("penstock.log").warning("cut at byte %d\nnot a second line", 7)
    (line,) = out.getvalue().splitlines()
    parsed = json.loads(line)
    assert parsed["event"] == "cut at byte 7\nnot a second line"
    assert (parsed["level"], parsed["logger"]) == ("warning", "penstock.log")
    assert parsed["timestamp"].endswith("Z")


def test_what_is_below_the_level_is_not_written() -> None:
    out = io.StringIO()
    configure("error", out)
    logging.getLogger("penstock.http").warning("nobody asked")
    assert out.getvalue() == ""


def test_an_exception_is_part_of_its_line() -> None:
    out = io.StringIO()
    configure("info", out)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("penstock.http").exception("failed")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: boom" in json.loads(line)["exception"]
