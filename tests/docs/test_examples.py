"""Every `sh` and `python` block of the README and the guides runs, in order, against a real server.

A block may be followed by `<!-- prints: text -->`: the text has to be in what the block printed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from examples import fastapi_app
from tests.helpers.server import running_server

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n((?:<!-- prints: .*? -->\n)*)", re.M | re.S)
PRINTS = re.compile(r"<!-- prints: (.*?) -->")
DEFAULT_URL = "http://127.0.0.1:4437"


def documents() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if BLOCK.search(path.read_text())]


def run(language: str, code: str, url: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, code.replace(DEFAULT_URL, url)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=400,  # the one with Spark in it needs a while on a busy machine
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _case(path: Path) -> ParameterSet:
    starts_spark = path.name in ("spark.md", "pipeline.md")
    marks = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart")] if starts_spark else []
    return pytest.param(path, id=path.name, marks=marks)


@pytest.mark.parametrize("path", [_case(path) for path in documents()])
def test_every_block_of_the_document_runs_and_prints_what_it_says(path: Path) -> None:
    # People run the first examples again, against the same server.
    times = 2 if path.name == "README.md" else 1
    with running_server(memory=True) as server:
        for language, code, expectations in BLOCK.findall(path.read_text()) * times:
            printed = run(language, code, server.url)
            for expected in PRINTS.findall(expectations):
                assert expected in printed, f"{code}\nprinted\n{printed}"
            if path.name == "README.md":
                assert '"/problems/' not in printed, f"{code}\nprinted\n{printed}"


def test_the_commands_of_the_fastapi_example_work_twice() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uvicorn = [sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--port", str(port)]
    commands = "".join(
        f"{line}\n" for line in (fastapi_app.__doc__ or "").splitlines() if line.startswith("    ")
    ).partition("curl")
    script = f"curl{commands[2]}".replace("localhost:8000", f"127.0.0.1:{port}")
    assert script.count("curl") == 3
    with subprocess.Popen(uvicorn, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "Uvicorn running" not in process.stderr.readline():
                assert process.poll() is None
            printed = run("sh", script, "")
            assert printed == '[{"n": 1}]'
            assert run("sh", script, "") == '[{"n": 1},\n{"n": 1}]'
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_the_readme_begins_with_how_to_install_and_serve() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    language, text = blocks[0]
    assert language == "console"
    assert text.startswith("$ pip install penstock-streams\n$ penstock serve\n")


def test_the_readme_has_runnable_blocks() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 4
