"""The journal: batches and their checksums, files that roll and are used again."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreTooNew
from penstock.log.disk import journal
from penstock.log.disk.files import File, Files
from penstock.log.disk.journal import (
    BUFFERED,
    FSYNC,
    HEAD_BYTES,
    SPARES_MAX,
    FileHead,
    JournalBroken,
    JournalWriter,
    OldFile,
    decode_batch,
    decode_head,
    encode_batch,
    encode_head,
    find_batches,
    journal_files,
)
from penstock.log.disk.journal_mark import Mark, MarkFile

NO_FILE = Mark(0, False, 0, 1, 0)
HEAD = FileHead(FSYNC, 0xABCDEF, 3, 10, 4096)


def image(*batches: Sequence[bytes], head: FileHead = HEAD, padding: int = 100) -> bytes:
    """A file with these batches."""
    data, lsn = encode_head(head), head.first_lsn
    for parts in batches:
        data += b"".join(encode_batch(head.file_id, lsn, parts))
        lsn += len(parts)
    return data + bytes(padding)


def make_writer(folder: Path, files: Files | None = None, **options: int) -> JournalWriter:
    values: dict[str, Any] = {
        "file_bytes": 4096,
        "durability": FSYNC,
        "next_number": 1,
        **options,
    }
    files = files or Files()
    mark = MarkFile(files, folder, NO_FILE)
    return JournalWriter(files, folder, mark=mark, aside=folder / "set-aside", **values)


def stored(folder: Path) -> list[tuple[int, int, bytes]]:
    """(file number, first LSN, body) of every batch on disk."""
    scanned = []
    for path, data in journal_files(Files(), folder):
        scan = find_batches(data, path.name)
        assert scan is not None
        scanned += [(scan.head.number, batch.first_lsn, batch.body) for batch in scan.batches]
    return scanned


# -- bytes


def test_a_head_comes_back_as_it_was_written() -> None:
    data = encode_head(HEAD)
    assert len(data) == HEAD_BYTES
    assert decode_head(data, "x") == HEAD


def test_a_head_with_any_flipped_bit_is_no_head() -> None:
    data = encode_head(HEAD)
    for position in range(52):
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            try:
                assert decode_head(bytes(broken), "x") is None
            except StoreTooNew:
                assert 8 <= position < 12  # a later version, which is another reason to stop


def test_a_batch_comes_back_as_it_was_written() -> None:
    for parts in ([b"one"], [b"one", b"", b"three"], [b""]):
        head, body = encode_batch(5, 77, parts)
        batch = decode_batch(b"??" + head + body, 2, 5)
        assert batch == (77, len(parts), b"".join(parts))


def test_a_batch_with_any_flipped_bit_is_no_batch() -> None:
    data = b"".join(encode_batch(5, 77, [b"some", b"bytes"]))
    for position in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            assert decode_batch(bytes(broken), 0, 5) is None


def test_a_batch_of_another_file_is_no_batch_of_this_one() -> None:
    data = b"".join(encode_batch(5, 77, [b"bytes"]))
    assert decode_batch(data, 0, 6) is None


# -- scanning


def test_a_scan_finds_all_batches_and_where_they_end() -> None:
    data = image([b"a", b"b"], [b"c"])
    scan = find_batches(data, "x")
    assert scan is not None
    assert [(batch.first_lsn, batch.body) for batch in scan.batches] == [(10, b"ab"), (12, b"c")]
    assert scan.end == len(data) - 100
    assert not scan.torn


def test_a_batch_cut_at_any_byte_is_a_torn_tail() -> None:
    whole, data = image([b"a"], padding=0), image([b"a"], [b"bcdef"], padding=0)
    for length in range(len(whole), len(data)):
        scan = find_batches(data[:length] + bytes(len(data) - length), "x")
        assert scan is not None
        assert [batch.body for batch in scan.batches] == [b"a"]
        assert scan.end == len(whole)


def test_a_bad_batch_before_a_good_one_is_damage_and_says_where() -> None:
    data = bytearray(image([b"a"], [b"b"], [b"c"]))
    place = len(image([b"a"], padding=0))
    data[place + 32] ^= 1
    scan = find_batches(bytes(data), "x")
    assert scan is not None
    assert (scan.end, scan.later) == (place, len(image([b"a"], [b"b"], padding=0)))
    assert scan.torn_bytes == len(image([b"a"], [b"b"], [b"c"], padding=0)) - place


def test_a_buffered_journal_is_cut_at_the_first_bad_batch() -> None:
    data = bytearray(image([b"a"], [b"b"], [b"c"], head=HEAD._replace(durability=BUFFERED)))
    data[len(image([b"a"], padding=0)) + 32] ^= 1
    scan = find_batches(bytes(data), "x")
    assert scan is not None
    assert [batch.body for batch in scan.batches] == [b"a"]
    assert scan.torn


def test_a_gap_in_the_lsns_is_damage() -> None:
    data = image([b"a"], padding=0) + b"".join(encode_batch(HEAD.file_id, 12, [b"c"]))
    scan = find_batches(data, "x")
    assert scan is not None
    assert scan.later == scan.end


def test_older_batches_left_in_a_recycled_file_are_not_seen() -> None:
    older = HEAD._replace(file_id=1, first_lsn=2)
    data = image([b"new"], padding=0)
    data += image([b"x" * 10], [b"y"], [b"z"], head=older)[len(data) :]
    scan = find_batches(data, "x")
    assert scan is not None
    assert [batch.body for batch in scan.batches] == [b"new"]


def test_a_user_cannot_forge_a_batch_inside_a_payload() -> None:
    """Not even with the right file id, if it is an old one that was read from the stream."""
    forged = b"".join(encode_batch(HEAD.file_id, 3, [b"forged"]))
    whole = image([b"a"], [forged + b"rest"], padding=0)
    scan = find_batches(whole, "x")
    assert scan is not None
    assert [batch.body for batch in scan.batches] == [b"a", forged + b"rest"]
    torn = find_batches(whole[:-1] + b"?", "x")
    assert torn is not None
    assert [batch.body for batch in torn.batches] == [b"a"]


def test_a_file_without_a_finished_head_has_no_scan() -> None:
    assert find_batches(bytes(4096), "x") is None
    assert find_batches(b"", "x") is None


# -- writing


def test_batches_are_on_disk_when_write_returns(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.write(1, [b"a", b"b"])
    assert stored(tmp_path) == [(1, 1, b"ab")]
    writer.write(3, [b"c"])
    assert stored(tmp_path) == [(1, 1, b"ab"), (1, 3, b"c")]
    writer.close()


def test_a_full_file_is_followed_by_the_next_number(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    for number in range(6):
        writer.write(number + 1, [bytes([number]) * 1500])
    assert [(number, lsn) for number, lsn, _ in stored(tmp_path)] == [
        (1, 1),
        (1, 2),
        (2, 3),
        (2, 4),
        (3, 5),
        (3, 6),
    ]
    writer.close()


def test_a_batch_larger_than_a_file_gets_a_file_of_its_size(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.write(1, [b"a"])
    writer.write(2, [b"b" * 10_000])
    writer.write(3, [b"c"])
    assert [(number, lsn) for number, lsn, _ in stored(tmp_path)] == [(1, 1), (2, 2), (3, 3)]
    writer.close()


def test_only_files_that_are_covered_completely_are_released(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    for number in range(6):
        writer.write(number + 1, [bytes([number]) * 1500])
    writer.release(3)
    assert {number for number, _, _ in stored(tmp_path)} == {2, 3}
    writer.release(4)
    assert {number for number, _, _ in stored(tmp_path)} == {3}
    writer.release(6)
    assert {number for number, _, _ in stored(tmp_path)} == {3}, "the open file stays"
    writer.close()


def test_released_files_become_spares_up_to_a_number_and_are_used_again(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    for number in range(20):
        writer.write(number + 1, [bytes([number]) * 3000])
    writer.release(19)
    spares = sorted(tmp_path.glob("*.spare"))
    assert len(spares) == SPARES_MAX
    inodes = {path.stat().st_ino for path in spares}
    writer.write(21, [b"x" * 3000])
    (newest,) = tmp_path.glob("*21.journal")
    assert newest.stat().st_ino in inodes
    assert len(list(tmp_path.glob("*.spare"))) == SPARES_MAX - 1
    assert stored(tmp_path)[-1] == (21, 21, b"x" * 3000)
    writer.close()


def test_an_adopted_file_is_kept_until_it_is_covered(tmp_path: Path) -> None:
    old = make_writer(tmp_path)
    old.write(1, [b"a", b"b"])
    old.close()
    writer = make_writer(tmp_path, next_number=2)
    writer.adopt(OldFile(tmp_path / f"{1:016d}.journal", 2))
    writer.write(3, [b"c"])
    writer.release(1)
    assert [lsn for _, lsn, _ in stored(tmp_path)] == [1, 3]
    writer.release(2)
    assert [lsn for _, lsn, _ in stored(tmp_path)] == [3]
    writer.close()


# -- failures


class FaultyFile(File):
    """Fails as its folder of files is told to."""

    __slots__ = ("files",)
    files: FaultyFiles

    def write_at(self, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if self.files.write_errors:
            super().write_at(position, [b"".join(parts)[:40]])
            raise OSError(self.files.write_errors.pop(0), "write failed", str(self.path))
        super().write_at(position, parts)

    def sync_data(self) -> None:
        self.files.syncs += 1
        if self.files.sync_errors:
            raise OSError(self.files.sync_errors.pop(0), "sync failed", str(self.path))
        super().sync_data()


class FaultyFiles(Files):
    def __init__(self) -> None:
        self.write_errors: list[int] = []
        self.sync_errors: list[int] = []
        self.rename_errors: list[int] = []
        self.syncs = 0

    def open_write(self, path: Path) -> File:
        real = super().open_write(path)
        file = FaultyFile(path, real._fd)
        file.files = self
        return file

    def rename(self, source: Path, target: Path) -> None:
        if self.rename_errors:
            raise OSError(self.rename_errors.pop(0), "rename failed", str(source))
        super().rename(source, target)


def test_a_batch_the_full_disk_refused_is_not_there_and_its_place_is_used_again(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    writer = make_writer(tmp_path, files)
    writer.write(1, [b"a"])
    files.write_errors = [errno.ENOSPC]
    with pytest.raises(OSError, match="write failed"):
        writer.write(2, [b"refused"])
    assert stored(tmp_path) == [(1, 1, b"a")]
    writer.write(2, [b"b"])
    assert stored(tmp_path) == [(1, 1, b"a"), (1, 2, b"b")]
    writer.close()


@pytest.mark.parametrize(
    ("write_errors", "sync_errors"),
    [([], [errno.EIO]), ([], [errno.ENOSPC]), ([errno.EIO], []), ([errno.ENOSPC] * 2, [])],
)
def test_a_broken_journal_is_never_written_or_synced_again(
    tmp_path: Path, write_errors: list[int], sync_errors: list[int]
) -> None:
    files = FaultyFiles()
    writer = make_writer(tmp_path, files)
    writer.write(1, [b"a"])
    files.write_errors, files.sync_errors = write_errors, sync_errors
    with pytest.raises(JournalBroken):
        writer.write(2, [b"b"])
    before, syncs = stored(tmp_path)[:1], files.syncs
    for _ in range(2):
        with pytest.raises(JournalBroken):
            writer.write(2, [b"later"])
    assert files.syncs == syncs
    assert stored(tmp_path)[:1] == before
    assert b"later" not in b"".join(body for _, _, body in stored(tmp_path))
    writer.close()


def test_when_no_new_file_can_be_made_the_old_one_stays_in_use(tmp_path: Path) -> None:
    files = FaultyFiles()
    writer = make_writer(tmp_path, files)
    writer.write(1, [b"a" * 3000])
    files.write_errors = [errno.ENOSPC]
    with pytest.raises(OSError, match="write failed"):
        writer.write(2, [b"b" * 3000])
    assert [path.name for path in tmp_path.glob("*.journal")] == [f"{1:016d}.journal"]
    writer.write(2, [b"small"])
    assert [(number, lsn) for number, lsn, _ in stored(tmp_path)] == [(1, 1), (1, 2)]
    writer.close()


def test_a_release_that_failed_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    files = FaultyFiles()
    writer = make_writer(tmp_path, files)
    for number in range(4):
        writer.write(number + 1, [b"x" * 3000])
    real = files.rename
    renamed: list[Path] = []

    def rename_once(source: Path, target: Path) -> None:
        if renamed:
            raise OSError(errno.ENOSPC, "full")
        renamed.append(source)
        real(source, target)

    files.rename = rename_once  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        writer.release(3)
    files.rename = real  # type: ignore[method-assign]
    writer.release(3)
    assert [number for number, _, _ in stored(tmp_path)] == [4]
    assert len(list(tmp_path.glob("*.spare"))) == 3
    writer.close()


def test_a_buffered_journal_is_not_synced_for_each_batch(tmp_path: Path) -> None:
    files = FaultyFiles()
    writer = make_writer(tmp_path, files, durability=BUFFERED)
    writer.write(1, [b"a"])
    syncs = files.syncs
    writer.write(2, [b"b"])
    assert files.syncs == syncs
    assert journal.find_batches(next(journal_files(files, tmp_path))[1], "x") is not None
    writer.close()
