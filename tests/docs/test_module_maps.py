"""The pages that name files are true: each module is listed once, and none that is not there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

MODULES = {
    str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"
}
PACKAGES = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")} - {"."}


def _listed(text: str) -> list[str]:
    """The modules in the tables of a page: rows that begin with `` `path.py` ``."""
    return re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)


def _mapped(text: str) -> list[str]:
    """The packages in the map of a page: lines of a code block that begin with `path/`."""
    blocks = re.findall(r"^```\n(src/penstock/\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [name for block in blocks for name in re.findall(r"^  ([\w/]+)/ ", block, re.MULTILINE)]


def test_the_architecture_page_lists_every_module_once() -> None:
    listed = Counter(_listed(ARCHITECTURE.read_text()))
    assert {name for name, times in listed.items() if times > 1} == set()
    assert set(listed) == MODULES


def test_every_row_of_the_architecture_page_says_what_the_module_does() -> None:
    rows = re.findall(r"^\| `[\w/]+\.py` \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    assert len(rows) == len(MODULES)
    assert [row for row in rows if len(row.split()) < 2] == []


def test_the_map_in_contributing_lists_every_package_once() -> None:
    mapped = Counter(_mapped(CONTRIBUTING.read_text()))
    assert {name for name, times in mapped.items() if times > 1} == set()
    assert set(mapped) == PACKAGES


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.stem)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml|lock))`", page.read_text()))
    places = (ROOT, SOURCE, page.parent)
    absent = {name for name in named if not any((place / name).exists() for place in places)}
    assert absent == set()


def test_the_check_itself_sees_rows_and_packages() -> None:
    assert _listed("| `log/engine.py` | text |\n| `log/engine.py`, `b.py` | no |\n") == [
        "log/engine.py"
    ]
    assert _mapped("```\nsrc/penstock/\n  log/      x\n  log/disk/ y\n```\n") == ["log", "log/disk"]
