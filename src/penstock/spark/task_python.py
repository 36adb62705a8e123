"""The Python that Spark starts beside itself, for tasks and for sources."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

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
    if name.startswith("local") and _is_installed(environ):
        return unzipped_python()
    return sys.executable


@cache
def unzipped_python() -> str:
    """A command that is this Python, with the PySpark that is installed for it instead of the one
    in Spark's zip: every start would compile that anew, which takes most of a second."""
    if os.name != "posix":
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="penstock-python-"))
    atexit.register(_remove, folder, os.getpid())
    script = folder / "python"
    script.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    # On some machines nothing in the folder for temporary files may be run.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


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
