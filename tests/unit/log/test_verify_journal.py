"""`verify` tells damage in the journal from a torn end, and sees records that cannot follow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.append_record import encode_append
from penstock.log.disk import journal
from penstock.log.disk.files import Files
from penstock.log.disk.journal_mark import encode_mark, read_mark
from penstock.log.records import (
    CreateMeta,
    encode_create,
    encode_delete,
    encode_snapshot,
)
from tests.helpers.folders import check, codes, flip, name, only_problem


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
    (note,) = report.notes
    assert note.startswith(f"{file.name}, byte {start}: {file.scan.end - start} bytes here are an ")
    assert "incomplete or damaged batch; the last stop was not clean, which explains one" in note


def test_an_incomplete_batch_after_a_clean_stop_is_a_problem(clean: Path) -> None:
    """No crash explains it, so that it is damage, though the catalog has everything."""
    file = LastFile(clean)
    start = list(file.starts())[-1]
    flip(file.path, start + 40)
    problems = check(clean).problems
    assert {problem.code for problem in problems} == {"journal-incomplete", "journal-lost"}
    assert {(problem.file, problem.position) for problem in problems} == {(file.name, start)}
    assert all("incomplete or damaged" in p.what or "ends with record" in p.what for p in problems)
    assert all("goes on without it" in problem.advice for problem in problems)


def test_a_buffered_journal_is_cut_where_it_is_damaged(buffered: Path) -> None:
    assert check(buffered).notes == []
    file = LastFile(buffered)
    start = list(file.starts())[1]
    flip(file.path, start + 40)
    report = check(buffered)
    assert report.problems == []
    assert [f"{file.name}, byte {start}" in note for note in report.notes] == [True]


def test_a_damaged_head_of_the_journal_is_found(crashed: Path) -> None:
    file = LastFile(crashed)
    flip(file.path, 20)
    problem = only_problem(crashed)
    assert (problem.code, problem.file) == ("journal-damaged", file.name)
    assert "damaged at byte 0: its head is unreadable" in problem.what


def test_a_damaged_head_of_an_earlier_file_is_found(crashed: Path) -> None:
    path = sorted((crashed / "journal").glob("*.journal"))[-2]
    flip(path, 20)
    problem = check(crashed).problems[0]
    assert (problem.code, problem.file) == ("journal-damaged", name(crashed, path))


def test_a_last_file_that_is_shorter_than_it_was_made_is_a_problem(crashed: Path) -> None:
    file = LastFile(crashed)
    for size in (0, 20, journal.HEAD_BYTES, file.scan.end - 1, file.scan.end, 64 * 1024 - 1):
        with file.path.open("r+b") as opened:
            opened.truncate(size)
        problem = only_problem(crashed)
        assert (problem.code, problem.file) == ("journal-lost", file.name)
        assert f"it has {size} bytes, not 65536" in problem.what
        assert "refuses to start" in problem.advice


def test_a_last_file_that_is_not_there_is_a_problem(crashed: Path) -> None:
    file = LastFile(crashed)
    file.path.unlink()
    problem = only_problem(crashed)
    assert (problem.code, problem.file) == ("journal-lost", file.name)
    assert "is missing" in problem.what


@pytest.mark.parametrize("other", [f"{999:016d}.journal", "x.journal", f"{15:016d}.spare", "saved"])
def test_a_last_file_under_another_name_is_found(crashed: Path, other: str) -> None:
    file = LastFile(crashed)
    file.path.rename(file.path.with_name(other))
    problem = check(crashed).problems[0]
    assert (problem.code, problem.file) == ("journal-lost", file.name)
    assert f"is missing: {other} is that file, so rename it back" in problem.what


@pytest.mark.parametrize("spoil", ["remove", "flip", "empty"])
def test_a_lost_mark_is_a_problem(crashed: Path, spoil: str) -> None:
    path = crashed / "JOURNAL"
    if spoil == "remove":
        path.unlink()
    elif spoil == "empty":
        path.write_bytes(b"")
    else:
        flip(path, 30)
        assert check(crashed).problems == [], "one of two copies is enough"
        flip(path, 4096 + 30)
    problem = only_problem(crashed)
    assert (problem.code, problem.file) == ("journal-mark", "JOURNAL")


def test_a_mark_that_is_behind_the_files_is_a_problem(crashed: Path) -> None:
    mark = read_mark(Files(), crashed)
    assert mark is not None
    behind = mark._replace(number=mark.number - 1, is_open=False)
    (crashed / "JOURNAL").write_bytes(encode_mark(behind))
    assert f"but {mark.file_name} has records" in only_problem(crashed).what


def test_a_journal_file_that_was_never_finished_is_noted(crashed: Path) -> None:
    (crashed / "journal" / f"{999:016d}.journal").write_bytes(bytes(4096))
    report = check(crashed)
    assert report.problems == []
    assert "never finished" in report.notes[0]


def test_a_recycled_file_under_an_old_name_is_noted(crashed: Path) -> None:
    file = LastFile(crashed)
    head = file.path.read_bytes()[: journal.HEAD_BYTES]
    file.path.with_name(f"{999:016d}.journal").write_bytes(head.ljust(65536, b"\0"))
    report = check(crashed)
    assert report.problems == []
    assert "recycled" in report.notes[0]


def test_a_copy_of_a_journal_file_is_noted(crashed: Path) -> None:
    file = LastFile(crashed)
    shutil.copy(file.path, file.path.with_name(f"{999:016d}.journal"))
    report = check(crashed)
    assert report.problems == []
    assert "under another name, and not needed; the next start sets it aside" in report.notes[0]


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
        (encode_snapshot(BIG, 7, 1, 1, 0, b"1,\n"), "journal-append", "ends at 520000, not 7"),
        (encode_snapshot(BIG, 520_000, 1, 1, 7, b"1,\n"), "journal-append", "520 messages, not 7"),
        (encode_snapshot(SMALL, 17, 1, 1, 3, b"1,\n"), "journal-append", "closed already"),
        (append_record(999, 0, 1, b"1,\n"), "journal-unknown-stream", "names stream 999"),
        (b"\x10\0\0\0\x08" + bytes(11), "journal-record", "needs a newer Penstock"),
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
