"""A test run that was started in the background can still interrupt the programs that it starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import tests.conftest, signal, subprocess, sys
script = "import signal; print(signal.getsignal(2) is signal.SIG_IGN)"
child = subprocess.Popen([sys.executable, "-c", script], stdout=-1)
print(child.communicate()[0].decode().strip())
"""


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_children_of_a_run_in_the_background_take_ctrl_c() -> None:
    result = subprocess.run(
        [sys.executable, "-c", CHILD],
        preexec_fn=_ignore_interrupts,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["False"]
