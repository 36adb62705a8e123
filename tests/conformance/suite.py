"""Runs the official conformance suite (a vitest program) against a URL and reads its report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
VITEST = HERE / "node_modules" / "vitest" / "vitest.mjs"
SUITE_TIMEOUT_S = 170.0


class Report(NamedTuple):
    """What one run of the suite found; names include their group."""

    passed: list[str]
    failed: list[str]
    skipped: list[str]

    @property
    def summary(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.failed)} failed"]
        lines += [f"failed: {name}" for name in self.failed]
        lines += [f"skipped: {name}" for name in self.skipped]
        return "\n".join(lines)


def run_suite(url: str, folder: Path) -> Report:
    """Run the suite against the server at `url`; `folder` is for its report and its cache."""
    if not VITEST.exists():
        raise RuntimeError("the suite is not installed: run `make test`, or `npm ci` in its folder")
    report = folder / "report.json"
    command = [node(), str(VITEST), "run", "--root", str(HERE)]
    command += ["--reporter=json", f"--outputFile={report}"]
    environ = {**os.environ, "CONFORMANCE_URL": url, "CONFORMANCE_CACHE": str(folder / "cache")}
    done = subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_S,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(f"vitest made no report:\n{done.stdout}\n{done.stderr}")
    return _read(json.loads(report.read_text()))


def node() -> str:
    """Node of this environment (see the Makefile) or the one on PATH."""
    found = find_node()
    if found is None:
        raise RuntimeError("there is no `node`: run `make test`, which installs one if need be")
    return found


def find_node() -> str | None:
    own = Path(sys.prefix) / "node" / "bin" / "node"
    return str(own) if own.exists() else shutil.which("node")


def _read(document: dict[str, Any]) -> Report:
    report = Report([], [], [])
    for file in document["testResults"]:
        if file.get("message"):  # the file itself did not load
            report.failed.append(file["message"].splitlines()[0])
        for test in file["assertionResults"]:
            groups = test["ancestorTitles"]
            name = " > ".join([*groups, test["title"]])
            if test["status"] == "passed":
                report.passed.append(name)
            elif test["status"] == "failed":
                report.failed.append(f"{name}\n    {_reason(test)}")
            else:
                report.skipped.append(name)
    return report


def _reason(test: dict[str, Any]) -> str:
    messages = test.get("failureMessages") or ["no message"]
    return str(messages[0]).splitlines()[0]
