"""Hostile data, each with its answer: types, keys, numbers and times of every kind in one run of a
pipeline.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock.spark
from penstock import Client
from penstock.spark.pipeline.status import status_of
from penstock.spark.warehouse.folders import entities_of, folder_of, former_folder_of
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import delete, upsert
from tests.spark.checking import check_cities, check_warehouse
from tests.spark.pipelines import SCHEMA, Make, ask, run
from tests.spark.warehouse_bench import WarehouseBench, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = [
    "user", "User", "USER", "us er", "us\ter", "..", ".", "a/b", "a.b", "../../x", "_hidden",
    "o'r\"d`er", "nul\0l", "new\nline\r\n", "日本語", "北京", "ﷺ", "עברית", "e\u0301", "é", "🂡",
    "x" * 5000, "x" * 4999 + "y", "日" * 2000, "back\\slash", "%2E%2E", "select", "__proto__", "~",
]  # fmt: skip
KEYS = [
    "plain", "o'quote", '"double"', "nul\0l", "new\nline", "k" * 5000, "k" * 4999 + "j", "日本語",
    "\u202eright", "back\\slash", "%", "\U0010ffff", " ", "--", "é", "e\u0301",
]  # fmt: skip
NUMBERS = "i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(6, 2), t TIMESTAMP, day DATE"
FITTING = [
    {"i": 2147483647, "l": -9223372036854775808, "f": 3.4e38, "d": 1e308, "m": 9999.99},
    {"t": "0001-01-01T00:00:00Z", "day": "0001-01-01"},
    {"t": "9999-12-31T23:59:59.999999Z", "day": "9999-12-31"},
]
BEYOND = [
    '{"i":2147483648}', '{"i":1.5}', '{"l":9223372036854775808}', '{"f":1e39}', '{"f":-3.5e38}',
    '{"m":10000}', '{"m":0.001}', '{"t":"0001-01-01T00:00:00+14:00"}', '{"day":"0000-12-31"}',
    '{"t":"9999-12-31T23:59:59.999999-01:00"}', '{"t":"10000-01-01T00:00:00Z"}',
]  # fmt: skip
TIMES = [
    ("0001-01-01T00:00:00Z", True), ("9999-12-31T23:59:59.999999Z", True),
    ("0001-01-01T00:00:00+14:00", False), ("9999-12-31T23:59:59-00:01", False),
    ("0000-01-01T00:00:00Z", False), ("2016-12-31T23:59:60Z", False),
]  # fmt: skip


def test_one_run_over_everything_odd_comes_to_what_a_replay_does(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    stream = client.stream(f"{home}/one")
    stream.ensure()
    events = [upsert(entity, "k", {"name": entity, "city": "c"}) for entity in TYPES]
    events += [upsert("user", key, {"name": "n", "city": key}) for key in KEYS]
    events += [delete("user", KEYS[3]), upsert("user", KEYS[5], {"name": "again", "city": "c"})]
    events += [upsert("number", f"fits-{n}", value) for n, value in enumerate(FITTING)]
    events += [
        upsert("user", f"time-{n}", {"name": "n", "city": "t"}, timestamp=text)
        for n, (text, _) in enumerate(TIMES)
    ]
    stream.append_many([json.loads(event.to_json()) for event in events])
    for number, value in enumerate(BEYOND):
        body = f'{{"type":"number","key":"beyond-{number}","value":{value},'
        stream.append(f'{body}"headers":{{"operation":"insert"}}}}'.encode())
    types = {name: {"schema": SCHEMA} for name in ("user", "User", "..")}
    pipeline = make(types={**types, "number": {"schema": NUMBERS}}, source={"max_messages": 1000})
    run(pipeline, spark)
    replay = check_warehouse(pipeline)
    check_cities(pipeline, client, replay)
    dead = {row["key"] for row in ask(pipeline, "SELECT key FROM dead_letters")}
    assert dead == {f"beyond-{number}" for number in range(len(BEYOND))}
    rows = ask(pipeline, "SELECT key, time FROM events WHERE key LIKE 'time-%'")
    assert {row["key"]: row["time"] is not None for row in rows} == {
        f"time-{number}": is_shown for number, (_, is_shown) in enumerate(TIMES)
    }
    tables = penstock.spark.pipeline_tables(spark, pipeline)
    # PySpark's own collect() cannot show a time of the first day of the year 1.
    keys = {row._key for row in tables.state("user").select("_key").collect()}
    assert keys == {row["_key"] for row in ask(pipeline, "SELECT _key FROM state_user")}
    assert KEYS[3] not in keys
    assert [row._key for row in tables.state("nul\0l").collect()] == ["k"]
    folders = sorted(each.name for each in Path(pipeline.warehouse.path, "state").iterdir())
    assert len({name.lower() for name in folders}) == len({*TYPES, "number"})
    assert max(map(len, folders)) <= 200
    assert sorted(each.name for each in Path(pipeline.warehouse.path).iterdir()) == [
        "_checkpoint", "_penstock", "events", "outbox", "state",
    ]  # fmt: skip
    run(pipeline, spark)  # every table is found again
    assert len(status_of(pipeline).types) == len({*TYPES, "number"})


@pytest.mark.parametrize("entity", [*TYPES, "a~7eb", "~~"])
def test_every_type_has_a_folder_of_its_own_that_tells_its_name(entity: str) -> None:
    folder = folder_of(entity)
    assert folder == folder.lower()
    assert not {"/", "\\", "%", "\0"} & set(folder)
    assert folder[0] not in "._"
    assert entities_of([folder], [entity]) == {entity}
    if len(folder) < 150:
        assert entities_of([folder], []) == {entity}
    former = former_folder_of(entity)
    if former is not None and "~" not in entity:
        assert entities_of([former], []) == {entity}


def test_tables_of_earlier_versions_stay_where_they_are(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    bench.batch(put("k", "1", type="User"), put("k", "2", type="user"))
    for entity in ("User", "user"):
        bench.fold(entity)
    state = tmp_path / "warehouse" / "state"
    assert sorted(each.name for each in state.iterdir()) == ["user", "~55ser"]
    (state / "~55ser").rename(state / "User")
    again = Warehouse(str(bench.path))
    assert again.types() == ["User", "user"]
    assert again.state_uri("User").endswith("/state/User")
    assert again.state_uri("user").endswith("/state/user")
    bench.duck.close()
