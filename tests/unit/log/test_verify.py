"""`verify` finds every kind of damage, names its place, and changes nothing in the folder."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StoreError, StoreLocked, StoreTooNew
from penstock.log import journal
from penstock.log import report as reports
from penstock.log.disk import CATALOG_FILE
from penstock.log.files import Files
from penstock.log.records import CreateMeta, encode_append, encode_create, encode_delete
from penstock.log.segment import BLOCK_BYTES, ENTRY, SegmentFolder
from penstock.log.verify import Problem, Report, verify
from tests.helpers.folders import (
    MESSAGE_BYTES,
    change_row,
    fingerprint,
    flip,
    make_clean,
    make_crashed,
    row_of,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    make_clean(folder / "clean")
    make_crashed(folder / "crashed")
    make_crashed(folder / "buffered", durability="buffered")
    return folder


@pytest.fixture
def clean(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "clean", tmp_path / "data"))


@pytest.fixture
def crashed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "crashed", tmp_path / "data"))


def check(folder: Path) -> Report:
    """Verify, and see that the folder is as it was."""
    before = fingerprint(folder)
    report = verify(folder)
    assert fingerprint(folder) == before
    return report


def only_problem(folder: Path) -> Problem:
    report = check(folder)
    assert report.problem_count == 1, [str(problem) for problem in report.problems]
    return report.problems[0]


def codes(report: Report) -> list[str]:
    return [problem.code for problem in report.problems]


def segment_path(folder: Path, path: str, number: int, *, index: bool = False) -> Path:
    row = row_of(folder, path)
    segments = SegmentFolder(folder / "segments")
    place = segments.index_path if index else segments.data_path
    return place(row.id, row.segments[number].base)


def name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def edit(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as connection:
        connection.execute(statement)
        connection.commit()


# -- folders that are fine


def test_a_cleanly_stopped_folder_is_clean(clean: Path) -> None:
    report = check(clean)
    assert (report.problems, report.notes) == ([], [])
    assert (report.format, report.clean) == (1, True)
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
    told: list[tuple[int, int]] = []
    verify(clean, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


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
        ("bin/big", {"inline": b"x"}, "row-inconsistent", "has segments too"),
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
        ("DELETE FROM segments WHERE base > 0", "row-inconsistent", "not at the tail"),
        ("DELETE FROM segments WHERE base = 0", "row-inconsistent", "first segment starts at"),
        ("UPDATE segments SET length = length - 1", "row-inconsistent", "the next starts at"),
        ("UPDATE segments SET open_crc = open_crc + 1", "block-damaged", "block 2"),
        (
            "UPDATE segments SET first_ordinal = first_ordinal + 1 WHERE base > 0",
            "ordinal-wrong",
            "but it is message",
        ),
        (
            "UPDATE segments SET open_ordinal = open_ordinal + 1",
            "ordinal-wrong",
            "block 2 is said to start in message",
        ),
        ("UPDATE segments SET length = 'x'", "row-damaged", "not numbers"),
        ("INSERT INTO producers VALUES (999, 'p', 0, 0)", "row-stray", "there is no stream"),
        ("INSERT INTO segments VALUES (999, 0, 0, 0, 0, 0, 0)", "row-stray", "there is no stream"),
        ("DELETE FROM producers", "producers-wrong", "the catalog has 0"),
        ("UPDATE producers SET seq = 7", "row-inconsistent", "whose state is"),
        ("UPDATE meta SET value = 2 WHERE key = 'next_id'", "row-inconsistent", "the id 2"),
        ("UPDATE meta SET value = 'x'", "catalog-damaged", "not numbers"),
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


def test_a_missing_catalog_is_found(crashed: Path) -> None:
    for file in crashed.glob(f"{CATALOG_FILE}*"):
        file.unlink()
    assert "catalog-missing" in codes(check(crashed))


# -- the journal


class LastFile:
    """The journal file that was written to last."""

    def __init__(self, folder: Path) -> None:
        self.path = sorted((folder / "journal").glob("*.journal"))[-1]
        self.name = name(folder, self.path)
        scan = journal.find_batches(self.path.read_bytes(), self.path.name)
        assert scan is not None
        assert len(scan.batches) > 2
        self.scan = scan
        self.next_lsn = scan.head.first_lsn + sum(batch.records for batch in scan.batches)

    def starts(self) -> Iterator[int]:
        position = journal.HEAD_BYTES
        for batch in self.scan.batches:
            yield position
            position += journal.batch_bytes(batch)

    def add(self, *records: bytes, claimed: int | None = None) -> None:
        parts = [*records, *[b""] * ((claimed or len(records)) - len(records))]
        head, body = journal.encode_batch(self.scan.head.file_id, self.next_lsn, parts)
        data = bytearray(self.path.read_bytes())
        data[self.scan.end : self.scan.end + len(head) + len(body)] = head + body
        self.path.write_bytes(data)


def test_a_flipped_bit_in_the_middle_of_the_journal_is_found(crashed: Path) -> None:
    file = LastFile(crashed)
    start = list(file.starts())[1]
    flip(file.path, start + 40)
    problem = only_problem(crashed)
    assert (problem.code, problem.file, problem.position) == ("journal-damaged", file.name, start)
    assert "refuses to start" in problem.advice


def test_a_torn_end_of_the_journal_is_noted(crashed: Path) -> None:
    file = LastFile(crashed)
    start = list(file.starts())[-1]
    flip(file.path, start + 40)
    report = check(crashed)
    assert report.problems == []
    assert report.notes == [
        f"{file.name}, byte {start}: the torn batch here was never acknowledged"
    ]


def test_a_buffered_journal_is_cut_where_it_is_damaged(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "buffered", tmp_path / "data"))
    assert check(folder).notes == []
    file = LastFile(folder)
    start = list(file.starts())[1]
    flip(file.path, start + 40)
    report = check(folder)
    assert report.problems == []
    assert [f"{file.name}, byte {start}" in note for note in report.notes] == [True]


def test_a_damaged_head_of_the_journal_is_found(crashed: Path) -> None:
    file = LastFile(crashed)
    flip(file.path, 20)
    problem = only_problem(crashed)
    assert (problem.code, problem.file, problem.position) == ("journal-damaged", file.name, 0)


def test_a_journal_file_that_was_never_finished_is_noted(crashed: Path) -> None:
    (crashed / "journal" / f"{999:016d}.journal").write_bytes(bytes(4096))
    report = check(crashed)
    assert report.problems == []
    assert "never finished" in report.notes[0]


def test_a_recycled_file_under_an_old_name_is_noted(crashed: Path) -> None:
    file = LastFile(crashed)
    shutil.copy(file.path, file.path.with_name(f"{999:016d}.journal"))
    report = check(crashed)
    assert report.problems == []
    assert "recycled" in report.notes[0]


def test_a_missing_journal_file_is_found_by_its_records(crashed: Path) -> None:
    missing, after = sorted((crashed / "journal").glob("*.journal"))[-2:]
    missing.unlink()
    report = check(crashed)
    assert codes(report)[0] == "journal-gap"
    assert report.problems[0].file == name(crashed, after)
    assert "are missing before it" in report.problems[0].what


def test_journal_files_that_overlap_are_found(crashed: Path) -> None:
    file = LastFile(crashed)
    head = file.scan.head._replace(number=file.scan.head.number + 1)
    data = journal.encode_head(head) + file.path.read_bytes()[journal.HEAD_BYTES :]
    file.path.with_name(f"{head.number:016d}.journal").write_bytes(data)
    assert "journal-overlap" in codes(check(crashed))


BIG, SMALL, GONE = 1, 2, 6
"""Ids that `fill` gives to json/big, json/small and json/gone."""


def append_record(stream_id: int, start: int, count: int, payload: bytes) -> bytes:
    return encode_append(
        stream_id, start, count, 1, payload, closes=False, producer=None, stream_seq=None
    )


@pytest.mark.parametrize(
    ("record", "code", "words"),
    [
        (append_record(BIG, 7, 1, b"1,\n"), "journal-append", "ends at 520000, not 7"),
        (
            append_record(BIG, 520_000, 2, b"1,\n"),
            "journal-append",
            "claims 2 messages but holds 1",
        ),
        (append_record(BIG, 520_000, 1, b"1\n"), "journal-append", "claims 1 messages"),
        (append_record(SMALL, 17, 1, b"1,\n"), "journal-append", "closed already"),
        (append_record(999, 0, 1, b"1,\n"), "journal-unknown-stream", "names stream 999"),
        (b"\x10\0\0\0\x07" + bytes(11), "journal-record", "needs a newer Penstock"),
        (b"\x10\0\0\0", "journal-record", "cut short"),
        (b"\x10\0\0\0\x02" + bytes(11), "journal-record", "cut short"),
        (
            encode_create(50, CreateMeta("json/big", "text/plain", 1), b""),
            "path-taken",
            "are both at this path",
        ),
        (
            encode_create(50, CreateMeta("new", "application/json", 1, count=3), b"1,\n"),
            "journal-append",
            "claims 3 messages but holds 1",
        ),
    ],
)
def test_a_record_that_cannot_follow_is_found(
    crashed: Path, record: bytes, code: str, words: str
) -> None:
    file = LastFile(crashed)
    file.add(record)
    report = check(crashed)
    assert codes(report) == [code]
    assert words in report.problems[0].what
    if code != "path-taken":
        assert (report.problems[0].file, report.problems[0].position) == (file.name, file.scan.end)


def test_a_batch_that_lacks_records_is_found(crashed: Path) -> None:
    file = LastFile(crashed)
    file.add(append_record(BIG, 520_000, 1, b"1,\n"), claimed=2)
    assert "has 1 records, its head says 2" in only_problem(crashed).what


def test_a_stream_that_lost_its_row_before_it_was_deleted_is_no_problem(crashed: Path) -> None:
    file = LastFile(crashed)
    file.add(append_record(999, 0, 1, b"1,\n"), encode_delete(999, 1, expired=False))
    assert check(crashed).problems == []


def test_records_for_a_deleted_stream_are_no_problem(crashed: Path) -> None:
    file = LastFile(crashed)
    file.add(append_record(GONE, 0, 1, b"1,\n"))
    assert check(crashed).problems == []


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
    (clean / "PENSTOCK").write_text('{"format": 2}')
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
