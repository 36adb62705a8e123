"""docs/ds-conformance.md is true: every line names tests that exist, and none is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for line in (ROOT / "docs" / "ds-conformance.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| item |")
]
NAMED = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
TEXT_004 = "test_text_004.py"


def functions_of(file: str) -> set[str]:
    path = ROOT / (file if "/" in file else f"tests/http/{file}")
    assert path.exists(), f"{file} does not exist"
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}
    return {name for name in names if name.startswith("test_")}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_every_line_names_tests_that_exist(line: str) -> None:
    named = NAMED.findall(line)
    assert named, f"no test beside: {line}"
    assert line.count("::") == len(named), f"a name is not understood: {line}"
    for file, name in named:
        assert name in functions_of(file), f"{file} has no {name}"


def test_every_test_of_the_text_is_listed() -> None:
    listed = {name for line in LINES for file, name in NAMED.findall(line) if file == TEXT_004}
    assert functions_of(TEXT_004) - listed == set()


def test_the_page_covers_the_whole_text() -> None:
    assert len(LINES) >= 35
    assert len({line.split("|")[1] for line in LINES}) == len(LINES)


def test_the_check_itself_sees_what_does_not_exist() -> None:
    with pytest.raises(AssertionError, match="has no"):
        test_every_line_names_tests_that_exist(f"| item | `{TEXT_004}::test_absent` |")
    with pytest.raises(AssertionError, match="does not exist"):
        test_every_line_names_tests_that_exist("| item | `test_absent.py::test_absent` |")
    with pytest.raises(AssertionError, match="no test"):
        test_every_line_names_tests_that_exist("| item | |")
