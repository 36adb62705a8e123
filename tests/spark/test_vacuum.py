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
from tests.spark.kept import USER, Kept, as_of_everything, gone, put

HOUR_S = 3600


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    found = Kept(tmp_path / "warehouse", {"user": USER})
    yield found
    found.duck.close()


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.parquet")}


def vacuum_all(kept: Kept, hours: int) -> int:
    keep = limits.PIPELINE_KEEP_HOURS
    removed = sum(len(each.vacuum(hours, keep=keep)) for each in kept.warehouse.tables())
    kept.duck.refresh()
    return removed


def age(path: Path, hours: float) -> None:
    then = time.time() - hours * HOUR_S
    os.utime(path, (then, then))


def test_only_files_of_the_newest_version_stay_if_nobody_reads_older_ones(kept: Kept) -> None:
    for number in range(8):
        kept.batch(put("a", f'{{"name":"{number}"}}'), put(str(number), "{}"), gone("a"))
        kept.fold()
    kept.warehouse.events.compact()
    state, events = kept.path / "state" / "user", kept.path / "events"
    assert (len(files(state)), len(files(events))) == (8, 9)
    assert vacuum_all(kept, 1) == 0, "they are minutes old"
    assert (len(files(state)), len(files(events))) == (8, 9)
    assert vacuum_all(kept, 0) == 7 + 8
    assert (len(files(state)), len(files(events))) == (1, 1)
    kept.agree()
    assert Warehouse(str(kept.path)).events.record == kept.warehouse.events.record
    kept.batch(put("z", "{}"))
    kept.fold()
    kept.agree()


def test_history_and_state_as_of_then_need_no_old_versions(kept: Kept) -> None:
    checks = list(as_of_everything(kept))
    kept.warehouse.events.compact()
    vacuum_all(kept, 0)
    assert len(files(kept.path / "events")) == 1
    for check in checks:
        check(lambda query: [tuple(row.values()) for row in kept.duck.table(query).to_pylist()])


def test_who_has_begun_to_read_reads_on(kept: Kept) -> None:
    kept.batch(put("a", '{"name":"old"}'))
    kept.fold()
    reader = Duck(Warehouse(str(kept.path)), {"user": USER})
    old = reader.state("user")
    kept.batch(put("a", '{"name":"new"}'))
    kept.fold()
    kept.warehouse.events.compact()
    vacuum_all(kept, 1)
    assert [row["name"] for row in reader.table(old).to_pylist()] == ["old"]
    reader.close()


def test_files_go_when_the_last_version_that_had_them_is_old_enough(kept: Kept) -> None:
    for number in range(3):
        kept.batch(put("a", f'{{"name":"{number}"}}'))
        kept.fold()
    state = kept.path / "state" / "user"
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
    assert vacuum_all(kept, 24) == 1
    assert files(state) == {second.name, third.name}
    kept.agree()


def test_what_a_killed_task_has_left_goes_and_what_is_not_of_a_table_stays(kept: Kept) -> None:
    kept.batch(put("a", "{}"))
    kept.fold()
    left = [kept.path / folder / "00000009-left.parquet" for folder in ("events", "state/user")]
    young = kept.path / "events" / "00000009-young.parquet"
    others = [
        kept.path / "_penstock" / "rewrite" / "chunks.parquet",
        kept.path / "_checkpoint" / "offsets" / "0",
        kept.path / "notes" / "mine.parquet",
    ]
    for path in (*left, young, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        if path != young:
            age(path, 30)
    assert vacuum_all(kept, 24) == 2
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (young, *others))
    kept.agree()


def test_the_log_stays_short_and_still_says_where_the_tables_stand(kept: Kept) -> None:
    kept.batch(put("a", '{"name":"Ada"}'))
    kept.fold()
    events = kept.warehouse.events
    for number in range(110):
        events.note(msgspec.structs.replace(events.record, events=number))
    log = kept.path / "events" / "_delta_log"
    assert len(list(log.glob("*.json"))) > 100
    for path in log.iterdir():
        age(path, 2)
    for table in kept.warehouse.tables():
        table.vacuum(24, keep=24)
    assert len(list(log.glob("*.json"))) < 20
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1
    again = Warehouse(str(kept.path))
    assert again.events.record.events == 109
    assert again.events.has("q", 0)
    kept.duck.refresh()
    assert kept.warehouse.events.record.events == 109
    kept.batch(put("b", '{"name":"Bob"}'))
    kept.fold()
    kept.agree()


