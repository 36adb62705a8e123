"""`penstock verify`: whether a data folder at rest has everything that a server needs.

Checks every byte that has a checksum, and everything that is stored twice against each other.
Reads only; the result is a `Report`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from penstock.errors import Damaged, StorageError, StoreDamaged
from penstock.log.disk.catalog import CATALOG_ERRORS
from penstock.log.disk.files import Files
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.disk.recovery import FORMAT_FILE, check_restored, read_format
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.worker_folders import (
    FORMAT_WORKERS,
    LOCK_FILE,
    worker_folder,
    workers_of,
)
from penstock.log.offline.folder import Folder, file_bytes, open_folder
from penstock.log.offline.report import Problem, Progress, Report
from penstock.log.offline.verify_journal import JournalCheck
from penstock.log.offline.verify_streams import StreamsCheck

__all__ = ["Problem", "Report", "verify"]


def verify(
    data_dir: Path,
    files: Files | None = None,
    *,
    cold: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a folder that no server uses, and with `cold` the objects of its cold segments.
    `progress` is called with (bytes done, all bytes).

    StoreLocked while one does, StoreTooNew for a newer format, StoreError for any other folder.
    """
    files = files or Files()
    try:
        workers = workers_of(files, data_dir)
    except StoreDamaged:
        workers = None  # reported below
    if workers is None:
        return _verify_one(data_dir, files, cold=cold, progress=progress)
    check_restored(files, data_dir)
    whole = Report(format=FORMAT_WORKERS, clean=True)
    with closing(files.lock_shared(data_dir / LOCK_FILE)):
        for index in range(workers):
            folder = worker_folder(data_dir, index)
            part = _verify_one(folder, files, cold=cold, progress=progress)
            whole.include(part, folder.relative_to(data_dir).as_posix())
    return whole


def _verify_one(
    data_dir: Path,
    files: Files,
    *,
    cold: bool,
    progress: Callable[[int, int], None] | None,
) -> Report:
    report = Report()
    with open_folder(data_dir, files, cold=cold) as folder:
        _check_format(folder, report)
        try:
            _check_all(folder, report, Progress(progress))
        except CATALOG_ERRORS as error:
            what = f"SQLite cannot read it ({error}), so the rest was not checked"
            report.problem("catalog-damaged", CATALOG_FILE, what)
    return report


def _check_format(folder: Folder, report: Report) -> None:
    try:
        content = read_format(folder.files, folder.root)
    except FileNotFoundError:
        report.problem("format-missing", FORMAT_FILE, "the file is missing")
    except StoreDamaged:
        report.problem("format-damaged", FORMAT_FILE, "it is not a Penstock format file")
    else:
        report.format = int(str(content["format"]))


def _check_all(folder: Folder, report: Report, progress: Progress) -> None:
    files, journals = folder.files, folder.root / "journal"
    names = [name for name in files.list_folder(journals) if name.endswith(".journal")]
    if names and not files.exists(folder.root / CATALOG_FILE):
        report.problem("catalog-missing", CATALOG_FILE, "the file is missing")
    for fault in folder.catalog.integrity():
        report.problem("catalog-damaged", CATALOG_FILE, fault)
    try:
        meta = folder.catalog.meta()
    except Damaged as error:
        report.problem("catalog-damaged", CATALOG_FILE, error.detail)
        return
    report.clean = bool(meta.get("clean", 1))
    report.checkpoint_lsn = int(meta.get("checkpoint_lsn", 0))
    progress.total = folder.catalog.totals()[1]
    progress.total += sum(file_bytes(files, journals / name) for name in names)
    journal = JournalCheck(folder, report, progress)
    journal.run()
    if report.clean and journal.records:
        report.note(
            f"the folder is marked as cleanly stopped, but {journal.records} records of the "
            "journal are not in the catalog yet; the next start replays them"
        )
    StreamsCheck(folder, report, progress, journal).run()
    _check_objects(folder, report)
    aside = files.list_folder(folder.root / SET_ASIDE)
    if aside:
        report.note(
            f"{SET_ASIDE} has {len(aside)} journal files that a start could not use, such as "
            f"{aside[0]}; remove them when you do not need them"
        )


def _check_objects(folder: Folder, report: Report) -> None:
    """Note objects that no row names, and cold segments whose objects were not looked at."""
    if folder.objects is None:
        if report.cold_segments:
            report.note(
                f"{report.cold_segments} cold segments are in the object store; `--cold` checks "
                "them, too"
            )
        return
    try:
        prefix = str(read_format(folder.files, folder.root).get("store_id"))
        names, expected = (
            [blob.key for blob in folder.objects.list(prefix)],
            folder.catalog.objects(),
        )
    except (StorageError, StoreDamaged, OSError) as error:
        report.note(f"the objects of the folder cannot be listed: {error}")
        return
    strays = [name for name in names if name not in expected]
    if strays:
        report.note(
            f"{len(strays)} objects of {folder.objects.url} belong to no segment, such as "
            f"{strays[0]}; if no other copy of this folder is in use, they can be removed"
        )
