"""`make run ONCE=1`: the whole story on one machine, and nothing of it left running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("spark-apart")]

DEMO_TIMEOUT_S = 300.0
ENDING_S = 20.0


def still_running(mark: str) -> list[str]:
    """Processes that have inherited the mark, by their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # gone by now, or not ours
    return found


def test_the_demo_tells_the_whole_story_and_leaves_nothing_running(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    arguments = ["demo", "--pipeline", "--once", "--port", "0", "--data-dir", str(tmp_path / "d")]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "DEMO_MARK": mark},
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    story = done.stdout
    titles = re.findall(r"^(\d)\. ", story, re.MULTILINE)
    assert titles == [str(number) for number in range(1, 10)]
    assert re.search(r"^ +u1 +\w+ +\w+$", story, re.MULTILINE), "the state of a user"
    invalid = story.partition("\n8. ")[2].partition("\n9. ")[0]
    assert '{"not":"an event"}' in invalid
    assert '"id":"u9"' in invalid, "refused by its schema"
    assert re.search(r"lag +0 messages", story)
    assert re.search(r'"users":\d', story), "the derived table, read with the CLI"
    assert story.endswith("Stopped.\n")
    log = (tmp_path / "d-pipeline" / "pipeline.log").read_text()
    assert [line for line in log.splitlines() if "pipeline.toml: " not in line] == []
    nothing = threading.Event()
    for _ in range(int(ENDING_S * 10)):
        if not still_running(mark):
            break
        nothing.wait(0.1)  # Java ends by itself, when it sees that its driver has
    assert still_running(mark) == []
