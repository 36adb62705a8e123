"""The conformance checklist is true: every line names a test, and every named test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stp-conformance.md").read_text()
LINES = [
    line
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| rule |", "|---"))
]
NAMED = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")


def functions_of(file: str) -> set[str]:
    path = ROOT / (file if "/" in file else f"tests/stp/{file}")
    assert path.exists(), f"{file} does not exist"
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_every_line_names_tests_that_exist(line: str) -> None:
    named = NAMED.findall(line)
    assert named, f"no test beside: {line}"
    assert line.count("::") == len(named), f"a name is not understood: {line}"
    for file, name in named:
        assert name in functions_of(file), f"{file} has no {name}"


def test_the_checklist_covers_the_whole_protocol() -> None:
    assert len(LINES) >= 60
    assert len({line.split("|")[1] for line in LINES}) == len(LINES)


def test_the_guide_says_how_long_rows_are_kept() -> None:
    guide = (ROOT / "docs" / "stp.md").read_text()
    policy = guide.partition("\n## Retention\n")[2].partition("\n## ")[0]
    assert "kept for as long as" in policy
    assert "STP-Earliest-SeqNo" in policy


def test_the_check_itself_sees_what_does_not_exist() -> None:
    with pytest.raises(AssertionError, match="has no"):
        test_every_line_names_tests_that_exist("| rule | `test_checklist.py::test_absent` |")
    with pytest.raises(AssertionError, match="does not exist"):
        test_every_line_names_tests_that_exist("| rule | `test_absent.py::test_absent` |")
    with pytest.raises(AssertionError, match="no test"):
        test_every_line_names_tests_that_exist("| rule | |")
