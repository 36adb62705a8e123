"""The lock files: `make setup` brings what a run needs, and they agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"^([a-z0-9.-]+)==([^ ;]+)", re.M)
# Installed into .venv side by side; the S3 server of the tests has a folder of its own.
ONE_ENVIRONMENT = ("requirements.lock", "requirements-dev.lock", "requirements-spark.lock")
# mypy is more than a tool of the tests: mypyc, which compiles, is a part of it.
TOOLS = {"hypothesis", "import-linter", "pytest", "pytest-xdist", "ruff", "uvicorn"}


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / name).read_text()))


def names(requirements: list[str]) -> set[str]:
    matches = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {match[0].lower() for match in matches if match}


def test_setup_installs_no_tools_of_the_tests() -> None:
    assert pins("requirements-dev.lock").keys() >= TOOLS
    assert not TOOLS & (pins("requirements.lock").keys() | pins("requirements-spark.lock").keys())


def test_setup_installs_what_the_server_and_a_pipeline_need() -> None:
    project = PYPROJECT["project"]
    assert names(project["dependencies"]) <= pins("requirements.lock").keys()
    extra = names(project["optional-dependencies"]["spark"])
    assert extra <= pins("requirements-spark.lock").keys()
    # The editable install is built from what is there, without the network.
    assert names(PYPROJECT["build-system"]["requires"]) <= pins("requirements.lock").keys()


def test_a_package_has_one_version_in_an_environment() -> None:
    versions: dict[str, set[str]] = {}
    for name in ONE_ENVIRONMENT:
        for package, version in pins(name).items():
            versions.setdefault(package, set()).add(version)
    assert {package: each for package, each in versions.items() if len(each) > 1} == {}


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.lock")), ids=lambda p: p.name)
def test_a_lock_names_no_index(path: Path) -> None:
    assert "://" not in path.read_text()
    assert "--index" not in path.read_text()
