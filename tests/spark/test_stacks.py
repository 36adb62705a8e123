"""Other people's stacks over our tables, in an environment of their own (`.venv/stacks`): readers
of Delta and of Iceberg, and the examples for dbt, dlt, Airflow, Dagster and notebooks.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import Client
from penstock.spark.type_schema import type_schema
from penstock.state.events import delete, upsert
from tests.helpers.server import ROOT, running_server
from tests.spark.warehouse_bench import WarehouseBench, gone, put

pytestmark = pytest.mark.soak  # their packages are a gigabyte

STACKS = Path(os.environ.get("PENSTOCK_STACKS", ROOT / ".venv" / "stacks"))
EXAMPLES = ROOT / "examples" / "stacks"
SCHEMA = (
    "name STRING, age INT, small SMALLINT, t TIMESTAMP, day DATE, m DECIMAL(9, 2), "
    "tags ARRAY<STRING>, attrs MAP<STRING, INT>, s STRUCT<a INT, b FLOAT>"
)
VALUE = (
    '{"name":"n%d","age":%d,"small":4,"t":"2026-01-01T00:00:00.000001Z","day":"2026-01-01",'
    '"m":1.25,"tags":["a",null],"attrs":{"x":1},"s":{"a":1,"b":2.5}}'
)
TIMEOUT_S = 300


@pytest.fixture
def bench(tmp_path: Path) -> WarehouseBench:
    if not (STACKS / "bin" / "python").exists():
        pytest.skip("the packages of other stacks are installed by `make soak` (.venv/stacks)")
    found = WarehouseBench(tmp_path / "warehouse", {"user": type_schema(SCHEMA)})
    found.batch(*(put(f"k{n}", VALUE % (n, n % 3)) for n in range(9)), put("bad", '{"name":1}'))
    found.batch(gone("k1"), put("k2", VALUE % (2, 50)))
    found.fold()
    (tmp_path / "pipeline.toml").write_text(TOML.format(path=tmp_path, schema=SCHEMA))
    return found


TOML = """
[source]
url = "http://127.0.0.1:9"
streams = ["s"]
attempts = 1
[warehouse]
path = "{path}/warehouse"
database = "shop"
iceberg = {{type = "sql", uri = "sqlite:///{path}/iceberg.db", warehouse = "file://{path}/ice"}}
[types.user]
schema = "{schema}"
expect.young = "age < 40"
"""


def stack(folder: Path, *words: str, **environ: str) -> str:
    """What a program of the stacks prints."""
    path = f"{STACKS / 'bin'}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    settings = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{ROOT / 'src'}",
        "SHOP_WAREHOUSE": str(folder / "warehouse"),
        "SHOP_PIPELINE": str(folder / "pipeline.toml"),
        "HOME": str(folder),
        "DO_NOT_TRACK": "1",
        "DLT_DATA_DIR": str(folder / "dlt"),
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        **environ,
    }
    done = subprocess.run(
        [str(STACKS / "bin" / words[0]), *words[1:]],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


READERS = """
import json, os, sys
import duckdb, pandas as pd, polars as pl, pyarrow as pa
from deltalake import DeltaTable
table = DeltaTable(os.environ["SHOP_WAREHOUSE"] + "/state/user")
columns = ["_key", "name", "age", "m", "t"]
rows = table.to_pyarrow_dataset()
found = {
    "pyarrow": rows.to_table(columns=columns).to_pylist(),
    "duckdb": duckdb.sql(f"SELECT {', '.join(columns)} FROM rows").to_arrow_table().to_pylist(),
    "polars": pl.read_delta(table).select(columns).to_dicts(),
    "polars lazily": pl.scan_delta(table).select(columns).collect().to_dicts(),
    "pandas": table.to_pandas(columns=columns).to_dict("records"),
}
for each in found.values():
    each.sort(key=lambda row: row["_key"])
