"""The archive of Spark's Java classes: Java writes the classes that a session has loaded when it
ends, once, and later sessions start from them with half the work.

Archives are in the user's cache, one for each Java and Spark, the last few of them. Java passes
over an archive that does not fit, so that a wrong one costs nothing but time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from penstock.limits import SPARK_CLASS_ARCHIVES_MAX
from penstock.spark.sessions.launchers import cache_folder, java_version_text

# Programs that set one of these choose the archive, or the JVM, themselves.
_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_SUFFIX: Final = ".jsa"
_MAGICS: Final = tuple(number.to_bytes(4, "little") for number in (0xF00BABA2, 0xF00BABA8))
_WRITTEN_S: Final = 600.0  # how long Java may take to write an archive
# Java complains of an archive that does not fit; other JVMs do not know the options.
_SILENT: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-Xlog:all=error:stderr")


def class_archive_options(java_home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The options with which Java uses the archive, or writes it when it ends.

    None if there is no folder for it, or the environment has Java options for archives.
    """
    if any("Archive" in environ.get(name, "") for name in _VARIABLES):
        return ()
    try:
        archive = _archive(java_home)
        archive.parent.mkdir(parents=True, exist_ok=True)
        if _is_whole(archive):
            os.utime(archive)
            option = f"-XX:SharedArchiveFile={archive}"
        elif archive.exists():
            return ()  # Another process is writing it.
        else:
            option = f"-XX:ArchiveClassesAtExit={archive}"
        remove_old(archive.parent.glob(f"*{_SUFFIX}"), keep=archive)
    except (OSError, RuntimeError):  # The folder cannot be written, or the user has no home.
        return ()
    return () if " " in option else (*_SILENT, option)


def _archive(java_home: str) -> Path:
    """Where the archive of this Java and this Spark is."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    changed = jars.stat().st_mtime_ns if jars.exists() else 0
    version = java_version_text(Path(java_home) / "bin" / "java")
    name = f"{version} {pyspark.__version__} {jars} {changed}"
    return cache_folder() / "java-classes" / f"spark-{crc32(name.encode()):08x}{_SUFFIX}"


def _is_whole(archive: Path) -> bool:
    """Whether Java has written all of it, the head at last. What it left behind is removed."""
    try:
        with archive.open("rb") as file:
            if file.read(4) in _MAGICS:
                return True
        if time.time() - archive.stat().st_mtime > _WRITTEN_S:
            archive.unlink()
    except FileNotFoundError:
        pass
    return False


def remove_old(archives: Iterable[Path], *, keep: Path) -> None:
    """Remove the archives that were used least recently, except one."""
    others = [each for each in archives if each != keep]
    with suppress(FileNotFoundError):  # another process removes them, too
        others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for each in others[SPARK_CLASS_ARCHIVES_MAX - 1 :]:
            each.unlink(missing_ok=True)
