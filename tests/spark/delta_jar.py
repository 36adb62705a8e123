"""Delta's own Spark jar, for tests: found in, or fetched by, the machine's Maven.

No registry is named here: Maven's settings know where to look.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pyspark

VERSION = "4.4.0"  # the first that is built for Spark 4.2
FETCH_TIMEOUT_S = 120.0


@functools.cache
def delta_jars() -> list[Path] | str:
    """The jars, or why there are none."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    maven = shutil.which("mvn")
    if maven is None:
        return "Delta's Spark jar is fetched by Maven, and there is no `mvn` on the path"
    found = []
    for artifact in (f"delta-spark_{spark}_2.13", "delta-storage"):
        jar = _home(artifact) / f"{artifact}-{VERSION}.jar"
        if not jar.exists():
            wanted = f"-Dartifact=io.delta:{artifact}:{VERSION}"
            command = [maven, "-q", "-B", "dependency:get", "-Dtransitive=false", wanted]
            try:
                subprocess.run(command, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                return f"Maven did not bring io.delta:{artifact}:{VERSION} in time"
        if not jar.exists():
            return f"Maven cannot bring io.delta:{artifact}:{VERSION}: is its registry in reach?"
        found.append(jar)
    return found


def _home(artifact: str) -> Path:
    return Path.home() / ".m2" / "repository" / "io" / "delta" / artifact / VERSION


def delta_settings(jars: list[Path]) -> dict[str, str]:
    """What a session needs to read and write `format("delta")`."""
    return {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
