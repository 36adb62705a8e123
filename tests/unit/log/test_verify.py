"""`verify` finds every kind of damage, names its place, and changes nothing in the folder."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StoreError, StoreLocked, StoreTooNew
from penstock.log.disk.files import Files
from penstock.log.disk.segment import BLOCK_BYTES, ENTRY, SegmentFolder
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.offline import report as reports
from penstock.log.offline.verify import verify
from tests.helpers.folders import (
    MESSAGE_BYTES,
    change_row,
    check,
    codes,
    flip,
    name,
    only_problem,
    row_of,
)


def segment_path(folder: Path, path: str, number: int, *, index: bool = False) -> Path:
    row = row_of(folder, path)
    segments = SegmentFolder(folder / "segments")
    path_of = segments.index_path if index else segments.data_path
    return path_of(row.id, row.segments[number].base)


def edit(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as connection:
        connection.execute(statement)
        connection.commit()


# -- folders that are fine


def test_a_cleanly_stopped_folder_is_clean(clean: Path) -> None:
    report = check(clean)
    assert (report.problems, report.notes) == ([], [])
    assert (report.format, report.clean) == (2, True)
    assert report.streams == 6
    assert report.messages == 400 + 40 + 3 + 1 + 1
    assert report.bytes == 400 * MESSAGE_BYTES + 40 * 7000 + 25 + 7 + MESSAGE_BYTES
    assert report.segments >= 6
    assert report.blocks >= 10
    assert report.inline == 3
    assert report.journal_files == 1
    assert report.last_lsn == report.checkpoint_lsn


def test_a_crashed_folder_is_clean_and_counts_what_only_the_journal_has(crashed: Path) -> None:
    assert (crashed / f"{CATALOG_FILE}-wal").stat().st_size > 0
    report = check(crashed)
    assert (report.problems, report.notes) == ([], [])
    assert report.clean is False
    assert report.streams == 6
    assert report.messages == 520 + 40 + 3 + 2 + 1
    assert report.bytes == 520 * MESSAGE_BYTES + 40 * 7000 + 25 + 12 + 8
    assert report.last_lsn == report.checkpoint_lsn + 123
    assert report.journal_files > 2


def test_a_folder_that_never_got_a_stream_is_clean(tmp_path: Path) -> None:
    (tmp_path / "PENSTOCK").write_text('{"format": 1, "store_id": "x"}\n')
    assert check(tmp_path).problems == []
    (tmp_path / CATALOG_FILE).touch()
    assert check(tmp_path).problems == []


def test_progress_reaches_the_total(clean: Path) -> None:
    calls: list[tuple[int, int]] = []
    verify(clean, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]


# -- segments and indexes


@pytest.mark.parametrize("path", ["json/big", "bin/big"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_in_a_block_is_found_at_its_block(
    clean: Path, path: str, number: int
) -> None:
    file = segment_path(clean, path, number)
    flip(file, BLOCK_BYTES + 70)
    problem = only_problem(clean)
    assert problem.code == "block-damaged"
    assert (problem.file, problem.position) == (name(clean, file), BLOCK_BYTES)
    assert problem.stream == path


def test_a_flipped_bit_in_the_open_block_is_found(clean: Path) -> None:
    file = segment_path(clean, "json/big", -1)
    flip(file, file.stat().st_size - 5)
    problem = only_problem(clean)
    assert (problem.code, problem.file) == ("block-damaged", name(clean, file))
    assert problem.position == file.stat().st_size // BLOCK_BYTES * BLOCK_BYTES


def test_a_flipped_bit_in_the_index_is_found_at_its_entry(clean: Path) -> None:
    file = segment_path(clean, "json/big", 0, index=True)
    flip(file, ENTRY.size + 3)
    problem = only_problem(clean)
    assert problem.code == "index-damaged"
    assert (problem.file, problem.position) == (name(clean, file), ENTRY.size)


@pytest.mark.parametrize(("index", "code"), [(False, "segment-missing"), (True, "index-missing")])
def test_a_missing_file_is_found(clean: Path, index: bool, code: str) -> None:
    file = segment_path(clean, "bin/big", 0, index=index)
    file.unlink()
    problem = only_problem(clean)
    assert (problem.code, problem.file, problem.stream) == (code, name(clean, file), "bin/big")


@pytest.mark.parametrize(("index", "code"), [(False, "segment-short"), (True, "index-short")])
def test_a_truncated_file_is_found_at_its_end(clean: Path, index: bool, code: str) -> None:
    file = segment_path(clean, "json/big", 1, index=index)
    size = file.stat().st_size - 10
    with file.open("r+b") as opened:
        opened.truncate(size)
    problem = only_problem(clean)
    assert (problem.code, problem.file, problem.position) == (code, name(clean, file), size)


def test_bytes_that_an_unfinished_checkpoint_wrote_are_noted(crashed: Path) -> None:
    file = segment_path(crashed, "json/big", -1)
    with file.open("ab") as opened:
        opened.write(b"y" * 100)
    report = check(crashed)
    assert report.problems == []
    assert [f"{name(crashed, file)} has 100 bytes behind" in note for note in report.notes] == [
        True
    ]


def test_bytes_behind_the_end_that_no_journal_has_are_a_problem(clean: Path) -> None:
    file = segment_path(clean, "json/big", -1)
    size = file.stat().st_size
    with file.open("ab") as opened:
        opened.write(b"y" * 100)
    problem = only_problem(clean)
    assert (problem.code, problem.file, problem.position) == (
        "segment-long",
        name(clean, file),
        size,
    )


def test_files_without_a_row_are_noted(clean: Path) -> None:
    orphan = clean / "segments" / "ff" / f"{0xFF:016x}-{0:016x}.segment"
    orphan.parent.mkdir()
    orphan.write_bytes(b"left over")
    (clean / "segments" / "ff" / "not-ours.txt").write_text("?")
    report = check(clean)
    assert report.problems == []
    assert any(name(clean, orphan) in note and "9 bytes" in note for note in report.notes)
    assert any("not-ours.txt is not a file" in note for note in report.notes)


# -- the catalog


def test_a_changed_row_is_found(clean: Path) -> None:
    stream_id = row_of(clean, "json/small").id
    edit(clean, "UPDATE streams SET stream_seq = 'other' WHERE path = 'json/small'")
    problem = only_problem(clean)
    assert (problem.code, problem.file) == ("row-damaged", CATALOG_FILE)
    assert f"stream {stream_id}" in problem.what


@pytest.mark.parametrize("value", ["'text'", "x'ff'", "cast(x'ff' as text)", "7"])
def test_a_row_whose_bytes_changed_their_type_is_found(clean: Path, value: str) -> None:
    edit(clean, f"UPDATE streams SET inline = {value} WHERE path = 'json/small'")
    assert codes(check(clean)) == ["row-damaged"]


@pytest.mark.parametrize(
    ("path", "changes", "code", "words"),
    [
        ("json/big", {"messages": 300}, "row-inconsistent", "out of order"),
        ("json/big", {"messages": 401}, "count-wrong", "claims 401 messages, its bytes hold 400"),
        ("json/small", {"messages": 2}, "count-wrong", "claims 2 messages, its bytes hold 3"),
        ("json/big", {"tail": 400_001}, "row-inconsistent", "not at the tail, 400001"),
        ("json/small", {"tail": 7}, "row-inconsistent", "holds 25 bytes, not 7"),
        ("json/small", {"earliest": 99}, "row-inconsistent", "starts at 99"),
        ("json/small", {"closed": False}, "row-inconsistent", "closed by"),
        ("json/small", {"applied_lsn": 10**6}, "row-inconsistent", "up to record 1000000"),
        ("bin/small", {"deadline_us": 1}, "row-inconsistent", "deadline 1"),
        ("bin/small", {"producer_total": 1}, "producers-wrong", "claims 1 producers"),
        ("json/empty", {"messages": 1}, "row-inconsistent", "0 bytes and 1 messages"),
    ],
)
def test_a_row_that_cannot_be_true_is_found(
    clean: Path, path: str, changes: dict[str, object], code: str, words: str
) -> None:
    change_row(clean, path, **changes)
    report = check(clean)
    assert code in codes(report)
    assert any(words in problem.what for problem in report.problems), report.problems
    assert {problem.file for problem in report.problems} == {CATALOG_FILE}


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("DELETE FROM segments WHERE base > 0", "row-damaged", "its checksum"),
        ("DELETE FROM segments WHERE base = 0", "row-damaged", "its checksum"),
        ("UPDATE segments SET length = length - 1", "row-damaged", "its checksum"),
        ("UPDATE segments SET open_crc = open_crc + 1", "row-damaged", "its checksum"),
        (
            "UPDATE segments SET first_ordinal = first_ordinal + 1 WHERE base > 0",
            "row-damaged",
            "its checksum",
        ),
        (
            "UPDATE segments SET open_ordinal = open_ordinal + 1",
            "row-damaged",
            "its checksum",
        ),
        ("UPDATE segments SET length = 'x'", "row-damaged", "its checksum"),
        ("INSERT INTO producers VALUES (999, 'p', 0, 0, 0)", "row-stray", "there is no stream"),
        ("INSERT INTO segments VALUES (999, 0, 0, 0, 0, 0, 0)", "row-stray", "there is no stream"),
        ("DELETE FROM producers", "producers-wrong", "the catalog has 0"),
        ("UPDATE producers SET seq = 7", "producer-damaged", "its checksum"),
        ("UPDATE producers SET epoch = epoch + 1", "producer-damaged", "its checksum"),
        ("UPDATE producers SET producer_id = 'other'", "producer-damaged", "'other'"),
        ("UPDATE producers SET crc = NULL", "producer-damaged", "its checksum"),
        ("UPDATE meta SET value = 2 WHERE key = 'next_id'", "catalog-damaged", "its checksum"),
        ("UPDATE meta SET value = 'x'", "catalog-damaged", "its checksum"),
        ("DROP TABLE producers", "catalog-damaged", "no such table"),
    ],
)
def test_tables_that_contradict_each_other_are_found(
    clean: Path, statement: str, code: str, words: str
) -> None:
    edit(clean, statement)
    report = check(clean)
    assert code in codes(report)
    assert any(words in problem.what for problem in report.problems), report.problems


def test_a_catalog_that_is_no_database_is_found(clean: Path) -> None:
    (clean / CATALOG_FILE).write_bytes(b"not a database" * 1000)
    assert only_problem(clean).code == "catalog-damaged"


def test_a_damaged_page_of_the_catalog_is_found(clean: Path) -> None:
    file = clean / CATALOG_FILE
    data = bytearray(file.read_bytes())
    data[4096:4296] = bytes(200)
    file.write_bytes(data)
    assert "catalog-damaged" in codes(check(clean))


def test_no_flipped_bit_of_the_catalog_stops_the_check(clean: Path) -> None:
    file = clean / CATALOG_FILE
    whole = file.read_bytes()
    places = [position for position, byte in enumerate(whole) if byte]
    found = 0
    for position in random.Random(7).sample(places, 60):
        data = bytearray(whole)
        data[position] ^= 0x80
        file.write_bytes(data)
        report = verify(clean)
        found += report.problem_count > 0
        assert all("\n" not in str(problem) for problem in report.problems)
    assert found > 30  # the rest are free pages, and counters that SQLite does not rely on


def test_a_missing_catalog_is_found(crashed: Path) -> None:
    for file in crashed.glob(f"{CATALOG_FILE}*"):
        file.unlink()
    assert "catalog-missing" in codes(check(crashed))


# -- the folder as a whole


def test_a_folder_in_use_is_refused_and_held_while_it_is_checked(clean: Path) -> None:
    files = Files()
    with closing(files.lock(clean / "LOCK")), pytest.raises(StoreLocked, match="in use"):
        verify(clean)
    tried: list[str] = []

    def try_to_start(done: int, total: int) -> None:
        with pytest.raises(StoreLocked):
            files.lock(clean / "LOCK")
        tried.append("refused")

    verify(clean, progress=try_to_start)
    assert tried
    files.lock(clean / "LOCK").close()


def test_a_folder_without_its_lock_file_can_be_checked(clean: Path) -> None:
    (clean / "LOCK").unlink()
    assert check(clean).problems == []


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.unlink(), lambda path: path.write_text("{}"), lambda p: p.write_text("[1]")],
)
def test_a_format_file_that_is_gone_or_unreadable_is_found(
    clean: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(clean / "PENSTOCK")
    assert only_problem(clean).code in ("format-missing", "format-damaged")


def test_a_newer_format_is_refused(clean: Path) -> None:
    (clean / "PENSTOCK").write_text('{"format": 4}')
    with pytest.raises(StoreTooNew):
        verify(clean)


def test_any_other_folder_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match="not a Penstock data folder"):
            verify(folder)


def test_a_report_keeps_no_more_problems_than_it_may(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PROBLEMS_MAX", 2)
    shutil.rmtree(clean / "segments")
    report = verify(clean)
    assert len(report.problems) == 2
    assert report.problem_count > 2