kept = "_operation <> 'delete'"
filtered = {
    "duckdb": duckdb.sql(f"SELECT count(*) FROM rows WHERE {kept} AND small = 4").fetchall()[0][0],
    "polars": pl.scan_delta(table).filter(pl.col("_operation") != "delete").collect().height,
    "pandas": len(table.to_pandas(filters=[("_operation", "!=", "delete")])),
}
protocol = table.protocol()
print(json.dumps({
    "rows": {name: [[str(value) for value in row.values()] for row in rows]
             for name, rows in found.items()},
    "filtered": filtered,
    "protocol": [protocol.min_reader_version, protocol.min_writer_version,
                 protocol.reader_features, protocol.writer_features],
}, default=str))
"""


def test_readers_of_delta_agree(bench: WarehouseBench, tmp_path: Path) -> None:
    """Trino's connector reads up to reader version 3; ours is 1, without any table feature."""
    printed = json.loads(stack(tmp_path, "python", "-c", READERS))
    assert printed["protocol"] == [1, 2, None, None]
    rows = printed["rows"]
    keys = [row[0] for row in rows["pyarrow"]]
    assert keys == sorted({*(f"k{n}" for n in range(9))}), "the deleted one is a tombstone"
    for name in ("duckdb", "polars", "polars lazily"):
        assert [row[:4] for row in rows[name]] == [row[:4] for row in rows["pyarrow"]], name
    living = [row[:2] for row in rows["pyarrow"] if row[0] != "k1"]
    assert [row[:2] for row in rows["pandas"] if row[0] != "k1"] == living
    assert set(printed["filtered"].values()) == {8}, "also by columns without statistics"


ICEBERG = """
import json, sys
from pyiceberg.catalog import load_catalog
path, name = sys.argv[1:]
uri, home = f"sqlite:///{path}/iceberg.db", f"file://{path}/ice"
catalog = load_catalog("penstock", type="sql", uri=uri, warehouse=home)
rows = catalog.load_table(f"shop.{name}").scan().to_arrow().to_pylist()
print(json.dumps(rows, default=str))
"""


def iceberg_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = json.loads(stack(folder, "python", "-W", "ignore", "-c", ICEBERG, str(folder), name))
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def delta_rows(bench: WarehouseBench, name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(bench.path / name)).to_pyarrow_table().to_pylist(maps_as_pydicts=None)
    encoded = json.loads(json.dumps(rows, default=str))
    return sorted(encoded, key=lambda row: json.dumps(row, sort_keys=True))


def test_iceberg_metadata_over_the_same_files_has_the_same_rows(
    bench: WarehouseBench, tmp_path: Path
) -> None:
    def export() -> list[dict[str, Any]]:
        words = ("-W", "ignore", "-m", "penstock.cli", "pipeline", "iceberg")
        printed = stack(tmp_path, "python", *words, str(tmp_path / "pipeline.toml"), "--json")
        found: list[dict[str, Any]] = json.loads(printed)
        for name, folder in (("events", "events"), ("state_user", "state/user")):
            assert iceberg_rows(tmp_path, name) == delta_rows(bench, folder), name
        return found

    bench.warehouse.close()
    first = export()
    assert [each["name"] for each in first] == ["shop.events", "shop.state_user"]
    assert export() == first, "nothing to do"
    bench.warehouse.open()
    for number in range(3):
        bench.batch(put("k3", VALUE % (number, 7)), put(f"new{number}", VALUE % (1, 1)))
        bench.fold()
    bench.warehouse.events.compact()
    bench.warehouse.close()
    second = export()
    assert second[1]["version"] > first[1]["version"]
    bench.duck.close()
    bench.types["user"] = type_schema("name STRING, age BIGINT")
    grown = TOML.format(path=tmp_path, schema="name STRING, age BIGINT")
    (tmp_path / "pipeline.toml").write_text(grown)
    words = ("-m", "penstock.cli", "pipeline", "rebuild")
    stack(tmp_path, "python", *words, str(tmp_path / "pipeline.toml"), "user")
    export()
    assert set(iceberg_rows(tmp_path, "state_user")[0]) >= {"name", "age", "_value"}
    assert "tags" not in iceberg_rows(tmp_path, "state_user")[0]


