"""Journal files across a power loss: used again, cut back, or left behind by another process."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path, PurePath
from unittest.mock import patch

import pytest

from penstock.log.disk.catalog import Changes
from penstock.log.disk.files import Files
from penstock.log.disk.journal import FSYNC, JournalWriter
from penstock.log.disk.journal_mark import Mark, MarkFile
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.disk.recovery import Recovered, recover
from penstock.log.disk.segment import SegmentFolder
from penstock.log.records import CreateMeta, encode_create, encode_delete
from tests.crash.engines import QuickCatalog, UnsyncedFiles
from tests.crash.power import Image, Luck, PowerFile, PowerFiles, Record, Sync, SyncFolder, Write

FILE_BYTES = 3 * 4096
PWRITEV = PowerFile._pwritev
DELETE = encode_delete(7, 0, expired=False)
"""A record that is replayed without effect: nobody knows stream 7."""


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def files(tmp_path: Path, record: Record) -> Files:
    files = PowerFiles(tmp_path, record)
    files.make_folder(tmp_path / "data" / "journal")
    files.sync_folder(tmp_path)
    files.sync_folder(tmp_path / "data")
    return files


def _writer(files: Files, base: Path) -> JournalWriter:
    mark = MarkFile(files, base / "data", Mark(0, False, 0, 1, 0))
    mark.create(mark.current)
    return JournalWriter(
        files,
        base / "data" / "journal",
        file_bytes=FILE_BYTES,
        durability=FSYNC,
        next_number=1,
        mark=mark,
        aside=base / "data" / SET_ASIDE,
    )


def _recover(image: Image, *, checkpoint_lsn: int) -> Recovered:
    with tempfile.TemporaryDirectory(prefix="penstock-reuse-") as name:
        root = Path(name) / "data"
        image.write_to(Path(name), root=PurePath("data"))
        catalog = QuickCatalog(root / "catalog.sqlite")
        try:
            catalog.commit(Changes([], [], [], [], {"checkpoint_lsn": checkpoint_lsn}))
            return recover(UnsyncedFiles(), root, catalog, SegmentFolder(root / "segments"))
        finally:
            catalog.close()


def test_file_that_is_made_larger_is_not_taken_for_a_damaged_one(
    tmp_path: Path, files: Files, record: Record
) -> None:
    """Its old name may come back, half of it zeros already: it was given up, so that is fine."""
    writer = _writer(files, tmp_path)
    for lsn in range(1, 401):
        writer.write(lsn, [DELETE])
    writer.release(400)
    before = len(record)
    writer.write(401, [DELETE] * (2 * FILE_BYTES // len(DELETE)))
    writer.close()
    for _, image in record.images(range(before, len(record) + 1)):
        for seed in range(25):
            remains = image.after_power_loss(Luck(seed, (0.5, 0.2, 0.9)[seed % 3]))
            recovered = _recover(remains, checkpoint_lsn=400)
            assert recovered.next_lsn >= 401


def test_refused_batch_does_not_come_back_in_place_of_the_next_one(
    tmp_path: Path, files: Files, record: Record
) -> None:
    """Cut short it can still be valid, if all it lacks is zeros; the next one has its LSN."""
    writer = _writer(files, tmp_path)
    writer.write(1, [_create(1, b"first")])
    refused, written = _create(2, bytes(6000)), _create(2, b"x" * FILE_BYTES)

    def short(file: PowerFile, parts: list[memoryview], position: int) -> int:
        data = b"".join(parts)
        if len(data) > 6000:
            PWRITEV(file, [memoryview(data)[:4000]], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return PWRITEV(file, parts, position)

    with patch.object(PowerFile, "_pwritev", short), pytest.raises(OSError, match="No space"):
        writer.write(2, [refused])
    writer.write(2, [written])
    writer.close()
    ((_, image),) = record.images([len(record)])
    for seed in range(40):
        recovered = _recover(image.after_power_loss(Luck(seed, 0.5)), checkpoint_lsn=0)
        assert recovered.next_lsn == 3
        assert recovered.streams[2].tail == FILE_BYTES


def test_recovery_makes_durable_what_it_is_about_to_serve(
    tmp_path: Path, files: Files, record: Record
) -> None:
    """Not by a sync alone, which can succeed without the pages that an earlier one lost."""
    writer = _writer(files, tmp_path)
    for lsn in range(1, 4):
        writer.write(lsn, [_create(lsn, b"body %d" % lsn)])
    writer.close()
    before = len(record)
    catalog = QuickCatalog(tmp_path / "catalog.sqlite")
    recover(files, tmp_path / "data", catalog, SegmentFolder(tmp_path / "data" / "segments"))
    catalog.close()
    write, sync, folder = record.steps[before:]
    assert isinstance(write, Write)
    assert write.data.endswith(_create(3, b"body 3"))
    assert sync == Sync(write.file)
    assert folder == SyncFolder(PurePath("data/journal"))


def _create(stream_id: int, payload: bytes) -> bytes:
    meta = CreateMeta(path=str(stream_id), content_type="text/plain", created_us=0, count=1)
    return encode_create(stream_id, meta, payload)
