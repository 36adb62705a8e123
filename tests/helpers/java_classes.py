"""Spark's Java classes, parsed and checked once for all the processes that tests start: Java keeps
them in an archive (CDS), and starting from it takes half the processor time.

`python -m tests.helpers.java_classes make FILE` makes it, of what `… use FOLDER` has loaded.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from zlib import crc32

from tests.helpers.server import ROOT

# Java's second compiler pays for itself after minutes; no test runs that long.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SILENT = "-Xlog:disable"  # an archive that does not fit is passed over, and no test's business
_TIMEOUT_S = 300.0


def java_options() -> str:
    """Options for every Java that runs Spark in tests.

    To make the archive takes 43 s of processor time, and each start from it saves 5: one run would
    need eight or nine starts, and wait for it. So the first run goes without, the second one makes
    it in the background, and all later ones have it.
    """
    archive = _archive()
    if archive.exists():
        return f"{_QUICK} {_SILENT} -XX:SharedArchiveFile={archive}"
    archive.parent.mkdir(exist_ok=True)
    earlier = archive.with_suffix(".wanted")
    if earlier.exists() and earlier.read_text() != _this_run():
        _make_in_background(archive)
    else:
        earlier.write_text(_this_run())
    return _QUICK


def _this_run() -> str:
    """What all processes of one run have in common."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


def _make_in_background(archive: Path) -> None:
    command = [sys.executable, "-m", "tests.helpers.java_classes", "make", str(archive)]
    null = subprocess.DEVNULL
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    atexit.register(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind that is not ready when the run ends; the next one tries again."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # Java would first write what nobody waits for
    process.wait()


def _archive() -> Path:
    import pyspark

    from penstock.spark.sessions.launchers import provide_java

    made_of = f"{os.path.realpath(provide_java())} {pyspark.__version__} {pyspark.__file__}"
    return ROOT / ".pytest_cache" / f"spark-{crc32(made_of.encode()):08x}.jsa"


def _make(archive: Path) -> None:
    """Run Spark once and keep what it has loaded; without it tests take longer, and that is all."""
    os.nice(10)
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process of this run makes it
        folder = archive.with_suffix(".making")
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        folder.mkdir()
        made = folder / "spark.jsa"
        options = f"{_QUICK} {_SILENT} -XX:ArchiveClassesAtExit={made}"
        subprocess.run(
            [sys.executable, "-m", "tests.helpers.java_classes", "use", str(folder)],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,  # their end is the end of Java, whose last act is the archive
            timeout=_TIMEOUT_S,
            check=True,
        )
        made.replace(archive)
        shutil.rmtree(folder)


def _use_spark(folder: Path) -> None:
    """A little of everything that tests do with Spark."""
    import penstock.spark

    spark = penstock.spark.session("classes", master="local[1]", quiet=True)
    path = f"{folder}/rows"
    rows = spark.range(10).selectExpr("id", "CAST(id AS STRING) AS text")
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("kept")
    spark.sql("SELECT text, count(*) AS n FROM kept GROUP BY text ORDER BY text").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(path)
    writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    writer.format("noop").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    {"make": _make, "use": _use_spark}[sys.argv[1]](Path(sys.argv[2]))
