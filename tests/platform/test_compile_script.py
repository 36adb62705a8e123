"""`scripts/compile.py` without a C compiler: it takes one from a package, or says so in a line."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.helpers.server import ROOT

VARIABLES = ("CC", "LDSHARED", "CFLAGS")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script on a machine that has no compiler, in a tree that it leaves alone."""
    spec = importlib.util.spec_from_file_location("compile_script", ROOT / "scripts/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module, "remove", lambda: None)
    monkeypatch.setattr(module.sys, "argv", ["compile.py"])
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    yield module
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def test_without_any_compiler_it_says_so_in_one_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)  # an import of it fails
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == script.NO_COMPILER
    assert capsys.readouterr().err == "there is no C compiler: Penstock runs as plain Python\n"


def test_the_compiler_of_a_package_takes_its_place(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", ModuleType("ziglang"))
    script.find_compiler()
    assert os.environ["CC"] == f"{sys.executable} -m ziglang cc"
    assert os.environ["LDSHARED"] == f"{sys.executable} -m ziglang cc -shared"


def test_a_compiler_that_is_there_is_used(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    script.find_compiler()
    assert "CC" not in os.environ
