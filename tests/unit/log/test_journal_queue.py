"""The journal with a queue of writes: the same bytes as without one, the same rules for errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.log.disk.files import File, Files
from penstock.log.disk.journal import BUFFERED, FSYNC, JournalBroken, JournalWriter
from penstock.log.disk.journal_mark import MarkFile
from tests.helpers.write_queue import SHORT, HeldQueue
from tests.unit.log.test_journal import NO_FILE, stored


class DirectFile(File):
    """Stands for a file that is written past the page cache."""

    __slots__ = ("files",)
    files: DirectFiles

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        if self.files.direct_errors:
            code = self.files.direct_errors.pop(0)
            raise OSError(code, os.strerror(code), str(self.path))
        return super()._pwritev(parts, position)


class DirectFiles(Files):
    def __init__(self) -> None:
        self.direct_errors: list[int] = []
        self.has_direct = True
        self.opened: list[File] = []

    def open_direct(self, path: Path) -> File:
        if not self.has_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        file = DirectFile(path, os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        file.files = self
        self.opened.append(file)
        return file


class Rig:
    def __init__(self, folder: Path, *, file_bytes: int = 16384, durability: int = FSYNC) -> None:
        self.files = DirectFiles()
        self.queue = HeldQueue()
        self.folder = folder
        self.writer = JournalWriter(
            self.files,
            folder,
            file_bytes=file_bytes,
            durability=durability,
            next_number=1,
            mark=MarkFile(self.files, folder, NO_FILE),
            aside=folder / "set-aside",
            queue=self.queue,
        )

    def queued(self, lsn: int, parts: list[bytes]) -> bool:
        """Write a batch by the queue; False if it has to take the other way."""
        if not self.writer.stage(lsn, parts) or not self.writer.submit():
            return False
        self.queue.release()
        return self.end()

    def end(self) -> bool:
        result = self.queue.take()
        assert result is not None
        return self.writer.end(result)

    def bodies(self) -> list[bytes]:
        return [body for _, _, body in stored(self.folder)]


def test_batches_of_both_ways_stand_in_one_file_in_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert not rig.queued(1, [b"a"]), "the first one makes the file"
    rig.writer.write(1, [b"a"])
    assert rig.queued(2, [b"b", b"c"])
    rig.writer.write(4, [b"d" * 5000])
    assert rig.queued(5, [b"e" * 3000])
    assert stored(tmp_path) == [
        (1, 1, b"a"),
        (1, 2, b"bc"),
        (1, 4, b"d" * 5000),
        (1, 5, b"e" * 3000),
    ]
    assert rig.writer.live_bytes() < 16384
    rig.writer.close()


def test_a_batch_is_not_there_before_its_result_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    before = rig.writer.live_bytes()
    assert rig.writer.stage(2, [b"b"])
    assert rig.writer.submit()
    assert rig.writer.live_bytes() == before
    rig.queue.release()
    assert rig.end()
    assert rig.writer.live_bytes() > before
    rig.writer.close()


def test_a_batch_that_does_not_fit_takes_the_way_that_makes_a_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a" * 9000])
    assert not rig.queued(2, [b"b" * 9000])
    rig.writer.write(2, [b"b" * 9000])
    assert rig.queued(3, [b"c"])
    assert [number for number, _, _ in stored(tmp_path)] == [1, 2, 2]
    assert [file.fileno() >= 0 for file in rig.files.opened] == [False, True]
    rig.writer.close()


def test_a_batch_larger_than_the_buffer_goes_through_the_page_cache(tmp_path: Path) -> None:
    rig = Rig(tmp_path, file_bytes=1 << 20)
    rig.writer.write(1, [b"a"])
    large = os.urandom(70_000)
    assert not rig.queued(2, [large])
    rig.files.direct_errors = [errno.EIO]  # is not met
    rig.writer.write(2, [large])
    rig.files.direct_errors = []
    assert rig.queued(3, [b"c"])
    assert rig.bodies() == [b"a", large, b"c"]
    rig.writer.close()


@pytest.mark.parametrize("block", [OSError(errno.EIO, "unreadable"), b""])
def test_a_block_that_cannot_be_read_back_fails_no_durable_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: OSError | bytes
) -> None:
    def read_at(self: File, position: int, length: int) -> bytes:
        if isinstance(block, OSError):
            raise block
        return block

    rig = Rig(tmp_path, file_bytes=1 << 20)
    rig.writer.write(1, [b"a"])
    large = os.urandom(70_000)
    with monkeypatch.context() as patch:
        patch.setattr(File, "read_at", read_at)
        rig.writer.write(2, [large])
    assert not rig.queued(3, [b"c"])
    rig.writer.write(3, [b"c"])
    assert rig.bodies() == [b"a", large, b"c"]
    rig.writer.close()


@pytest.mark.parametrize("result", [SHORT, -errno.EINVAL, -errno.EAGAIN, -errno.ENOSPC])
def test_a_batch_that_the_queue_did_not_write_whole_is_written_again(
    tmp_path: Path, result: int
) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.queue.results = [result]
    assert not rig.queued(2, [b"b"])
    rig.writer.write(2, [b"b"])
    assert rig.queued(3, [b"c"])
    assert rig.bodies() == [b"a", b"b", b"c"]
    rig.writer.close()


def test_after_an_error_of_the_disk_nothing_is_written_any_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.queue.results = [-errno.EIO]
    with pytest.raises(JournalBroken, match="cannot write"):
        rig.queued(2, [b"b"])
    assert not rig.writer.stage(2, [b"c"])
    with pytest.raises(JournalBroken):
        rig.writer.write(2, [b"c"])
    assert b"c" not in rig.bodies()
    rig.writer.close()


def test_a_queue_that_takes_nothing_leaves_the_batch_to_the_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.queue.refusals = [errno.EAGAIN]
    assert not rig.queued(2, [b"b"])
    rig.writer.write(2, [b"b"])
    assert rig.queued(3, [b"c"])
    assert rig.bodies() == [b"a", b"b", b"c"]
    rig.writer.close()


def test_a_write_that_the_file_system_does_not_take_goes_through_the_page_cache(
    tmp_path: Path,
) -> None:
    """For the rest of this file; the next one is tried again."""
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.files.direct_errors = [errno.EINVAL]
    rig.writer.write(2, [b"b"])
    assert not rig.queued(3, [b"c"])
    rig.writer.write(3, [b"c" * 15000])
    assert not rig.queued(4, [b"d" * 1500])
    rig.writer.write(4, [b"d" * 1500])
    assert rig.queued(5, [b"e"])
    assert rig.bodies() == [b"a", b"b", b"c" * 15000, b"d" * 1500, b"e"]
    rig.writer.close()


def test_a_failed_write_past_the_page_cache_breaks_the_journal(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.files.direct_errors = [errno.EIO]
    for _ in range(2):
        with pytest.raises(JournalBroken, match="cannot write"):
            rig.writer.write(2, [b"b"])
    assert rig.bodies() == [b"a"]
    rig.writer.close()


def test_without_writes_past_the_page_cache_the_queue_is_not_used(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.files.has_direct = False
    rig.writer.write(1, [b"a"])
    assert not rig.queued(2, [b"b"])
    rig.writer.write(2, [b"b"])
    assert rig.bodies() == [b"a", b"b"]
    rig.writer.close()


def test_a_buffered_journal_does_not_use_the_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path, durability=BUFFERED)
    rig.writer.write(1, [b"a"])
    assert not rig.queued(2, [b"b"])
    rig.writer.close()


def test_a_refused_journal_gives_the_queue_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    rig.writer.refuse("read-only")
    assert not rig.queued(2, [b"b"])
    rig.writer.close()


def test_the_syncs_of_the_queue_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.writer.write(1, [b"a"])
    before = sum(rig.writer.sync_seconds.counts)
    assert rig.queued(2, [b"b"])
    assert sum(rig.writer.sync_seconds.counts) == before + 1
    rig.writer.close()
