"""A warehouse in an object store: the whole pipeline against an S3 server, with credentials that
are in the warehouse's options and nowhere else.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyarrow import fs

from penstock import Client, limits
from penstock.cli import main
from penstock.errors import (
    InvalidPipeline,
    NoWarehouse,
    WarehouseBroken,
    WarehouseInUse,
    WarehouseMismatch,
)
from penstock.spark.config import Pipeline, load_pipeline
from penstock.spark.pipeline.checkpoint import Checkpoint
from penstock.spark.pipeline.rewrite import rewrite
from penstock.spark.warehouse.dead_letters import replay_dead_letters
from penstock.spark.warehouse.offsets_file import PositionFiles
from penstock.spark.warehouse.rebuild import rebuild_table
from penstock.spark.warehouse.spark_sql import SparkViews
from penstock.spark.warehouse.storage import filesystem
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import reset
from tests.helpers.server import Server
from tests.spark.checking import CITIES, check_cities, check_warehouse
from tests.spark.cluster import standalone_cluster
from tests.spark.drivers import pipeline_process
from tests.spark.object_store import BUCKET, SECRET, Store, missing, running_store
from tests.spark.pipelines import append, ask, run, user

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.xdist_group("spark"),
]
SOAK_TIMEOUT_S = 900.0
STRICT, LOOSE = "name STRING NOT NULL, city STRING", "name STRING, city STRING"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running_store() as running:
        yield running


def write(
    file: Path, server: Server, store: Store, schema: str, *, home: str = "store"
) -> Pipeline:
    options = "\n".join(f'{name} = "{value}"' for name, value in store.options.items())
    file.write_text(f"""
[source]
url = "{server.url}"
streams = ["{home}/**"]
[warehouse]
path = "s3a://{BUCKET}/{home}/"
[warehouse.options]
{options}
[types.user]
schema = "{schema}"
[publish.cities]
sql = "{CITIES}"
to = "derived-{home}/cities"
""")
    return load_pipeline(file)


@pytest.mark.soak
def test_executors_of_a_cluster_read_and_write_the_store(
    client: Client, server: Server, store: Store, tmp_path: Path
) -> None:
    """Nothing but the master's URL and the path is other than on one machine."""
    file, used, python = tmp_path / "pipeline.toml", tmp_path / "used", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho run >> {used}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    write(file, server, store, STRICT, home="cluster")
    with file.open("a") as more:
        more.write(f"""
[pipeline]
driver_messages = 0
driver_rows = 0
[pipeline.spark]
"spark.pyspark.python" = "{python}"
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
""")
    pipeline = load_pipeline(file)
    changes = [user(str(n % 9), f"c{n % 4}") for n in range(200)]
    append(client, "cluster/two", *changes, user("late", "c9", name=None))
    with standalone_cluster() as master:
        for news in (changes, [reset().to_json(), user("new", "c7")]):
            append(client, "cluster/one", *news)
            with pipeline_process(file, "--once", "--master", master) as driver:
                status = driver.process.wait(SOAK_TIMEOUT_S)
            assert status == 0, driver.text
            check_cities(pipeline, client, check_warehouse(pipeline))
    assert used.exists(), "tasks run in the Python that was named"


