"""The Python that Spark starts for tasks and sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from penstock.spark.sessions.launchers import task_python, unzipped_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
TELL = "import json, pyspark, sys; print(json.dumps([pyspark.__file__, sys.path, sys.argv]))"


@pytest.mark.parametrize(
    ("master", "settings", "environ", "expected"),
    [
        ("spark://h:7077", {}, {}, sys.executable),
        ("k8s://https://h", {}, {}, "python3"),
        ("k8s://https://h", {}, {"PYSPARK_PYTHON": "/opt/py"}, "/opt/py"),
        ("spark://h:7077", {"spark.pyspark.python": "/a"}, {"PYSPARK_PYTHON": "/b"}, "/a"),
        (None, {}, {"PYSPARK_PYTHON": "/b"}, "/b"),
        (None, {}, {"SPARK_HOME": "/opt/spark"}, sys.executable),
        (None, {}, {}, None),
        ("local[2]", {}, {"SPARK_HOME": str(HOME)}, None),
    ],
)
def test_the_python_of_tasks_depends_on_master_settings_and_environment(
    master: str | None, settings: dict[str, str], environ: dict[str, str], expected: str | None
) -> None:
    assert task_python(master, settings, environ) == (expected or unzipped_python())


def test_pyspark_is_not_imported_from_the_zip_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    odd = tmp_path / "a b * $HOME"
    odd.mkdir()
    zips = [str(path) for path in (HOME / "python" / "lib").glob("*.zip")]
    assert len(zips) == 2, "PySpark and Py4J"
    done = subprocess.run(
        [unzipped_python(), "-c", TELL, "one word", "*", ""],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*zips, str(odd), "/other/pyspark.zip"])},
    )
    file, path, arguments = json.loads(done.stdout)
    assert file == pyspark.__file__
    assert path[1:3] == [str(odd), "/other/pyspark.zip"]
    assert not set(zips) & set(path)
    assert arguments == ["-c", "one word", "*", ""]


def test_the_script_is_written_once_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = Path(unzipped_python())
    assert script.parent == tmp_path / "cache" / "penstock"
    before = script.stat()
    assert Path(unzipped_python()).stat().st_ino == before.st_ino
    text = script.read_text()
    script.write_text("half a")
    assert unzipped_python() == str(script)
    assert script.read_text() == text
    assert [path.name for path in script.parent.iterdir()] == [script.name]


def test_where_the_script_cannot_be_written_or_run_the_command_is_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert unzipped_python() == sys.executable
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a file system without programs
    assert unzipped_python() == sys.executable


def test_tasks_have_compiled_modules(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark as loaded_pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [loaded_pyspark.__file__]})

    rows: list[Any] = spark.range(1).mapInArrow(loaded, "file STRING").collect()
    assert [row.file for row in rows] == [pyspark.__file__]
