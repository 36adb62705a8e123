"""The tables in a catalog: SQL for any session, Spark's own catalog, and a Hive metastore (embedded
Derby) that a run registers them in and that another session of Spark finds them by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import Client
from penstock.cli import main
from penstock.spark.type_schema import type_schema
from penstock.state.events import delete, upsert
from tests.helpers.java_classes import java_options
from tests.helpers.server import running_server
from tests.spark.delta_jar import delta_jars, delta_settings
from tests.spark.drivers import PYTHONPATH, pipeline_process
from tests.spark.warehouse_bench import WarehouseBench, put

TOML = """
[source]
url = "{url}"
streams = ["shop/*"]
[warehouse]
path = "warehouse"
catalog = "{catalog}"
database = "shop"
[types.user]
schema = "name STRING, age INT"
[pipeline.spark]
"""


def test_statements_for_a_catalog_are_printed(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": type_schema("name STRING, age INT")})
    bench.batch(put("a", '{"name":"Ada"}'), put("k", "1", type="o'ther"))
    bench.fold()
    bench.fold("o'ther")
    bench.duck.close()
    file = tmp_path / "pipeline.toml"
    file.write_text(TOML.format(url="http://127.0.0.1:9", catalog="lake"))
    lines = CliRunner().invoke(main, ["pipeline", "catalog", str(file)]).output.splitlines()
    assert lines[0] == "CREATE SCHEMA IF NOT EXISTS `lake`.`shop`;"
    assert lines[1] == (
        "CREATE TABLE IF NOT EXISTS `lake`.`shop`.events USING delta LOCATION "
        f"'{tmp_path}/warehouse/events';"
    )
    names = [line.partition("`shop`.")[2].partition(" ")[0] for line in lines[2:]]
    assert names == ["`state_o_ther`", "`current_o_ther`", "`state_user`", "`current_user`"]


READER = """
import json, sys
import penstock.spark
spark = penstock.spark.session("reader", config=json.loads(sys.argv[1]), quiet=True)
tables = sorted(row.tableName for row in spark.sql("SHOW TABLES IN shop").collect())
rows = [list(row) for row in spark.sql("SELECT _key, name FROM shop.current_user").collect()]
events = spark.table("shop.events").count()
print(json.dumps({"tables": tables, "rows": sorted(rows), "events": events}))
spark.stop()
"""


OWN = """
import json, sys
from pathlib import Path
import penstock.spark
from penstock.spark.config import load_pipeline
from penstock.spark.pipeline.run import PipelineRun
spark = penstock.spark.session("own", config=json.loads(sys.argv[1]), quiet=True)
PipelineRun(load_pipeline(Path("pipeline.toml")), spark).run(once=True)
tables = sorted(row.tableName for row in spark.sql("SHOW TABLES IN shop").collect())
rows = [list(row) for row in spark.sql("SELECT _key, name FROM shop.current_user").collect()]
events = spark.table("shop.events").count()
print(json.dumps({"tables": tables, "rows": sorted(rows), "events": events}))
spark.stop()
"""
EXPECTED = {
    "tables": ["current_user", "events", "state_user"],
    "rows": [["a", "A"], ["c", "C"]],
    "events": 4,
}


def settings_of(folder: Path) -> dict[str, str]:
    """What a session needs to find Delta tables; skips if Delta's jar cannot be had."""
    jars = delta_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    return {
        **delta_settings(jars),
        "spark.sql.warehouse.dir": str(folder / "managed"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} {java_options()}".strip(),
    }


@contextmanager
def shop(folder: Path, catalog: str, settings: dict[str, str]) -> Iterator[Path]:
    """A server with four events, and the file of a pipeline over them."""
    file = folder / "pipeline.toml"
    with running_server() as server, Client(server.url) as client:
        stream = client.stream("shop/users")
        stream.create()
        stream.append_many([upsert("user", key, {"name": key.upper()}) for key in "abc"])
        stream.append(delete("user", "b"))
        lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()]
        text = TOML.format(url=server.url, catalog=catalog)
        file.write_text(text + "\n".join(line for line in lines if "catalogImpl" not in line))
        yield file


def printed(script: str, folder: Path, settings: dict[str, str]) -> object:
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(settings)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.soak  # two sessions with Delta's jar
@pytest.mark.xdist_group("spark-apart")
def test_a_run_registers_its_tables_in_a_hive_metastore(tmp_path: Path) -> None:
    settings = {
        **settings_of(tmp_path),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
        ),
    }
    with (
        shop(tmp_path, "hive", settings) as file,
        pipeline_process(file, "--once") as driver,
    ):
        code = driver.process.wait(300)
    assert code == 0, driver.text
    assert printed(READER, tmp_path, settings) == EXPECTED


@pytest.mark.soak  # a session with Delta's jar
@pytest.mark.xdist_group("spark-apart")
def test_a_run_registers_its_tables_in_the_catalog_of_its_session(tmp_path: Path) -> None:
    """Spark's own catalog, which ends with the session."""
    settings = settings_of(tmp_path)
    with shop(tmp_path, "spark", settings):
        assert printed(OWN, tmp_path, settings) == EXPECTED
