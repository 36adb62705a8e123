"""The wheel that is published: what is in it, and that it runs once it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import penstock
from penstock import DISTRIBUTION, Client, plain_modules
from tests.helpers.server import READY_PREFIX, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this folder with what is installed, as the network is not asked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel alone; the packages that it needs are those of this Python."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    subprocess.run([*pip, *options, str(wheel)], check=True, timeout=TIMEOUT_S)
    return folder


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    """Puts the wheel before the sources."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_the_name_and_the_version(wheel: Path) -> None:
    assert wheel.name == f"penstock_streams-{penstock.__version__}-py3-none-any.whl"
    head = metadata(wheel)
    assert (head["Name"], head["Version"]) == (DISTRIBUTION, penstock.__version__)
    assert head["Requires-Python"] == ">=3.11"
    assert head["License-Expression"] == "MIT"
    assert head.get_all("Project-URL") == [
        f"{name}, {url}" for name, url in PROJECT["urls"].items()
    ]
    assert str(head.get_payload()).startswith("# Penstock")


def test_the_wheel_has_the_sources_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = ROOT / "src"
    expected = {
        str(path.relative_to(sources))
        for path in (sources / "penstock").rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        # What was compiled in this tree is for this machine only.
        and path.suffix not in (".so", ".pyd")
        and path.name != plain_modules.BUILD_FILE
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"penstock/py.typed", "penstock/spark/sessions/log4j2.properties"} <= expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_what_is_heavy_is_an_extra_and_tools_are_nowhere(wheel: Path) -> None:
    head = metadata(wheel)
    assert set(head.get_all("Provides-Extra", [])) == {
        "cluster",
        "spark",
        "h2",
        "objectstore",
        "otel",
    }
    always: set[str] = set()
    extra: set[str] = set()
    for line in head.get_all("Requires-Dist", []):
        (extra if "extra ==" in line else always).add(re.split(r"[^A-Za-z0-9-]", line)[0])
    assert always == {re.split(r"[^A-Za-z0-9-]", each)[0] for each in PROJECT["dependencies"]}
    assert {"pyspark", "duckdb", "deltalake"} <= extra - always
    assert not {"pytest", "mypy", "ruff", "hatchling"} & (always | extra)


def test_uvloop_is_not_asked_for_on_windows(wheel: Path) -> None:
    (uvloop,) = [each for each in metadata(wheel).get_all("Requires-Dist", []) if "uvloop" in each]
    assert re.search(r"sys_platform != ['\"]win32['\"]", uvloop)


def test_the_installed_command_says_its_version(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [installed / "bin" / "penstock", "--version"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.startswith(f"penstock {penstock.__version__} ({DISTRIBUTION}, Python 3.")


@pytest.fixture
def url(installed: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A server of the wheel, without Spark and the tools of the tests."""
    absent = ("pyspark", "pyarrow", "duckdb", "deltalake", "pytest", "httpx", "starlette")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
    )
    path = f"{tmp_path}:{environment['PYTHONPATH']}"
    with subprocess.Popen(
        [installed / "bin" / "penstock", "serve", "--memory", "--port", "0"],
        env={**environment, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix(READY_PREFIX).split()[0]
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def test_the_installed_command_serves(
    url: str, installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    with Client(url) as client:
        client.stream("orders").create(content_type="application/json")
        client.stream("orders").append({"id": 1})
    code = f"import penstock; print(penstock.Client({url!r}).stream('orders').read().messages)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(penstock.__file__)"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.splitlines() == ["[{'id': 1}]", str(installed / "penstock/__init__.py")]
