"""Rules that hold in runs of a pipeline: expectations, schemas of the server, results that fail,
two files for one warehouse, copies that are older, and a full disk.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock import Client
from penstock.client.requests import Request
from penstock.errors import (
    ExpectationFailed,
    InvalidPipeline,
    PublishFailed,
    WarehouseBroken,
    WarehouseInUse,
    WarehouseMismatch,
)
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.pipeline.declarations import DriftWatch, with_declarations
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.pipeline.status import status_of
from penstock.spark.warehouse.declared import with_noted
from penstock.spark.warehouse.rebuild import rebuild_table
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import upsert
from tests.helpers.server import Server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.clients import close_clients
from tests.spark.pipelines import SCHEMA, Make, append, ask, run, user

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_expectations_of_types_and_results_in_a_run(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    expect = {"known": "city IS NOT NULL", "short": {"sql": "length(city) < 9", "action": "drop"}}
    few = {"few": "users < 2", "real": {"sql": "key <> 'nowhere'", "action": "drop"}}
    pipeline = make(
        types={"user": {"schema": SCHEMA, "expect": expect}},
        publish={"cities": {"sql": CITIES, "to": f"derived-{home}/cities", "expect": few}},
        pipeline={"driver_messages": 3},  # the first batch in a task, the second on the driver
        source={"max_messages": 5},
    )
    cities = ["x", "x", None, "nowhere", "far too long", "y", None]
    append(client, f"{home}/one", *(user(f"k{n}", city) for n, city in enumerate(cities)))
    meter = run(pipeline, spark).meter
    assert meter.violations == {
        "types.user.known": 2,
        "types.user.short": 3,
        "publish.cities.few": 1,
        "publish.cities.real": 1,
    }, "NULL is not shorter than 9"
    shown = {
        each.name: (each.violated, each.last_batch) for each in status_of(pipeline).expectations
    }
    assert shown["types.user.known"] == (2, 1)
    assert shown["types.user.short"] == (3, 1)
    assert shown["publish.cities.few"] == (1, None)
    messages = client.stream(f"derived-{home}/cities").read().messages
    assert sorted(each["key"] for each in messages if "value" in each) == ["x", "y"]
    errors = {row["error"] for row in ask(pipeline, "SELECT error FROM dead_letters")}
    assert errors == {"expectation short: length(city) < 9"}
    stopping = {"e": {"sql": "city = 'x'", "action": "fail"}}
    strict = make(types={"user": {"schema": SCHEMA, "expect": stopping}})
    append(client, f"{home}/one", *(user(f"n{n}", "z") for n in range(9)))
    with pytest.raises(ExpectationFailed, match=r"types\.user\.expect\.e: 9 rows .* 'n0' of"):
        run(strict, spark)
    assert Warehouse(pipeline.warehouse.path).events.record.events == 7, "nothing was committed"


def test_a_result_that_fails_later_stops_the_run_or_stays_as_it_is(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    """SQL that is right for a thousand batches and then meets a value that it cannot take."""
    sql = "SELECT _key AS key, 12 / CAST(city AS INT) AS share FROM state_user"
    bad = {"sql": sql, "to": f"derived-{home}/shares"}
    cities = {"sql": CITIES, "to": f"derived-{home}/cities", "chunk": 2}
    stops = make(publish={"shares": bad, "cities": cities})
    append(client, f"{home}/one", user("a", "3"))
    run(stops, spark)
    append(client, f"{home}/one", user("b", "0"))
    with pytest.raises(PublishFailed, match=r"publish\.shares: .*[Dd]ivi"):
        run(stops, spark)
    going = make(publish={"shares": {**bad, "on_error": "continue"}, "cities": cities})
    notes: list[str] = []
    append(client, f"{home}/one", user("c", "4"))
    done = PipelineRun(going, spark, on_note=notes.append)
    done.run(once=True)
    assert done.meter.troubles == 1
    assert [note for note in notes if "publish.shares" in note and "stays as it is" in note]
    assert list(status_of(going).failing) == ["shares"]
    check_cities(going, client, check_warehouse(going))
    assert len(client.stream(f"derived-{home}/shares").read().messages) == 1
    right = {
        **bad,
        "sql": sql.replace("12 /", "12 / nullif(").replace(" AS share", ", 0) AS share"),
    }
    run(make(publish={"shares": right, "cities": cities}), spark)
    rows = client.stream(f"derived-{home}/shares").read().messages
    assert {row["key"]: row["value"]["share"] for row in rows} == {"a": 4.0, "b": None, "c": 3.0}
    assert status_of(make(publish={"shares": right, "cities": cities})).failing == {}


@pytest.mark.parametrize("to", ["shop/derived/x", "table:shop/t", "shop"])
def test_a_result_that_the_pipeline_would_read_is_refused(make: Make, to: str) -> None:
    with pytest.raises(InvalidPipeline, match="would read its own output"):
        make(source={"streams": ["shop/**", "other"]}, publish={"cities": {"sql": "x", "to": to}})
    make(source={"streams": ["shop/*"]}, publish={"cities": {"sql": "x", "to": "shop/a/b"}})


TOML = """
[source]
url = "{url}"
streams = ["{home}/{stream}"]
[warehouse]
path = "warehouse"
[pipeline]
{id}
"""


def settings(folder: Path, name: str, server: Server, home: str, **more: str) -> Pipeline:
    file = folder / name
    values = {"url": server.url, "home": home, "stream": name, "id": "", **more}
    file.write_text(TOML.format(**values))
    return load_pipeline(file)


def test_two_files_on_one_warehouse_are_told_apart(
    spark: SparkSession, client: Client, server: Server, tmp_path: Path, home: str
) -> None:
    for name in ("one", "two"):
        append(client, f"{home}/{name}", user("a", "x"))
    one, two = (settings(tmp_path, name, server, home) for name in ("one", "two"))
    run(one, spark)
    with pytest.raises(WarehouseInUse, match=r"belongs to the pipeline in .*/one, which still"):
        run(two, spark)
    moved = tmp_path / "moved"
    (tmp_path / "one").rename(moved)
    run(load_pipeline(moved), spark)  # a file may be renamed
    named = settings(tmp_path, "moved", server, home, stream="one", id='id = "shop"')
    run(named, spark)
    with pytest.raises(WarehouseInUse, match=r"belongs to the pipeline 'shop' \(.*/moved on"):
        run(two, spark)
    with pytest.raises(WarehouseInUse, match="belongs to the pipeline 'shop'"):
        run(settings(tmp_path, "two", server, home, id='id = "other"'), spark)
    assert ask(named, "SELECT DISTINCT stream FROM events") == [{"stream": f"{home}/one"}]


def test_two_warehouses_on_one_checkpoint_are_refused(
    spark: SparkSession, client: Client, make: Make, home: str, tmp_path: Path
) -> None:
    append(client, f"{home}/one", user("a", "x"))
    shared = str(tmp_path / "checkpoint")
    first = make(warehouse={"checkpoint": shared}, publish=None)
    run(first, spark)
    other = make(warehouse={"path": str(tmp_path / "w2"), "checkpoint": shared}, publish=None)
    with pytest.raises(WarehouseMismatch, match="has batches that the warehouse lacks"):
        run(other, spark)


def copied(pipeline: Pipeline, *names: str) -> dict[str, Path]:
    """Copies of parts of a warehouse, to be restored later."""
    root = Path(pipeline.warehouse.path)
    return {
        name: Path(shutil.copytree(root / name, root.parent / f"copy-{name.replace('/', '-')}"))
        for name in names
    }


def restore(pipeline: Pipeline, copies: dict[str, Path]) -> None:
    for name, copy in copies.items():
        target = Path(pipeline.warehouse.path, name)
        shutil.rmtree(target)
        shutil.copytree(copy, target)


def test_older_copies_are_noticed(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    pipeline = make()
    append(client, f"{home}/one", user("a", "x"), user("b", "y"))
    run(pipeline, spark)
    old = copied(pipeline, "events", "state", "outbox", "_checkpoint")
    append(client, f"{home}/one", user("a", "z"), user("c", "y"))
    run(pipeline, spark)
    new = Path(shutil.copytree(pipeline.warehouse.path, f"{pipeline.warehouse.path}-new"))
    cases = [
        (("_checkpoint",), r"the checkpoint is older"),
        (("events", "state", "outbox"), r"the warehouse is older"),
        (
            ("events", "outbox", "_checkpoint"),
            r"state/user ends with batch 2 and the events with 1",
        ),
    ]
    for names, words in cases:
        restore(pipeline, {name: old[name] for name in names})
        with pytest.raises((WarehouseMismatch, PublishFailed), match=words):
            run(pipeline, spark)
        restore(pipeline, {name: new / name for name in old})
    # All of it: the same batch makes the same results again, which the server has.
    restore(pipeline, old)
    run(pipeline, spark)
    check_cities(pipeline, client, check_warehouse(pipeline))
    # Another batch makes others, under numbers that the server knows.
    restore(pipeline, old)
    append(client, f"{home}/one", user("a", "w"))
    with pytest.raises(PublishFailed, match=r"has results that this warehouse did not publish"):
        run(pipeline, spark)
    restore(pipeline, {name: new / name for name in old})
    # The state alone is derived: an older one is brought up to date by itself.
    restore(pipeline, {"state": old["state"]})
    append(client, f"{home}/one", user("d", "z"))
    run(pipeline, spark)
    check_cities(pipeline, client, check_warehouse(pipeline))


@pytest.mark.soak  # as above, without results
def test_an_older_copy_of_everything_resumes_where_nothing_is_published(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    pipeline = make(publish=None)
    append(client, f"{home}/one", user("a", "x"))
    run(pipeline, spark)
    old = copied(pipeline, "events", "state", "_checkpoint")
    append(client, f"{home}/one", user("a", "z"), user("c", "y"))
    run(pipeline, spark)
    restore(pipeline, old)
    run(pipeline, spark)
    check_warehouse(pipeline)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, if this machine lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (it takes root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_told_and_the_next_run_goes_on(
    spark: SparkSession, client: Client, make: Make, home: str, small_disk: Path, tmp_path: Path
) -> None:
    pipeline = make(
        warehouse={"path": str(small_disk / "w"), "checkpoint": str(tmp_path / "c")},
    )
    append(client, f"{home}/one", user("a", "x"))
    run(pipeline, spark)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\1" * 4096):
            pass  # until nothing fits any more
    append(client, f"{home}/one", *(user(f"k{n}", "y") for n in range(5)))
    with pytest.raises(WarehouseBroken, match="No space left on device"):
        run(pipeline, spark)
    filler.unlink()
    run(pipeline, spark)
    check_cities(pipeline, client, check_warehouse(pipeline))


def declare(client: Client, stream: str, **properties: Any) -> None:
    client.stream(stream).ensure()
    schema = {"type": "object", "properties": properties}
    body = msgspec.json.encode({"types": {"user": {"schema": schema}}})
    url = client.stream(stream).url.replace("/v1/stream/", "/v1/schema/", 1)
    client.request(Request("PUT", url, {"Content-Type": "application/json"}, body=body))


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def test_schemas_come_from_the_server_and_drift_is_reported(
    spark: SparkSession,
    client: Client,
    make: Make,
    home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make(types={"user": {"schema": "server"}}, publish=None)
    assert pipeline.server_types == ("user",)
    stream = f"{home}/one"
    client.stream(stream).ensure()
    with pytest.raises(InvalidPipeline, match=r'the schema is "server", and no stream'):
        run(pipeline, spark)
    declare(client, stream, name=TEXT, age=WHOLE)
    append(client, stream, upsert("user", "a", {"name": "Ada", "age": 3, "mail": "m"}).to_json())
    ran = run(pipeline, spark)
    query = "SELECT * FROM state_user"
    [row] = ask(with_noted(pipeline), query)
    assert (row["name"], row["age"]) == ("Ada", 3)
    assert status_of(with_noted(pipeline)).drift == {}
    wrong = make(types={"user": {"schema": "server", "expect": {"x": "years > 1"}}}, publish=None)
    with pytest.raises(InvalidPipeline, match=r"types\.user\.expect\.x cannot be evaluated"):
        run(wrong, spark)

    declare(client, stream, name=TEXT, age=WHOLE, mail=TEXT)
    assert status_of(with_noted(pipeline)).drift == {"user": "the column mail is new"}
    monkeypatch.setattr("penstock.limits.PIPELINE_DRIFT_INTERVAL_S", 0)
    notes: list[str] = []
    watch = DriftWatch(ran._pipeline, notes.append)
    watch.look()
    watch.look()
    assert notes == [
        "types.user: the server's declaration has changed: the column mail is new. Restart the "
        "pipeline to use it."
    ]
    found = PipelineRun(pipeline, spark, on_note=notes.append)
    found.run(once=True)
    assert notes[1] == "types.user: the server's declaration has changed: the column mail is new"
    assert ask(with_noted(pipeline), query)[0]["mail"] == "m"

    declare(client, stream, name=WHOLE, age=NUMBER)
    with pytest.raises(InvalidPipeline, match=r"the column name is string .* rebuild FILE user"):
        run(pipeline, spark)
    current = with_declarations(pipeline, Warehouse(pipeline.warehouse.path))
    assert rebuild_table(current, "user").misfits == 1
    [row] = ask(with_noted(pipeline), query)
    assert (row["name"], row["age"], row.get("mail")) == (None, 3, None)
    run(pipeline, spark)

    declare(client, f"{home}/two", name=TEXT)
    with pytest.raises(InvalidPipeline, match=r"/one and .*/two declare the type differently"):
        run(pipeline, spark)
    close_clients()


def test_a_rebuild_changes_what_is_published(
    spark: SparkSession, client: Client, make: Make, home: str
) -> None:
    """Without a new event: the result depends on the columns, too."""
    value = {"name": "n", "city": "c", "age": 7}
    append(client, f"{home}/one", upsert("user", "a", value).to_json())
    sql = "SELECT _key AS key, typeof(age) AS kind, age FROM state_user"
    to = {"sql": sql, "to": f"derived-{home}/ages"}
    old = make(types={"user": {"schema": f"{SCHEMA}, age INT"}}, publish={"cities": to})
    run(old, spark)
    new = make(types={"user": {"schema": "age STRING"}}, publish={"cities": to})
    with pytest.raises(InvalidPipeline, match="pipeline rebuild FILE user"):
        run(new, spark)
    assert rebuild_table(new, "user", stage_only=True).misfits == 1
    run(new, spark)
    rows = client.stream(f"derived-{home}/ages").read().messages
    assert [tuple(row["value"].values()) for row in rows] == [("int", 7), ("string", None)]
