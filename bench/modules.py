"""What compiling each module gains: everything compiled beside everything but one module, by the
processor time of single operations in one process (`in_process`).

Each build takes most of a minute, all of them the better part of an hour.

python -m bench.modules [--only NAME,NAME] [--add NAME,NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = "pyproject.toml"
RUNS = 2  # of each build, by turns


def listed() -> list[str]:
    """Return the modules that are compiled."""
    settings = tomllib.loads((ROOT / SETTINGS).read_text())
    names: list[str] = settings["tool"]["penstock"]["compile"]["modules"]
    return names


class Tree:
    """A copy of the sources, compiled by itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("src", "scripts"):
            ignored = shutil.ignore_patterns("*.so", "__pycache__", ".compiled")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)

    def compile(self, names: list[str]) -> bool:
        """Compile these modules and no others; False if that is not possible."""
        text = (ROOT / SETTINGS).read_text()
        start = text.index("[tool.penstock.compile]")
        end = text.index("]\n", text.index("modules = [", start)) + 2
        quoted = ", ".join(f'"{name}"' for name in names)
        changed = f"[tool.penstock.compile]\nmodules = [{quoted}]\n"
        (self._folder / SETTINGS).write_text(text[:start] + changed + text[end:])
        done = subprocess.run(
            [sys.executable, "scripts/compile.py"],
            cwd=self._folder,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def measure(self) -> dict[str, float]:
        """Return the processor time of each operation, in microseconds; nothing if one fails."""
        path = os.pathsep.join((str(self._folder / "src"), str(ROOT)))
        done = subprocess.run(
            [sys.executable, "-m", "bench.in_process"],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            check=False,
        )
        found: dict[str, float] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found


def best(trees: list[Tree]) -> list[dict[str, float]]:
    """Return the least time of each operation in each tree, of runs that take turns."""
    found: list[dict[str, float]] = [{} for _ in trees]
    for _ in range(RUNS):
        for tree, least in zip(trees, found, strict=True):
            for operation, time_us in tree.measure().items():
                least[operation] = min(least.get(operation, time_us), time_us)
    return found


def row(name: str, before: dict[str, float], after: dict[str, float]) -> str:
    """Return a row of the table: how much longer each operation takes `before`."""
    cells = [
        f"{before[operation] - time_us:+.2f} µs ({before[operation] / time_us - 1:+.0%})"
        for operation, time_us in after.items()
    ]
    return f"| `{name.removeprefix('penstock.')}` | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="modules to leave out in turn (default: all)")
    parser.add_argument("--add", default="", help="modules to compile as well, in turn")
    options = parser.parse_args()
    names = listed()
    without = [] if options.add else [each for each in options.only.split(",") if each] or names
    added = [each for each in options.add.split(",") if each]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        whole, other = Tree(Path(folder, "whole")), Tree(Path(folder, "other"))
        if not whole.compile(names):
            sys.exit("nothing can be compiled here")
        for module in [*without, *added]:
            is_added = module in added
            chosen = [*names, module] if is_added else [each for each in names if each != module]
            if not other.compile(chosen):
                print(f"| `{module}` | cannot be built so |", flush=True)
                continue
            full, changed = best([whole, other])
            if changed.keys() != full.keys():
                print(f"| `{module}` | does not run so |", flush=True)
            elif is_added:
                print(row(module, full, changed), flush=True)
            else:
                print(row(module, changed, full), flush=True)


if __name__ == "__main__":
    main()
