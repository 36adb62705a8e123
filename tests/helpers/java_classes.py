"""Spark's Java classes, parsed and checked once for all the processes that tests start: Java keeps
them in an archive (CDS), and starting from it takes half the processor time.

`python -m tests.helpers.java_classes` is what the archive is made from.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from zlib import crc32

from tests.helpers.server import ROOT

# Java's second compiler pays for itself after minutes; no test runs that long.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SILENT = "-Xlog:disable"  # an archive that does not fit is passed over, and no test's business
_TIMEOUT_S = 300.0


def java_options() -> str:
    """Options for every Java that runs Spark in tests."""
    archive = _archive()
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of one run may want it
        if not archive.exists():
            _make(archive)
    return f"{_QUICK} {_SILENT} -XX:SharedArchiveFile={archive}" if archive.exists() else _QUICK


def _archive() -> Path:
    import pyspark

    from penstock.spark.sessions.launchers import provide_java

    made_of = f"{os.path.realpath(provide_java())} {pyspark.__version__} {pyspark.__file__}"
    return ROOT / ".pytest_cache" / f"spark-{crc32(made_of.encode()):08x}.jsa"


def _make(archive: Path) -> None:
    """Run Spark once and keep what it has loaded; without it tests take longer, and that is all."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / "spark.jsa"
        options = f"{_QUICK} {_SILENT} -XX:ArchiveClassesAtExit={made}"
        try:
            subprocess.run(
                [sys.executable, "-m", "tests.helpers.java_classes", folder],
                cwd=ROOT,
                env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            made.replace(archive)
        except (OSError, subprocess.SubprocessError):
            return


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
    _use_spark(Path(sys.argv[1]))
