"""Builds wheels with compiled modules where that is asked for (`PENSTOCK_COMPILE=1`).

Without it a wheel has plain Python only, and fits every platform.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILE = "PENSTOCK_COMPILE"
COMPILER = "mypy[mypyc]>=1.15"


class CompileHook(BuildHookInterface):  # type: ignore[type-arg] # its parameter is private
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [COMPILER] if os.environ.get(COMPILE) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not os.environ.get(COMPILE) or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "scripts")))
        import compile as compiling  # type: ignore[import-not-found, unused-ignore]

        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name)
        compiling.compile_into(target, jobs=os.cpu_count() or 1)
        for built in target.rglob("*.*"):
            build_data["force_include"][str(built)] = str(built.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
