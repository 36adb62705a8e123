"""`penstock verify`: whether a data folder at rest has everything that a server needs.

Checks every byte that has a checksum, and everything that is stored twice against each other.
Reads only; the result is a `Report`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.errors import Damaged, StoreDamaged
from penstock.log.disk.catalog import CATALOG_ERRORS
from penstock.log.disk.files import Files
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.disk.recovery import FORMAT_FILE, read_format
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.offline.folder import Folder, file_bytes, open_folder
from penstock.log.offline.report import Problem, Progress, Report
from penstock.log.offline.verify_journal import JournalCheck
from penstock.log.offline.verify_streams import StreamsCheck

__all__ = ["Problem", "Report", "verify"]


def verify(
    data_dir: Path,
    files: Files | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a folder that no server uses. `progress` is called with (bytes done, all bytes).

    StoreLocked while one does, StoreTooNew for a newer format, StoreError for any other folder.
    """
    report = Report()
    with open_folder(data_dir, files) as folder:
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
    aside = files.list_folder(folder.root / SET_ASIDE)
    if aside:
        report.note(
            f"{SET_ASIDE} has {len(aside)} journal files that a start could not use, such as "
            f"{aside[0]}; remove them when you do not need them"
        )
