"""A journal file is used again under a new name: a power loss in the middle mixes up nothing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from penstock.log import journal
from penstock.log.files import File, Files
from penstock.log.journal import FSYNC, JournalWriter
from penstock.log.recovery import Recovered, recover
from penstock.log.segment import SegmentFolder
from penstock.log.records import encode_delete
from tests.crash.engines import QuickCatalog, UnsyncedFiles
from tests.crash.power import Image, Luck, PowerFiles, Record

FILE_BYTES = 3 * 4096
DELETE = encode_delete(7, 0, expired=False)
"""A record that is replayed without effect: nobody knows stream 7."""


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def files(tmp_path: Path, record: Record) -> Iterator[Files]:
    files = PowerFiles(tmp_path, record)
    files.make_folder(tmp_path / "data" / "journal")
    files.sync_folder(tmp_path)
    files.sync_folder(tmp_path / "data")
    yield files


def _writer(files: Files, base: Path) -> JournalWriter:
    folder = base / "data" / "journal"
    return JournalWriter(files, folder, file_bytes=FILE_BYTES, durability=FSYNC, next_number=1)


def _recover(image: Image, *, checkpoint_lsn: int) -> Recovered:
    with tempfile.TemporaryDirectory(prefix="penstock-reuse-") as name:
        root = Path(name) / "data"
        image.write_to(Path(name), root=PurePath("data"))
        catalog = QuickCatalog(root / "catalog.sqlite")
        try:
            catalog._writer.execute(
                "INSERT INTO meta VALUES ('checkpoint_lsn', ?)", (checkpoint_lsn,)
            )
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
    for cut, image in record.images(range(before, len(record) + 1)):
        for seed in range(60):
            left = image.after_power_loss(Luck(seed, (0.5, 0.2, 0.9)[seed % 3]))
            found = _recover(left, checkpoint_lsn=400)
            assert found.next_lsn >= 401
