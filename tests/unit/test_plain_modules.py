"""Compiled modules, plain Python, and which of them a process runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from penstock import plain_modules
from tests.helpers.server import ROOT

MODULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["penstock"]["compile"][
    "modules"
]
SHOW = """
import penstock.log.stream
from penstock import plain_modules
print(plain_modules.form())
print(penstock.log.stream.__file__)
"""


def shown(**environment: str) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.split("\n")[:2]


def test_plain_python_runs_if_it_is_asked_for() -> None:
    form, file = shown(PENSTOCK_PURE="1")
    assert form == plain_modules.PLAIN
    assert file.endswith(".py")


@pytest.mark.skipif(plain_modules.form() == plain_modules.PLAIN, reason="nothing is compiled")
def test_everything_that_is_listed_runs_compiled() -> None:
    form, file = shown(PENSTOCK_PURE="")
    assert form == plain_modules.COMPILED
    assert file.endswith(tuple(EXTENSION_SUFFIXES))
    plain = [
        name
        for name in MODULES
        if not str(import_module(name).__file__).endswith(tuple(EXTENSION_SUFFIXES))
    ]
    assert plain == []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working tree with one module that was compiled."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "stream.py").write_text("")
    (tmp_path / plain_modules.BUILD_FILE).write_text("log/stream.py\n")
    monkeypatch.setattr(plain_modules, "_FOLDER", str(tmp_path))
    return tmp_path


def test_what_was_compiled_from_the_sources_as_they_are_is_used(tree: Path) -> None:
    assert not plain_modules.is_stale()


def test_what_was_compiled_from_an_older_source_is_not_used(tree: Path) -> None:
    after = (tree / plain_modules.BUILD_FILE).stat().st_mtime_ns + 1
    os.utime(tree / "log" / "stream.py", ns=(after, after))
    assert plain_modules.is_stale()


def test_what_was_compiled_from_a_source_that_is_gone_is_not_used(tree: Path) -> None:
    (tree / "log" / "stream.py").unlink()
    assert plain_modules.is_stale()


def test_an_installed_package_is_as_it_was_built(tree: Path) -> None:
    (tree / plain_modules.BUILD_FILE).unlink()
    (tree / "log" / "stream.py").unlink()
    assert not plain_modules.is_stale()