def test_dbt_builds_models_over_the_warehouse(bench: WarehouseBench, tmp_path: Path) -> None:
    project = str(EXAMPLES / "dbt")
    database = str(tmp_path / "shop.duckdb")
    folders = ("--target-path", str(tmp_path / "target"), "--log-path", str(tmp_path / "logs"))
    words = ("build", "--project-dir", project, "--profiles-dir", project, *folders)
    printed = stack(tmp_path, "dbt", *words, SHOP_DATABASE=database)
    assert "ERROR=0" in printed
    query = (
        "import duckdb; print(duckdb.connect(%r).sql('FROM users_by_age ORDER BY age').fetchall())"
    )
    rows = stack(tmp_path, "python", "-c", query % database)
    assert rows.strip() == "[(0, 3), (1, 2), (2, 2), (50, 1)]"


DLT = """
import sys
sys.path.insert(0, sys.argv[1])
import dlt
from dlt_source import penstock_stream
to = dlt.destinations.duckdb("lake.duckdb")
pipeline = dlt.pipeline("shop", destination=to, dataset_name="shop")
pipeline.run(penstock_stream(sys.argv[2], "shop/users"))
with pipeline.sql_client() as client:
    print(client.execute_sql('SELECT _key, name FROM "user" ORDER BY _key'))
"""


def test_dlt_loads_a_stream_and_continues(bench: WarehouseBench, tmp_path: Path) -> None:
    with running_server() as server, Client(server.url) as client:
        stream = client.stream("shop/users")
        stream.create()
        stream.append_many(
            [upsert("user", "1", {"name": "Ada"}), upsert("user", "2", {"name": "B"})]
        )
        words = ("-c", DLT, str(EXAMPLES), server.url)
        assert stack(tmp_path, "python", *words).splitlines()[-1] == "[('1', 'Ada'), ('2', 'B')]"
        stream.append_many([upsert("user", "1", {"name": "Eve"}), delete("user", "2")])
        assert stack(tmp_path, "python", *words).splitlines()[-1] == "[('1', 'Eve')]"


AIRFLOW = """
import sys
sys.path.insert(0, sys.argv[1])
import airflow_dag
dag = airflow_dag.dag
assert [task.task_id for task in dag.topological_sort()] == ["run", "check"]
check = dag.get_task("check")
check.allowed = 1
print(check.execute({})[:14])
check.allowed = 0
try:
    check.execute({})
except ValueError as error:
    print(error)
"""


def test_airflow_imports_the_dag_and_its_check_runs(bench: WarehouseBench, tmp_path: Path) -> None:
    bench.warehouse.close()
    environ = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__UNIT_TEST_MODE": "true"}
    printed = stack(tmp_path, "python", "-W", "ignore", "-c", AIRFLOW, str(EXAMPLES), **environ)
    assert printed.splitlines()[-2:] == ['{"warehouse":"', "1 dead letters, 0 allowed"]


DAGSTER = """
import sys
sys.path.insert(0, sys.argv[1])
import dagster_assets
from dagster import materialize
found = dagster_assets.definitions
names = ("warehouse", "expectations", "dead_letters")
done = materialize([getattr(dagster_assets, name) for name in names])
checks = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
print(done.success, sorted(checks.items()))
"""


def test_dagster_materializes_and_checks(bench: WarehouseBench, tmp_path: Path) -> None:
    bench.warehouse.close()
    environ = {"SHOP_DRY_RUN": "1", "DAGSTER_HOME": str(tmp_path)}
    printed = stack(tmp_path, "python", "-W", "ignore", "-c", DAGSTER, str(EXAMPLES), **environ)
    assert printed.splitlines()[-1] == "True [('dead_letters', False), ('expectations', True)]"


NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=200, kernel_name="python3").execute()
print(book.cells[3].outputs[0]["data"]["text/plain"])
"""


def test_the_notebook_runs(bench: WarehouseBench, tmp_path: Path) -> None:
    words = ("python", "-W", "ignore", "-c", NOTEBOOK, str(EXAMPLES / "notebook.ipynb"))
    printed = stack(tmp_path, *words)
    assert "('user', 'change', 11)" in printed
