"""The Python that Spark starts beside itself, for tasks and for sources."""

from __future__ import annotations

import os
import shlex
import site
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock.spark.sessions.scripts import cache, keep

_CHOICE: Final = "PYSPARK_PYTHON"
# Spark names its zip of PySpark first, and a zip has no compiled modules.
_SCRIPT: Final = """\
#!/bin/sh
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case $place in
    */python/lib/pyspark.zip | */python/lib/py4j-*.zip) ;;
    *) kept=${{kept:+$kept:}}$place ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def python_of(master: str | None, settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """As it is set, else the driver's own. In Kubernetes tasks run in an image, which has one of
    its own."""
    chosen = settings.get("spark.pyspark.python") or environ.get(_CHOICE)
    if chosen:
        return chosen
    name = master or "local"
    if name.startswith("k8s://"):
        return "python3"
    if name.startswith("local") and os.name == "posix" and _is_installed(environ):
        return unzipped_python()
    return sys.executable


def unzipped_python() -> str:
    """A command that is this Python, with the PySpark that is installed for it instead of the one
    in Spark's zip: every start would compile that anew, which takes most of a second.

    Where it cannot be kept, or run, it is Python itself.
    """
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    try:
        script = cache() / f"spark-python-{crc32(text.encode()):08x}"
        keep(script, text)
    except (OSError, RuntimeError):  # no such folder and none to be made; nobody's home
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _is_installed(environ: Mapping[str, str]) -> bool:
    """Whether any start of this Python finds the PySpark that is in use, and it is Spark's own."""
    import pyspark

    home = Path(pyspark.__file__).resolve().parent
    places = [*site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return (
        home.parent in (Path(place).resolve() for place in places)
        and Path(environ.get("SPARK_HOME") or home).resolve() == home
    )


@contextmanager
def told(python: str) -> Iterator[None]:
    """Spark reads the choice from the environment while it starts. The next session may have
    another one, so it is taken back."""
    before = {name: os.environ.get(name) for name in (_CHOICE, "PATH")}
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ[_CHOICE] = python
    if "/" not in python:
        # Also the driver runs it, to plan: there it has to be the one that this is.
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
