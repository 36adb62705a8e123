"""The journal at a start: which files are replayed, what a crash has left over, what is damage.

A crash explains an incomplete last batch, a file that holds no batch yet, and a recycled file under
its old name. Everything is read before anything is changed, so that a start that is refused leaves
the folder as it is. Files with batches that are in no catalog are set aside, never removed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreDamaged
from penstock.log.disk import journal
from penstock.log.disk.files import Files
from penstock.log.disk.journal_mark import MARK_FILE, Mark

SET_ASIDE = "set-aside"
BAD_HEAD = "its head is unreadable."
REFUSED = (
    "Nothing was changed. Restore the data folder from a backup, or run `penstock verify` to see "
    "what is affected. `--journal-damage cut` starts with the records before the damage and sets "
    "the rest aside."
)


class LastBatch(NamedTuple):
    """The last batch of a file, and the byte where it begins."""

    path: Path
    begin: int
    data: bytes


class JournalRecovery:
    """`replay` is called with each batch in the order of their LSNs."""

    def __init__(
        self,
        files: Files,
        root: Path,
        mark: Mark | None,
        *,
        checkpoint_lsn: int,
        is_clean: bool,
        cuts_damage: bool,
    ) -> None:
        """`mark` is None in a folder of an earlier format. After a clean stop (`is_clean`) the
        catalog has every record."""
        self._files = files
        self._root = root
        self._folder = root / "journal"
        self._mark = mark
        self._checkpoint_lsn = checkpoint_lsn
        self._is_clean = is_clean
        self._cuts_damage = cuts_damage
        self._is_cut = False
        self._misnamed: list[tuple[Path, journal.Scan]] = []
        self._last: journal.Scan | None = None
        self._doubt: str | None = None
        """What is wrong with the end of the last file, unless the next one continues there."""
        self._last_batches: list[LastBatch] = []
        self._removed: list[Path] = []
        self._aside: list[Path] = []
        self.next_lsn = checkpoint_lsn + 1
        self.next_number = 1 if mark is None else mark.number + 1
        self.kept: list[journal.OldFile] = []
        self.warnings: list[str] = []
        self.cut_bytes = 0
        """Size of what was no whole batch, or came behind it."""

    def run(self, replay: Callable[[journal.Batch, str], None]) -> None:
        """Read and judge everything; StoreDamaged if a crash does not explain what is there."""
        if self._mark is not None:
            fault = mark_fault(self._files, self._folder, self._mark)
            if fault is not None:
                self._damage(fault, is_needed=not self._covers(self._mark.number))
        for path, data in journal.journal_files(self._files, self._folder):
            self._file(path, data, replay)
        if self._doubt is not None:
            self._damage(self._doubt)
        self._check_misnamed()
        if self._mark is not None and self.next_lsn < self._mark.first_lsn and not self._is_cut:
            lost = f"records {self.next_lsn} to {self._mark.first_lsn - 1} are missing"
            self._damage(f"The journal is damaged: {lost}.")
        # The end of an earlier file was cut off by an earlier start.
        if self._last is not None and self._last.torn:
            self.cut_bytes += self._last.torn_bytes
            self.warnings.append(
                f"An incomplete or damaged batch of {self._last.torn_bytes} bytes was cut off "
                f"journal {self._last.head.number} at byte {self._last.end}. A crash leaves one "
                "that was never acknowledged."
            )

    def finish(self) -> Mark:
        """Change what has to be changed; return the mark that is true from now on."""
        for path in self._removed:
            self._files.remove(path)
        for path in self._aside:
            target = journal.set_aside(self._files, path, self._root / SET_ASIDE)
            self.warnings.append(f"{path.name} was set aside as {target}.")
        self._make_durable()
        # No file is written to any more, so that the LSN alone says what the next start must have.
        return Mark(self.next_number - 1, False, 0, self.next_lsn, 0)

    @property
    def set_aside_count(self) -> int:
        """Number of files that are set aside now, or when a checkpoint covers them."""
        return len(self._aside) + sum(old.is_set_aside for old in self.kept)

    def _damage(self, what: str, *, is_needed: bool = True) -> None:
        """Refuse to start, unless nothing is lost or the settings accept the loss."""
        if not is_needed:
            self.warnings.append(f"{what} Nothing is lost: the catalog has all of its records.")
        elif self._cuts_damage:
            self.warnings.append(f"{what} The journal is cut there (journal_damage is `cut`).")
        else:
            raise StoreDamaged(f"{what} {REFUSED}")

    def _file(self, path: Path, data: bytes, replay: Callable[[journal.Batch, str], None]) -> None:
        if not path.stem.isdecimal():
            self._odd_name(path, data)
            return
        scan = journal.find_batches(data, path.name)
        number = int(path.stem)
        self.next_number = max(self.next_number, number + 1)
        if scan is None:
            self._headless(path, data, number)
            return
        self.next_number = max(self.next_number, scan.head.number + 1)
        if scan.head.number != number and self._is_ahead(scan):
            self._misnamed.append((path, scan))
        elif scan.head.number != number or self._is_cut:
            # Without batches it is a recycled file whose renames were undone by a power loss.
            self._leave_out(path, scan)
        elif not scan.batches and len(data) < scan.head.bytes and not self._is_marked(number):
            self._removed.append(path)  # a crash while it was made
        else:
            self._check_size(path, data, scan)
            self._replay_file(path, data, scan, replay)

    def _covers(self, number: int) -> bool:
        """Whether the catalog has every record of a file, so that nothing is lost with it: after a
        clean stop, or as JOURNAL says."""
        return covers(self._mark, number, self._checkpoint_lsn, is_clean=self._is_clean)

    def _is_marked(self, number: int) -> bool:
        return self._mark is not None and self._mark.number >= number

    def _odd_name(self, path: Path, data: bytes) -> None:
        scan = journal.find_batches(data, path.name)
        if scan is not None and self._is_ahead(scan):
            self._misnamed.append((path, scan))
        else:
            self.warnings.append(f"{path.name} is not the name of a journal file.")

    def _check_misnamed(self) -> None:
        """A file under a wrong name is a copy, unless it has records that no other file has."""
        for path, scan in self._misnamed:
            if scan.last_lsn >= self.next_lsn:
                self._damage(
                    f"Journal {path.name} is named wrongly: it is {scan.head.number:016d}.journal, "
                    "so rename it back."
                )
            self._aside.append(path)

    def _headless(self, path: Path, data: bytes, number: int) -> None:
        if is_blank(data):
            self._removed.append(path)  # a crash while it was made, unless JOURNAL names it
            return
        is_needed = not self._covers(number)
        self._damage(f"Journal {path.name} is damaged at byte 0: {BAD_HEAD}", is_needed=is_needed)
        self._is_cut = self._is_cut or is_needed
        self._aside.append(path)

    def _is_ahead(self, scan: journal.Scan) -> bool:
        """Whether a file has records that are not in the catalog."""
        return bool(scan.batches) and scan.last_lsn > self._checkpoint_lsn

    def _leave_out(self, path: Path, scan: journal.Scan) -> None:
        (self._aside if self._is_ahead(scan) else self._removed).append(path)

    def _check_size(self, path: Path, data: bytes, scan: journal.Scan) -> None:
        if len(data) >= scan.head.bytes or self._names(scan):
            return  # JOURNAL has the size too, and was looked at
        # What is missing in an earlier file shows by the LSN of the next one.
        self._damage(
            f"Journal {path.name} is damaged: it has {len(data)} bytes, not {scan.head.bytes}.",
            is_needed=self._mark is None,
        )

    def _names(self, scan: journal.Scan) -> bool:
        """Whether JOURNAL names this file, so that it must be there as it was."""
        mark = self._mark
        return mark is not None and mark.is_open and mark.number == scan.head.number

    def _replay_file(
        self,
        path: Path,
        data: bytes,
        scan: journal.Scan,
        replay: Callable[[journal.Batch, str], None],
    ) -> None:
        head, last = scan.head, scan.last_lsn
        if head.first_lsn > self.next_lsn:
            self._gap(path, scan)
            return
        # A start that cut the file before went on in this one.
        self._doubt = None
        is_covered = self._covers(head.number)
        if scan.later is not None and head.durability == journal.FSYNC:
            self._doubt = (
                f"Journal {path.name} is damaged at byte {scan.end}: the batch there is unreadable "
                f"but a valid one follows at byte {scan.later}."
            )
            if is_covered:
                self._damage(self._doubt, is_needed=False)
                self._doubt = None
        if self._names(scan) and head.first_lsn <= self._checkpoint_lsn > last:
            self._damage(
                f"Journal {path.name} is damaged at byte {scan.end}: it ends with record {last}, "
                f"but the catalog has records up to {self._checkpoint_lsn}.",
                is_needed=not is_covered,
            )
        if self._is_ahead(scan):
            for batch in scan.batches:
                replay(batch, path.name)
            begin = scan.end - journal.batch_bytes(scan.batches[-1])
            self._last_batches.append(LastBatch(path, begin, data[begin : scan.end]))
        self.next_lsn = max(self.next_lsn, last + 1)
        is_set_aside = scan.later is not None and not is_covered
        self.kept.append(journal.OldFile(path, last, is_set_aside))
        self._last = scan

    def _gap(self, path: Path, scan: journal.Scan) -> None:
        lost = (
            f"records {self.next_lsn} to {scan.head.first_lsn - 1} are missing before {path.name}"
        )
        if self._doubt is not None:
            self._damage(self._doubt)
        elif scan.head.durability == journal.FSYNC:
            self._damage(f"The journal is damaged: {lost}.")
        else:
            self.warnings.append(f"Buffered journal: {lost}; it is cut there.")
        self._doubt, self._is_cut = None, True
        self._leave_out(path, scan)

    def _make_durable(self) -> None:
        """Sync what was read: it is about to be served, but may be in the page cache only, after a
        server was killed or its sync failed. The last batch of a file is written once more, because
        a sync after a failed one can succeed without the pages that the failed one lost."""
        for path, begin, batch in self._last_batches:
            with closing(self._files.open_write(path)) as file:
                file.write_at(begin, [batch])
                file.sync_data()
        self._files.sync_folder(self._folder)


def covers(mark: Mark | None, number: int, checkpoint_lsn: int, *, is_clean: bool) -> bool:
    """Whether the catalog has every record of file `number`."""
    if mark is None or number > mark.number or mark.first_lsn > checkpoint_lsn + 1:
        return False
    return is_clean or not mark.is_open


def is_blank(data: bytes) -> bool:
    """Whether a file has nothing behind its head: a crash left it so before it was used."""
    return not data[journal.HEAD_BYTES :].strip(b"\0")


def mark_fault(files: Files, folder: Path, mark: Mark) -> str | None:
    """Return what is wrong with the file that JOURNAL names, or with JOURNAL itself."""
    if mark.is_open:
        path = folder / mark.file_name
        if not files.exists(path):
            return f"Journal {path.name} is missing{_other_name(files, folder, mark)}."
        with closing(files.open_read(path)) as file:
            size = file.size()
            head = journal.decode_head(file.read_at(0, journal.HEAD_BYTES), path.name)
        if size < mark.bytes:
            return f"Journal {path.name} is damaged: it has {size} bytes, not {mark.bytes}."
        if head is None:
            return f"Journal {path.name} is damaged at byte 0: {BAD_HEAD}"
        if head.file_id != mark.file_id:
            return f"Journal {path.name} is another file than the one that {MARK_FILE} names."
    for name in files.list_folder(folder):
        if name.endswith(".journal") and _number(name) > mark.number:
            with closing(files.open_read(folder / name)) as file:
                scan = journal.find_batches(file.read_at(0, file.size()), name)
            if scan is not None and scan.batches and scan.head.number == _number(name):
                return f"{MARK_FILE} is damaged: it names {mark.file_name}, but {name} has records."
    return None


def _number(name: str) -> int:
    stem = name.removesuffix(".journal")
    return int(stem) if stem.isdecimal() else 0


def _other_name(files: Files, folder: Path, mark: Mark) -> str:
    """Return where the file that JOURNAL names is, if it was renamed."""
    for name in files.list_folder(folder):
        try:
            with closing(files.open_read(folder / name)) as file:
                head = journal.decode_head(file.read_at(0, journal.HEAD_BYTES), name)
        except OSError:
            continue  # a folder, or the like
        if head is not None and head.file_id == mark.file_id:
            return f": {name} is that file, so rename it back"
    return ""
