"""Which of its two forms Penstock runs in: modules that mypyc has compiled, or plain Python.

The compiled ones stand beside their sources, and Python prefers them. `PENSTOCK_PURE=1` does
without them, and so does a working tree in which a source was changed since it was compiled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import ModuleType

PURE = "PENSTOCK_PURE"
"""The environment variable that asks for plain Python."""
BUILD_FILE = ".compiled"
"""A file that `scripts/compile.py` leaves in a working tree: the modules that it has compiled, one
a line. An installed package has none: its files belong together."""
COMPILED, PLAIN = "compiled", "plain Python"

_FOLDER = os.path.dirname(__file__)
_PROBE = os.path.join(_FOLDER, "log", "stream")  # compiled whenever anything is


class PlainModules:
    """Finds the sources of this package, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("penstock."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def choose() -> None:
    """Decide for this process, before any other module of the package is imported."""
    if os.environ.get(PURE) or is_stale():
        # Not asked for the parts of a package: those have no loader of their own.
        sys.meta_path.insert(0, PlainModules())


def is_stale() -> bool:
    """Whether a source was changed since it was compiled, in a working tree."""
    build = os.path.join(_FOLDER, BUILD_FILE)
    try:
        compiled_ns = os.stat(build).st_mtime_ns
    except OSError:
        return False
    with open(build, encoding="ascii") as modules:
        sources = [os.path.join(_FOLDER, *line.split("/")) for line in modules.read().split()]
    try:
        return any(os.stat(source).st_mtime_ns > compiled_ns for source in sources)
    except OSError:
        return True


def form() -> str:
    """Return in which form this process runs: COMPILED or PLAIN."""
    if any(isinstance(finder, PlainModules) for finder in sys.meta_path):
        return PLAIN
    is_compiled = any(os.path.exists(_PROBE + suffix) for suffix in EXTENSION_SUFFIXES)
    return COMPILED if is_compiled else PLAIN
