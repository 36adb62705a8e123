"""Housekeeping of a warehouse: what nobody needs goes, what anybody may still read stays, and what
the tables say is the same afterwards. Without Spark.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from penstock import limits
from penstock.cli import main
from penstock.clock import ManualClock
from penstock.errors import WarehouseInUse
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import EventsCommit
from penstock.spark.warehouse.vacuum import is_due, vacuum_if_due
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import USER, WarehouseBench, as_of_everything, gone, put

HOUR_S = 3600


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WarehouseBench]:
    found = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    yield found
    found.duck.close()


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.parquet")}


def vacuum_all(bench: WarehouseBench, hours: int) -> int:
    keep = limits.PIPELINE_KEEP_HOURS
    removed = sum(len(each.vacuum(hours, keep=keep)) for each in bench.warehouse.tables())
    bench.duck.refresh()
    return removed


def age(path: Path, hours: float) -> None:
    then = time.time() - hours * HOUR_S
    os.utime(path, (then, then))


def test_only_files_of_the_newest_version_stay_if_nobody_reads_older_ones(
    bench: WarehouseBench,
) -> None:
    for number in range(8):
        bench.batch(put("a", f'{{"name":"{number}"}}'), put(str(number), "{}"), gone("a"))
        bench.fold()
    bench.warehouse.events.compact()
    state, events = bench.path / "state" / "user", bench.path / "events"
    assert (len(files(state)), len(files(events))) == (8, 9)
    assert vacuum_all(bench, 1) == 0, "they are minutes old"
    assert (len(files(state)), len(files(events))) == (8, 9)
    assert vacuum_all(bench, 0) == 7 + 8
    assert (len(files(state)), len(files(events))) == (1, 1)
    bench.agree()
    assert Warehouse(str(bench.path)).events.record == bench.warehouse.events.record
    bench.batch(put("z", "{}"))
    bench.fold()
    bench.agree()


def test_history_and_state_as_of_then_need_no_old_versions(bench: WarehouseBench) -> None:
    checks = list(as_of_everything(bench))
    bench.warehouse.events.compact()
    vacuum_all(bench, 0)
    assert len(files(bench.path / "events")) == 1
    for check in checks:
        check(lambda query: [tuple(row.values()) for row in bench.duck.table(query).to_pylist()])


def test_who_has_begun_to_read_reads_on(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"old"}'))
    bench.fold()
    reader = Duck(Warehouse(str(bench.path)), {"user": USER})
    old = reader.state("user")
    bench.batch(put("a", '{"name":"new"}'))
    bench.fold()
    bench.warehouse.events.compact()
    vacuum_all(bench, 1)
    assert [row["name"] for row in reader.table(old).to_pylist()] == ["old"]
    reader.close()


def test_files_go_when_the_last_version_that_had_them_is_old_enough(bench: WarehouseBench) -> None:
    for number in range(3):
        bench.batch(put("a", f'{{"name":"{number}"}}'))
        bench.fold()
    state = bench.path / "state" / "user"
    first, second, third = sorted(state.glob("*.parquet"))
    for each in (first, second, third):
        age(each, 100)
    # The first was replaced 25 hours ago, the second one 23 hours ago.
    for log in sorted((state / "_delta_log").glob("*.json")):
        text = log.read_text()
        for name, hours in ((first.name, 25), (second.name, 23)):
            lines = [json.loads(line) for line in text.splitlines()]
            for line in lines:
                if line.get("remove", {}).get("path") == name:
                    line["remove"]["deletionTimestamp"] = int((time.time() - hours * HOUR_S) * 1000)
            text = "\n".join(map(json.dumps, lines))
        log.write_text(text)
    assert vacuum_all(bench, 24) == 1
    assert files(state) == {second.name, third.name}
    bench.agree()


def test_what_a_killed_task_has_left_goes_and_what_is_not_of_a_table_stays(
    bench: WarehouseBench,
) -> None:
    bench.batch(put("a", "{}"))
    bench.fold()
    left = [bench.path / folder / "00000009-left.parquet" for folder in ("events", "state/user")]
    young = bench.path / "events" / "00000009-young.parquet"
    others = [
        bench.path / "_penstock" / "rewrite" / "chunks.parquet",
        bench.path / "_checkpoint" / "offsets" / "0",
        bench.path / "notes" / "mine.parquet",
    ]
    for path in (*left, young, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        if path != young:
            age(path, 30)
    assert vacuum_all(bench, 24) == 2
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (young, *others))
    bench.agree()


def test_the_log_stays_short_and_still_says_where_the_tables_stand(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    bench.fold()
    events = bench.warehouse.events
    for number in range(110):
        events.note(msgspec.structs.replace(events.record, events=number))
    log = bench.path / "events" / "_delta_log"
    assert len(list(log.glob("*.json"))) > 100
    for path in log.iterdir():
        age(path, 2)
    for table in bench.warehouse.tables():
        table.vacuum(24, keep=24)
    assert len(list(log.glob("*.json"))) < 20
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1
    again = Warehouse(str(bench.path))
    assert again.events.record.events == 109
    assert again.events.has("q", 0)
    bench.duck.refresh()
    assert bench.warehouse.events.record.events == 109
    bench.batch(put("b", '{"name":"Bob"}'))
    bench.fold()
    bench.agree()


def test_the_log_is_not_cut_off_below_what_it_says_last(bench: WarehouseBench) -> None:
    bench.batch(put("a", '{"name":"Ada"}'))
    wanted, table = bench.warehouse.events.record, bench.warehouse.events.table
    assert table.version is not None
    log = bench.path / "events" / "_delta_log"
    commit = {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "engineInfo": "another"}}
    for number in range(table.version + 1, table.version + 4):
        (log / f"{number:020d}.json").write_text(json.dumps(commit))
    DeltaTable(table.uri).create_checkpoint()
    for path in log.iterdir():
        age(path, 2)
    vacuum_all(bench, 24)
    assert len(list(log.glob("*.json"))) == 2
    assert Warehouse(str(bench.path)).events.record == wanted
    bench.batch(put("b", '{"name":"Bob"}'))
    bench.agree()


def test_upkeep_of_a_run_that_was_taken_over_buries_nothing(bench: WarehouseBench) -> None:
    for number in range(3):
        bench.batch(put("a", f'{{"name":"{number}"}}'))
    late = Warehouse(str(bench.path))
    tables = late.tables()
    versions = [late.events.table.version, *(each.version for each in tables)]  # looked at by now
    assert late.events.record.batch == 3
    bench.warehouse.open()
    bench.batch(put("b", '{"name":"new"}'))
    wanted = bench.warehouse.events.record
    late.events.compact()
    assert Warehouse(str(bench.path)).events.record == wanted
    left = bench.path / "events" / "00000009-left.parquet"
    left.write_text("x")
    age(left, 30)
    for table in tables:
        table.vacuum(24, keep=limits.PIPELINE_KEEP_HOURS)
    assert not left.exists()
    again = Warehouse(str(bench.path)).events
    assert again.record == wanted
    assert again.table.version is not None
    assert again.table.version > max(each for each in versions if each is not None) + 3
    bench.duck.refresh()
    bench.batch(put("c", '{"name":"newer"}'))
    bench.agree()


def test_tables_of_earlier_versions_learn_how_long_files_are_kept(bench: WarehouseBench) -> None:
    bench.batch(put("a", "{}"))
    [events] = [each for each in bench.warehouse.tables() if each.uri == bench.warehouse.events.uri]
    found = []
    for keep in (48, 48, 5):
        events.vacuum(48, keep=keep)
        name = "delta.deletedFileRetentionDuration"
        found.append((events.version, events.handle.metadata().configuration[name]))
    assert [words for _, words in found] == ["interval 48 hours"] * 2 + ["interval 5 hours"]
    assert found[0][0] == found[1][0], "no commit if it is as it should be"
    protocol = events.handle.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    bench.duck.refresh()
    bench.batch(put("b", "{}"))
    bench.agree()


def test_a_table_that_another_engine_has_changed_is_left_alone(bench: WarehouseBench) -> None:
    bench.batch(put("a", "{}"))
    bench.fold()
    DeltaTable(f"{bench.path}/state/user").delete("_key = 'a'")
    with pytest.raises(WarehouseInUse, match="another engine"):
        vacuum_all(bench, 0)
    assert len(files(bench.path / "state" / "user")) == 1


@pytest.mark.parametrize(
    ("hours", "passed_s", "wanted"),
    [
        (24, limits.PIPELINE_TIDY_INTERVAL_S, True),
        (24, limits.PIPELINE_TIDY_INTERVAL_S - 1, False),
        (1, limits.PIPELINE_TIDY_INTERVAL_S, True),
        (0, 10**9, False),
    ],
)
def test_it_is_done_now_and_then_unless_it_is_switched_off(
    hours: int, passed_s: int, wanted: bool
) -> None:
    record = EventsCommit(tidied_s=1000)
    assert is_due(record, keep_hours=hours, now_s=1000 + passed_s) is wanted


def test_a_pipeline_tidies_up_when_it_is_time_and_then_not_for_a_while(
    bench: WarehouseBench,
) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    bench.batch(put("a", "{}"))
    left = bench.path / "events" / "00000009-left.parquet"
    left.write_text("x")
    age(left, 30)
    assert not vacuum_if_due(bench.warehouse, keep_hours=24, clock=clock), "it is new"
    clock.advance(limits.PIPELINE_TIDY_INTERVAL_S + 1)
    assert vacuum_if_due(bench.warehouse, keep_hours=24, clock=clock)
    assert not left.exists()
    assert not vacuum_if_due(bench.warehouse, keep_hours=24, clock=clock)
    other = Warehouse(str(bench.path))
    other.open()
    clock.advance(limits.PIPELINE_TIDY_INTERVAL_S + 1)
    with pytest.raises(WarehouseInUse, match="taken"):
        vacuum_if_due(bench.warehouse, keep_hours=24, clock=clock)


def test_the_command_tells_what_it_removes_and_keeps_off_a_running_pipeline(
    bench: WarehouseBench, tmp_path: Path
) -> None:
    for number in range(3):
        bench.batch(put("a", f'{{"name":"{number}"}}'))
        bench.fold()
    bench.warehouse.close()
    file = tmp_path / "pipeline.toml"
    file.write_text(
        '[source]\nurl = "http://127.0.0.1:9"\nstreams = ["s"]\n[warehouse]\npath = "warehouse"\n'
    )

    def run(*words: str) -> tuple[int, list[list[str]]]:
        done = CliRunner().invoke(main, ["pipeline", "vacuum", str(file), *words])
        return done.exit_code, [line.split() for line in done.output.splitlines()]

    wanted = [["events", "0"], ["state/user", "2"]]
    would = [["2", "files", "would", "be", "removed"]]
    assert run("--hours", "0", "--dry-run") == (0, [*wanted, *would])
    assert len(files(bench.path / "state" / "user")) == 3
    assert run()[1][-1] == ["0", "files", "removed"]
    assert run("--hours", "0") == (0, [*wanted, ["2", "files", "removed"]])
    assert len(files(bench.path / "state" / "user")) == 1
    note = bench.path / "_penstock" / "writer.json"
    note.write_text(json.dumps({"host": socket.gethostname(), "process": 1}))
    code, lines = run("--hours", "0")
    assert code != 0
    assert "one pipeline writes a warehouse at a time" in " ".join(map(" ".join, lines))
    bench.duck.refresh()
    bench.agree()
