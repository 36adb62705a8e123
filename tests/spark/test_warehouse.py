"""Events, state, history and dead letters from small batches, without Spark: every transformation
equal to a replay in plain Python.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from penstock.errors import InvalidPipeline, QueryFailed, WarehouseInUse
from penstock.spark.type_schema import type_schema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.lock import is_same_process_alive, process_start_id
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import (
    NOW,
    USER,
    WarehouseBench,
    as_of_everything,
    gone,
    put,
    spelled,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WarehouseBench]:
    found = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    yield found
    found.duck.close()


def test_the_state_is_the_newest_value_before_and_after_a_fold(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'), put("b", '{"name":"Bob","age":5}'))
    bench.agree()
    bench.fold()
    bench.agree()
    bench.batch(put("a", '{"name":"Eve"}'), gone("b"), put("c", '{"name":"Cy"}'))
    bench.agree()
    assert bench.fold().folded.rows == 2
    bench.agree()
    names = bench.duck.sql("SELECT _key, name, age FROM state_user ORDER BY _key").to_pylist()
    assert names == [
        {"_key": "a", "name": "Eve", "age": None},
        {"_key": "c", "name": "Cy", "age": None},
    ]


def test_a_reset_ends_what_was_before_it_in_its_stream_alone(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'), put("a", '{"name":"Al"}', stream="t"))
    bench.fold()
    bench.batch({"control": "reset"}, put("b", '{"name":"Bob"}'))
    bench.agree()
    assert [row[1] for row in bench.state()] == ["b", "a"]
    bench.fold()
    bench.agree()
    bench.batch({"control": "reset", "control_offset": spelled(1, 60)}, put("c", '{"name":"no"}'))
    bench.batch(put("d", '{"name":"no"}'), put("e", '{"name":"yes"}'), put("f", '{"name":"yes"}'))
    bench.agree()
    bench.fold()
    bench.agree()


def test_a_reset_to_an_offset_behind_it_ends_what_is_older(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"1"}'), put("b", '{"name":"1"}'), put("c", '{"name":"1"}'))
    bench.fold()
    bench.batch(put("b", '{"name":"1"}'), put("c", '{"name":"2"}'), gone("d"))  # 30, 40, 50
    bench.batch({"control": "reset", "control_offset": spelled(1, 30)}, put("e", '{"name":"1"}'))
    bench.agree()
    assert [row[1] for row in bench.state()] == ["b", "c", "e"]
    bench.fold()
    bench.agree()
    bench.batch({"control": "reset"}, {"control": "reset", "control_offset": spelled(1, 0)})
    bench.agree()
    assert bench.state() == []  # nothing comes back


def test_random_resets_agree_with_the_replay(bench: WarehouseBench) -> None:
    _random_resets(bench, seed=4, batches=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_random_resets_agree_with_the_replay(bench: WarehouseBench, seed: int) -> None:
    _random_resets(bench, seed=seed, batches=20)


def _random_resets(bench: WarehouseBench, *, seed: int, batches: int) -> None:
    chance = random.Random(seed)
    number = 0
    for _ in range(batches):
        rows = []
        for _ in range(chance.randrange(1, 7)):
            kind, key = chance.random(), chance.choice("abcdef")
            if kind < 0.05:
                rows.append({"control": "reset"})
            elif kind < 0.25:
                behind = spelled(1, 10 * chance.randrange(number + 1))
                rows.append({"control": "reset", "control_offset": behind})
            elif kind < 0.4:
                rows.append(gone(key))
            else:
                rows.append(put(key, f'{{"name":"{chance.randrange(3)}"}}'))
            number += 1
        bench.batch(*rows)
        if chance.random() < 0.4:
            bench.fold()
        bench.agree()


def test_a_recreated_stream_begins_anew(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'), put("b", '{"name":"Bob"}'))
    bench.fold()
    bench._next["s"] = 0
    bench.batch(
        {"control": "reset", "generation": 2, "seq": -1, "position": -1},
        put("b", '{"name":"Bea"}', generation=2),
    )
    bench.agree()
    assert [row[1:3] for row in bench.state()] == [("b", '{"name":"Bea"}')]


def test_values_that_do_not_fit_are_dead_letters_with_a_reason(bench: WarehouseBench) -> None:
    bench.batch(
        put("a", '{"name":7}'),
        put("b", '{"name":"Bob"}'),
        {"kind": "invalid", "value": "zzz", "error": "This is not JSON."},
        put("x", "7", type="flag"),
    )
    bench.agree()
    (first, second) = bench.dead()
    assert "value.name" in first[3]
    assert second[2] == "zzz"
    assert bench.duck.sql("SELECT _value FROM state_flag").to_pylist() == [{"_value": "7"}]


def test_snapshots_change_nothing_unless_they_replace(tmp_path: Path) -> None:
    rows = [
        put("a", '{"name":"Ada"}'),
        put("b", '{"name":"Bob"}'),
        {"control": "snapshot-start"},
        put("b", '{"name":"Bob"}'),
        {"control": "snapshot-end"},
        put("c", '{"name":"Cy"}'),
        {"control": "snapshot-start"},
        put("d", '{"name":"Di"}'),
    ]
    keeping = WarehouseBench(tmp_path / "keeping", {"user": USER})
    keeping.batch(*rows)
    keeping.agree()
    assert [row[1] for row in keeping.state()] == ["a", "b", "c", "d"]
    assert len(keeping.history()) == 4
    replacing = WarehouseBench(tmp_path / "replacing", {"user": USER}, replaces=True)
    replacing.batch(*rows[:4])
    replacing.fold()
    replacing.batch(*rows[4:])
    assert [row[1] for row in replacing.state()] == ["b", "c", "d"]
    replacing.fold()
    assert [row[1] for row in replacing.state()] == ["b", "c", "d"]
    keeping.duck.close()
    replacing.duck.close()


def test_a_deleted_key_is_remembered_while_a_dead_letter_may_come_before_it(
    bench: WarehouseBench,
) -> None:
    bench.batch(put("a", '{"name":"Ada"}'), gone("a"))
    assert bench.fold().folded.rows == 0
    bench.batch(put("b", '{"name":1}'), put("b", '{"name":"Bob"}'), gone("b"))
    assert bench.fold().folded.rows == 1
    bench.agree()


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_events_batches_and_folds_comes_to_what_a_replay_does(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    for _ in range(6):
        rows = []
        for _ in range(chance.randrange(1, 25)):
            stream = chance.choice("st")
            resets = [{"control": "reset", "stream": stream}] if chance.random() < 0.2 else []
            value = f'{{"name":{chance.choice(["1", *4 * [chr(34) + "n" + chr(34)]])},"age":1}}'
            rows.append(
                chance.choice(
                    [
                        *6 * [put(chance.choice("abcdef"), value, stream=stream)],
                        *2 * [gone(chance.choice("abcdef"), stream=stream)],
                        put(chance.choice("ab"), "1", stream=stream, type="flag"),
                        *resets,
                        {"control": "up-to-date", "stream": stream},
                    ]
                )
            )
        bench.batch(*rows)
        if chance.random() < 0.5:
            for entity in bench.duck.entities():
                bench.fold(entity)
        bench.agree()
    bench.duck.close()


def test_the_state_as_of_a_batch_or_an_offset(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.batch({"control": "reset"}, put("b", '{"name":"Bob"}'))
    bench.fold()

    def keys(until: sql.Until) -> list[str]:
        rows = bench.duck.table(f"SELECT _key FROM {bench.duck.state_at('user', until)}")
        return [row["_key"] for row in rows.to_pylist()]

    assert keys(sql.Until(batch=1)) == ["a"]
    assert keys(sql.Until(batch=2)) == ["b"]
    assert keys(sql.Until(stream="s", generation=1, position=10)) == ["a"]
    assert keys(sql.Until(stream="s", generation=1, position=20)) == []
    assert keys(sql.NOW) == ["b"]


def test_state_and_history_as_of_every_batch_and_offset_are_those_of_a_replay(
    bench: WarehouseBench,
) -> None:
    for check in as_of_everything(bench):
        check(lambda query: [tuple(row.values()) for row in bench.duck.table(query).to_pylist()])


def test_columns_can_be_added_and_old_rows_get_them_too(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": type_schema("name STRING")})
    bench.batch(put("a", '{"name":"Ada","age":36}'))
    bench.fold()
    bench.types = {"user": USER}
    bench.duck = Duck(bench.warehouse, bench.types)
    query = "SELECT _key, name, age FROM state_user"
    assert bench.duck.sql(query).to_pylist() == [{"_key": "a", "name": "Ada", "age": 36}]
    bench.fold()
    assert bench.duck.sql(query).to_pylist() == [{"_key": "a", "name": "Ada", "age": 36}]
    stored = Table(bench.warehouse.state_uri("user"), USER.nullable).handle
    assert [field.name for field in stored.schema().fields][:4] == [
        "_stream",
        "_key",
        "name",
        "age",
    ]
    for schema in ("name STRING", "name INT, age INT"):
        with pytest.raises(InvalidPipeline, match=r"types\.user"):
            StateTable(bench.warehouse, "user", type_schema(schema)).check()
    StateTable(bench.warehouse, "user", USER).check()


def test_tables_can_be_read_by_every_engine(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}', timestamp="2026-01-01T00:00:00+01:00"))
    state = bench.fold()
    for table in (bench.warehouse.events.table, state.table):
        protocol = table.handle.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    times = bench.duck.sql("SELECT _time FROM state_user").to_pylist()[0]["_time"]
    assert times == datetime(2025, 12, 31, 23, tzinfo=UTC)


def test_readers_of_delta_rs_find_rows_by_any_column(bench: WarehouseBench) -> None:
    """A column without statistics must not look like one without values."""
    bench.batch(put("a", '{"name":"Ada","age":1}'), put("b", '{"age":2}'), gone("c"))
    bench.fold()
    for uri, column, value in (
        (bench.warehouse.state_uri("user"), "age", 2),
        (bench.warehouse.state_uri("user"), "_operation", "upsert"),
        (bench.warehouse.events.uri, "operation", "delete"),
        (bench.warehouse.events.uri, "value", '{"age":2}'),
    ):
        rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
        found = DeltaTable(uri).to_pyarrow_dataset().to_table(filter=ds.field(column) == value)
        assert found.to_pylist() == [row for row in rows if row[column] == value] != []


def test_the_state_as_of_a_time(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.batch(put("b", '{"name":"Bob"}'))  # both came at NOW
    second = timedelta(seconds=1)
    for until, count in ((NOW - second, 0), (NOW, 2), (NOW + second, 2)):
        rows = bench.duck.state_at("user", sql.Until(ingested=until))
        assert bench.duck.table(f"SELECT _key FROM {rows}").num_rows == count
    assert sql.parse_time("2026-01-01T02:00:00+02:00") == sql.parse_time("2026-01-01") == NOW
    with pytest.raises(QueryFailed, match="no time"):
        sql.parse_time("yesterday")


def test_events_can_be_ordered_by_what_readers_ask_for(bench: WarehouseBench) -> None:
    for number in range(6):
        bench.batch(*(put(f"k{n}{number}", '{"age":1}', stream=f"s{n}") for n in range(3)))
    before = bench.history()
    bench.warehouse.events.compact(["stream", "key"])
    bench.duck.refresh()
    assert len(bench.warehouse.events.files()) == 1
    assert bench.history() == before
    bench.batch(put("z", '{"age":1}'))  # and the writer goes on
    bench.agree()


def test_a_batch_is_known_again_and_a_second_writer_ends_the_first(bench: WarehouseBench) -> None:
    bench.batch(put("a", "{}"))
    assert bench.warehouse.events.has("q", 0)
    assert not bench.warehouse.events.has("q", 1)
    assert not bench.warehouse.events.has("other", 0)
    other = Warehouse(str(bench.path))
    other.open()
    with pytest.raises(WarehouseInUse, match="taken"):
        bench.warehouse.check()


def test_a_commit_on_what_is_no_longer_the_newest_fails(bench: WarehouseBench) -> None:
    bench.batch(put("a", "{}"))
    late = Warehouse(str(bench.path))
    seen = late.events.record
    bench.batch(put("b", "{}"))
    with pytest.raises(WarehouseInUse, match="at the same moment"):
        late.events.note(seen)
    bench.agree()


def test_a_live_writer_of_this_machine_is_not_pushed_aside(bench: WarehouseBench) -> None:
    note = bench.path / "_penstock" / "writer.json"
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            owner = {"host": socket.gethostname(), "process": other.pid}
            for moment in ("", process_start_id(other.pid)):  # earlier versions wrote none
                note.write_text(json.dumps({**owner, "started": moment}))
                with pytest.raises(WarehouseInUse, match=rf"process {other.pid} .* delete {note}"):
                    Warehouse(str(bench.path)).open()
            # The number was given again, to a process that has nothing to do with it.
            note.write_text(json.dumps({**owner, "started": process_start_id(os.getpid())}))
            Warehouse(str(bench.path)).open()
        finally:
            other.kill()
    note.write_text(json.dumps({**owner, "started": ""}))
    Warehouse(str(bench.path)).open()
    note_content = json.loads(note.read_text())
    assert (note_content["process"], note_content["started"]) == (
        os.getpid(),
        process_start_id(os.getpid()),
    )
    note.write_text(json.dumps({**owner, "host": "another", "process": 1}))
    Warehouse(str(bench.path)).open()


def test_processes_are_told_apart_by_when_they_were_started() -> None:
    assert process_start_id(os.getpid()) == process_start_id(os.getpid()) != ""
    assert process_start_id(os.getpid()) != process_start_id(1)
    assert is_same_process_alive(os.getpid(), process_start_id(os.getpid()))
    assert not is_same_process_alive(os.getpid(), process_start_id(1))
    with subprocess.Popen(["true"]) as ended:
        pass
    assert process_start_id(ended.pid) == ""
    assert not is_same_process_alive(ended.pid, "")


def test_what_another_engine_writes_is_seen_and_ends_the_pipeline_until_it_is_undone(
    bench: WarehouseBench,
) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.fold()
    events = DeltaTable(f"{bench.path}/events")
    ours = events.version()
    events.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    bench.batch(put("b", '{"name":"Bob"}'))
    ours = DeltaTable(f"{bench.path}/events").version()
    DeltaTable(f"{bench.path}/events").delete("key = 'a'")
    with pytest.raises(WarehouseInUse, match=rf"another engine \(version {ours + 1}, DELETE"):
        bench.batch(put("c", '{"name":"Cy"}'))
    with pytest.raises(WarehouseInUse, match="another engine"):
        Warehouse(str(bench.path)).open()
    assert bench.duck.sql("SELECT count(*) AS n FROM events").to_pylist() == [{"n": 1}], "read on"
    DeltaTable(f"{bench.path}/events").restore(ours)
    bench.append(bench.rows(put("d", '{"name":"Di"}')), 9)
    assert [row[1] for row in bench.state()] == ["a", "b", "d"]
    DeltaTable(f"{bench.path}/state/user").delete("_key = 'a'")
    bench.duck.refresh()  # as before every fold of a run
    with pytest.raises(WarehouseInUse, match="state/user was changed by another engine"):
        bench.fold()
    with pytest.raises(WarehouseInUse, match="another engine"):
        StateTable(bench.warehouse, "user", USER).check()


@pytest.mark.parametrize("count", [3, 70, 1100])
def test_any_number_of_upkeep_commits_does_not_bury_the_record(
    bench: WarehouseBench, count: int
) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    version = bench.warehouse.events.table.version
    assert version is not None
    commit = {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "engineInfo": "another"}}
    for number in range(version + 1, version + 1 + count):
        path = bench.path / "events" / "_delta_log" / f"{number:020d}.json"
        path.write_text(json.dumps(commit))
    again = Warehouse(str(bench.path))
    assert again.events.record.batch == 1
    bench.batch(put("b", '{"name":"Bob"}'))
    bench.agree()


def test_small_files_of_events_become_few_and_nothing_else_changes(bench: WarehouseBench) -> None:
    for number in range(5):
        bench.batch(put(str(number), '{"name":"x"}'))
    bench.warehouse.events.compact()
    bench.duck.refresh()
    assert len(bench.warehouse.events.files()) == 1
    assert bench.warehouse.events.record.batch == 5
    bench.agree()
    bench.batch(put("z", '{"name":"z"}'))
    bench.agree()


def test_a_wrong_query_says_what_there_is(bench: WarehouseBench) -> None:
    bench.batch(put("a", "{}"))
    with pytest.raises(
        QueryFailed, match="There are: events, dead_letters, collisions, state_user"
    ):
        bench.duck.sql("SELECT * FROM nothing")
