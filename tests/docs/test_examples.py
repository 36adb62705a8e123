"""Every block of the README and the pages in docs/ runs, in order, against a real server.

`sh`, `python` and `js` (in Node, with the npm clients) are run, `html` is opened in Chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from examples import fastapi_app
from tests.docs.blocks import ROOT, blocks, pages
from tests.docs.postgres import running_postgres
from tests.docs.reader import free_port, reading

# Every block that is not run, with the page that it is in. It is a short list: keep it so.
NOT_RUN = [
    ("docs/deployment.md", "it installs a service"),
    ("docs/deployment.md", "it needs Docker"),
    ("docs/deployment.md", "it needs Docker"),
    ("docs/deployment.md", "it needs a cluster"),
    ("docs/deployment.md", "it needs Docker"),
    ("docs/pipeline.md", "it starts Spark once more"),
    ("docs/pipeline.md", "it needs a cluster"),
    ("docs/retention.md", "it starts Spark"),
    ("docs/spark.md", "it needs a Spark Connect server"),
]
LONG = {"docs/tutorials/lakehouse.md", "docs/tutorials/postgres.md"}  # only with `make soak`
STARTS_SPARK = {"docs/spark.md", "docs/pipeline.md", *LONG}
NEEDS_POSTGRES = {"docs/tutorials/postgres.md"}
# What is shown and not run. A block of code has one of the languages that are run.
SHOWN = {"console", "text", "json", "toml", "yaml", "http", "dockerfile", "ini", "nginx", "sql"}


def _case(path: Path) -> ParameterSet:
    name = str(path.relative_to(ROOT))
    marks = []
    if name in STARTS_SPARK:
        marks = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart")]
        marks += [pytest.mark.soak] if name in LONG else []
    elif any(block.needs_browser for block in blocks(path.read_text())):
        marks = [pytest.mark.xdist_group("browser")]
    return pytest.param(path, id=name.removeprefix("docs/"), marks=marks)


@pytest.mark.parametrize("path", [_case(path) for path in pages() if blocks(path.read_text())])
def test_every_block_of_the_page_runs_and_does_what_it_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_run = [block for block in blocks(path.read_text()) if block.reason is None]
    # People run the first examples again, against the same server.
    times = 2 if path.name == "README.md" else 1
    with ExitStack() as stack:
        if str(path.relative_to(ROOT)) in NEEDS_POSTGRES:
            monkeypatch.setenv("DATABASE_URL", stack.enter_context(running_postgres()))
        starts_spark = str(path.relative_to(ROOT)) in STARTS_SPARK
        reader = stack.enter_context(reading(to_run, one_python=starts_spark))
        for block in to_run * times:
            printed = reader.follow(block)
            if path.name == "README.md":
                assert '"/problems/' not in printed, f"{block.code}\nprinted\n{printed}"


def test_every_block_that_is_not_run_is_listed() -> None:
    skipped = [
        (str(path.relative_to(ROOT)), block.reason)
        for path in pages()
        for block in blocks(path.read_text())
        if block.reason is not None
    ]
    assert skipped == NOT_RUN


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_no_code_hides_in_a_language_that_is_not_run(path: Path) -> None:
    fences = re.findall(r"^```(\w*)[^\n]*\n.*?^```$", path.read_text(), re.M | re.S)
    allowed = SHOWN | {"sh", "python", "js", "html"}
    allowed |= {"bash"} if path.name == "cli.md" else set()  # lines for ~/.bashrc and its like
    assert set(fences) <= allowed


def test_the_commands_of_the_fastapi_example_work_twice() -> None:
    port = free_port()
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
            assert shell(script) == '[{"n": 1}]'
            assert shell(script) == '[{"n": 1},\n{"n": 1}]'
        finally:
            process.terminate()
            process.communicate(timeout=30)


def shell(script: str) -> str:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True
    ).stdout


def test_the_readme_begins_with_how_to_install_and_serve() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    language, text = blocks[0]
    assert language == "console"
    assert text.startswith("$ pip install penstock-streams\n$ penstock serve\n")


def test_the_readme_has_runnable_blocks() -> None:
    assert len(blocks((ROOT / "README.md").read_text())) >= 4