def options_in_plan(rows: DataFrame) -> str:
    """What anybody who sees a query could see of its sources."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    found = [leaves.apply(number) for number in range(leaves.size())]
    relations = [each for each in found if "V2" in each.nodeName()]
    return " ".join(str(each.options().asCaseSensitiveMap()) for each in relations)


def cli(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["pipeline", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    return done.output


def test_a_pipeline_keeps_its_tables_in_an_object_store(
    spark: SparkSession, client: Client, server: Server, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.toml"
    pipeline = write(file, server, store, STRICT)
    assert f"writes     s3://{BUCKET}/store" in cli("validate", str(file))
    append(client, "store/one", *(user(str(n % 5), f"c{n % 3}") for n in range(12)))
    append(client, "store/two", user("1", "c1"), user("late", "c9", name=None))
    run(pipeline, spark, resume_from_warehouse=True)  # which is nothing yet: it begins
    check_cities(pipeline, client, check_warehouse(pipeline))
    shown = cli("show", str(file), "user", "--format", "csv")
    assert len(shown.splitlines()) == 1 + 6
    status = json.loads(cli("status", str(file), "--json"))
    assert (status["dead_letters"], status["lag"], status["published"]) == (1, 0, {"cities": 3})

    # The disk of the driver is lost, and with it the checkpoint.
    place = tmp_path / "_checkpoint" / BUCKET / "store"
    assert pipeline.warehouse.checkpoint == str(place)
    shutil.rmtree(place)
    append(client, "store/one", user("9", "c9"))
    with pytest.raises(WarehouseMismatch, match="--resume-from-warehouse"):
        run(pipeline, spark)
    run(pipeline, spark, resume_from_warehouse=True)
    check_cities(pipeline, client, check_warehouse(pipeline))

    fixed = write(file, server, store, LOOSE)
    assert replay_dead_letters(fixed) == (1, 0, 0)
    warehouse = Warehouse(fixed.warehouse.path, fixed.warehouse.options)
    assert len(warehouse.events.files()) > 1
    warehouse.events.compact()
    assert len(warehouse.events.files()) == 1
    keys = "SELECT _key FROM state_user WHERE city = 'c9' ORDER BY _key"
    assert ask(fixed, keys) == [{"_key": "9"}, {"_key": "late"}]
    views = SparkViews(spark, warehouse, fixed.types)
    found = views.sql(keys)
    assert [row["_key"] for row in found.collect()] == ["9", "late"]
    options = options_in_plan(found)
    assert f"s3://{BUCKET}/store/state/user/" in options
    assert not [each for each in store.options.values() if each in options]

    narrow = write(file, server, store, "city STRING")
    rebuilt = rebuild_table(narrow, "user")
    assert (rebuilt.is_switched, rebuilt.misfits) == (True, 0)
    assert ask(narrow, keys) == [{"_key": "9"}, {"_key": "late"}]

    assert "events" in cli("vacuum", str(file), "--dry-run")
    done = rewrite(narrow, "store/one", "store/one-2")
    assert done.entities == 6
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_checkpoint", "pipeline.toml"]
    listed = store.files.get_file_info(f"{BUCKET}/store/_penstock/writer.json")
    assert not listed.is_file, "nobody writes it now"


def test_of_two_that_commit_to_a_store_at_once_one_does(store: Store) -> None:
    uri = f"s3://{BUCKET}/raced"
    first = Warehouse(uri, store.options)
    first.open()
    both = [Warehouse(uri, store.options) for _ in range(2)]
    for each in both:
        each.events.refresh()
    outcomes: list[Any] = []
    ready = threading.Barrier(2)

    def commit(warehouse: Warehouse) -> None:
        ready.wait()
        try:
            warehouse.events.note(warehouse.events.record)
            outcomes.append("done")
        except WarehouseInUse as error:
            outcomes.append(error.detail)

    threads = [threading.Thread(target=commit, args=(each,)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=len)[0] == "done"
    assert "Another writer has changed" in sorted(outcomes, key=len)[1]


def test_a_run_that_was_taken_over_is_told_so_by_the_store(store: Store) -> None:
    uri = f"s3a://{BUCKET}/taken"
    old, new = Warehouse(uri, store.options), Warehouse(uri, store.options)
    old.open()
    new.open()
    with pytest.raises(WarehouseInUse, match="taken over the warehouse"):
        old.check()


def test_a_store_that_does_not_let_us_in_says_so_in_a_sentence(store: Store) -> None:
    wrong = {**store.options, "AWS_ACCESS_KEY_ID": "somebody"}
    with pytest.raises(WarehouseBroken, match=r"403 Forbidden.*Are the credentials right"):
        Warehouse(f"s3://{BUCKET}/x", wrong).need()
    with pytest.raises(WarehouseBroken, match="Does the bucket exist"):
        Warehouse("s3://no-such-bucket/x", store.options).need()
    with pytest.raises(NoWarehouse):
        Warehouse(f"s3://{BUCKET}/x", store.options).need()


def test_where_the_store_is_may_be_in_the_environment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    warehouse = Warehouse(f"s3://{BUCKET}/surroundings")
    warehouse.open()
    assert warehouse.exists
    # Tasks are told where it is, and have credentials of their own.
    assert warehouse.options == {"AWS_ENDPOINT_URL": store.url}
    warehouse.close()


def test_a_checkpoint_in_a_store_is_put_aside_file_by_file(store: Store) -> None:
    place = f"s3a://{BUCKET}/points/_checkpoint"
    files, root = filesystem(f"s3://{BUCKET}/points/_checkpoint", store.options)
    for name in ("metadata", "offsets/0"):
        with files.open_output_stream(f"{root}/{name}") as file:
            file.write(b'{"id": "q"}')
    assert Checkpoint(place, store.options).query == "q"
    Checkpoint(place, store.options).put_aside()
    assert Checkpoint(place, store.options).query is None
    left = files.get_file_info(fs.FileSelector(f"{BUCKET}/points", recursive=True))
    names = [each.path.partition("_checkpoint-")[2] for each in left if each.is_file]
    assert sorted(name.partition("/")[2] for name in names) == ["metadata", "offsets/0"]


def test_a_checkpoint_that_spark_cannot_write_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidPipeline, match="it has no file system for s3a://"):
        Checkpoint("s3a://lake/x", {"AWS_REGION": "nowhere"}).check_reach(spark)
    with pytest.raises(InvalidPipeline, match="cannot be written"):
        Checkpoint("/proc/none/x").check_reach(spark)


def test_sparks_files_are_written_without_programs_in_local_folders_alone(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    name = "spark.sql.streaming.checkpointFileManagerClass"
    here = Checkpoint(str(tmp_path))
    with here.written_without_programs(spark):
        chosen = spark.conf.get(name) or ""
        assert chosen.endswith(".FileSystemBasedCheckpointFileManager")
    with Checkpoint(f"s3a://{BUCKET}/x", store.options).written_without_programs(spark):
        assert spark.conf.get(name, None) is None
    spark.conf.set(name, "someone's own")
    try:
        with here.written_without_programs(spark):
            pass
        assert spark.conf.get(name) == "someone's own"
    finally:
        spark.conf.unset(name)


def test_positions_of_many_streams_are_files_in_the_store(store: Store) -> None:
    files = PositionFiles(f"s3://{BUCKET}/positions/events", store.options)
    many = {f"s/{number:05}": "0" for number in range(2000)}
    name = files.put(1, many)
    assert name is not None
    assert files.get(name) == many
    files.remove_old(10 * limits.PIPELINE_POSITIONS_KEPT)
    assert files.get(name) is None
