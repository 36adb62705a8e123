"""docs/state-conformance.md names tests; each of them exists, and every test of a text is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "state-conformance.md"
NAME = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| [\dA].* \|$", re.M)


def named() -> list[tuple[str, str]]:
    return NAME.findall(TABLE.read_text())


def functions_of(file: str) -> set[str]:
    path = HERE / file if "/" not in file else HERE.parents[1] / file
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")
    }


def test_every_test_that_the_table_names_exists() -> None:
    missing = [f"{file}::{name}" for file, name in named() if name not in functions_of(file)]
    assert missing == []


def test_every_demand_has_a_test() -> None:
    rows = ROW.findall(TABLE.read_text())
    assert len(rows) > 60
    assert [row for row in rows if not NAME.search(row) and "above" not in row] == []


def test_every_test_of_the_texts_is_in_the_table() -> None:
    for file in ("test_text_002.py", "test_text_003.py"):
        listed = {name for where, name in named() if where == file}
        assert functions_of(file) - listed == set()