def test_the_log_is_not_cut_off_below_what_it_says_last(kept: Kept) -> None:
    kept.batch(put("a", '{"name":"Ada"}'))
    wanted, table = kept.warehouse.events.record, kept.warehouse.events.table
    assert table.version is not None
    log = kept.path / "events" / "_delta_log"
    told = {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "engineInfo": "another"}}
    for number in range(table.version + 1, table.version + 4):
        (log / f"{number:020d}.json").write_text(json.dumps(told))
    DeltaTable(table.uri).create_checkpoint()
    for path in log.iterdir():
        age(path, 2)
    vacuum_all(kept, 24)
    assert len(list(log.glob("*.json"))) == 2
    assert Warehouse(str(kept.path)).events.record == wanted
    kept.batch(put("b", '{"name":"Bob"}'))
    kept.agree()


def test_upkeep_of_a_run_that_was_taken_over_buries_nothing(kept: Kept) -> None:
    for number in range(3):
        kept.batch(put("a", f'{{"name":"{number}"}}'))
    late = Warehouse(str(kept.path))
    tables = late.tables()
    versions = [late.events.table.version, *(each.version for each in tables)]  # looked at by now
    assert late.events.record.batch == 3
    kept.warehouse.open()
    kept.batch(put("b", '{"name":"new"}'))
    wanted = kept.warehouse.events.record
    late.events.compact()
    assert Warehouse(str(kept.path)).events.record == wanted
    left = kept.path / "events" / "00000009-left.parquet"
    left.write_text("x")
    age(left, 30)
    for table in tables:
        table.vacuum(24, keep=limits.PIPELINE_KEEP_HOURS)
    assert not left.exists()
    again = Warehouse(str(kept.path)).events
    assert again.record == wanted
    assert again.table.version is not None
    assert again.table.version > max(each for each in versions if each is not None) + 3
    kept.duck.refresh()
    kept.batch(put("c", '{"name":"newer"}'))
    kept.agree()


def test_tables_of_earlier_versions_learn_how_long_files_are_kept(kept: Kept) -> None:
    kept.batch(put("a", "{}"))
    [events] = [each for each in kept.warehouse.tables() if each.uri == kept.warehouse.events.uri]
    found = []
    for keep in (48, 48, 5):
        events.vacuum(48, keep=keep)
        name = "delta.deletedFileRetentionDuration"
        found.append((events.version, events.handle.metadata().configuration[name]))
    assert [words for _, words in found] == ["interval 48 hours"] * 2 + ["interval 5 hours"]
    assert found[0][0] == found[1][0], "no commit if it is as it should be"
    protocol = events.handle.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    kept.duck.refresh()
    kept.batch(put("b", "{}"))
    kept.agree()


def test_a_table_that_another_engine_has_changed_is_left_alone(kept: Kept) -> None:
    kept.batch(put("a", "{}"))
    kept.fold()
    DeltaTable(f"{kept.path}/state/user").delete("_key = 'a'")
    with pytest.raises(WarehouseInUse, match="another engine"):
        vacuum_all(kept, 0)
    assert len(files(kept.path / "state" / "user")) == 1


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


def test_a_pipeline_tidies_up_when_it_is_time_and_then_not_for_a_while(kept: Kept) -> None:
    clock = ManualClock(time.time_ns() // 1000)
    kept.batch(put("a", "{}"))
    left = kept.path / "events" / "00000009-left.parquet"
    left.write_text("x")
    age(left, 30)
    assert not vacuum_if_due(kept.warehouse, keep_hours=24, clock=clock), "it is new"
    clock.advance(limits.PIPELINE_TIDY_INTERVAL_S + 1)
    assert vacuum_if_due(kept.warehouse, keep_hours=24, clock=clock)
    assert not left.exists()
    assert not vacuum_if_due(kept.warehouse, keep_hours=24, clock=clock)
    other = Warehouse(str(kept.path))
    other.open()
    clock.advance(limits.PIPELINE_TIDY_INTERVAL_S + 1)
    with pytest.raises(WarehouseInUse, match="taken"):
        vacuum_if_due(kept.warehouse, keep_hours=24, clock=clock)


def test_the_command_tells_what_it_removes_and_keeps_off_a_running_pipeline(
    kept: Kept, tmp_path: Path
) -> None:
    for number in range(3):
        kept.batch(put("a", f'{{"name":"{number}"}}'))
        kept.fold()
    kept.warehouse.close()
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
    assert len(files(kept.path / "state" / "user")) == 3
    assert run()[1][-1] == ["0", "files", "removed"]
    assert run("--hours", "0") == (0, [*wanted, ["2", "files", "removed"]])
    assert len(files(kept.path / "state" / "user")) == 1
    note = kept.path / "_penstock" / "writer.json"
    note.write_text(json.dumps({"host": socket.gethostname(), "process": 1}))
    code, lines = run("--hours", "0")
    assert code != 0
    assert "one pipeline writes a warehouse at a time" in " ".join(map(" ".join, lines))
    kept.duck.refresh()
    kept.agree()
