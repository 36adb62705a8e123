"""Checks the journal of a folder at rest and replays it in memory, as a start of the server would.

Where recovery stops at the first fault, this reports it and goes on. It writes nothing, and holds
the payload of a few streams at most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Damaged
from penstock.log.disk import journal
from penstock.log.disk.catalog import CATALOG_ERRORS
from penstock.log.disk.journal_mark import MARK_FILE, Mark, read_mark
from penstock.log.disk.journal_recovery import BAD_HEAD, covers, is_blank, mark_fault
from penstock.log.disk.recovery import HAS_MARK, Replay
from penstock.log.offline.folder import Folder
from penstock.log.offline.report import Progress, Report
from penstock.log.records import (
    AppendRecord,
    CreateRecord,
    Record,
    SnapshotRecord,
    TrimRecord,
    decode_records,
)
from penstock.log.stream import Stream
from penstock.protocol.headers import is_json

NOT_STARTING = "the server refuses to start with it: restore the data folder from a backup"
NOTHING_LOST = (
    "the catalog has all of its records, so the next start goes on without it; check the disk"
)


@dataclass(frozen=True, slots=True)
class JournalFile:
    name: str
    bytes: int
    durability: str
    first_lsn: int
    last_lsn: int
    batches: int


class JournalPosition(NamedTuple):
    """The file of a batch, and the byte where it begins."""

    file: str
    byte: int


class JournalCheck:
    """`streams` and `deleted` are the state after the replay on top of the catalog."""

    def __init__(
        self,
        folder: Folder,
        report: Report,
        progress: Progress,
        *,
        keep: Collection[str] = (),
    ) -> None:
        """`keep` are the paths of streams whose payload stays in memory for a preview."""
        self._folder = folder
        self._report = report
        self._progress = progress
        self._keep = keep
        meta = folder.catalog.meta()
        self._checkpoint_lsn = int(meta.get("checkpoint_lsn", 0))
        self._replay = Replay(folder.catalog, self._checkpoint_lsn, int(meta.get("next_id", 1)))
        self._next_lsn = self._checkpoint_lsn + 1
        self._is_clean = bool(meta.get("clean"))
        self._has_mark = bool(meta.get(HAS_MARK))
        self._mark: Mark | None = None
        self._is_last_lost = False
        self._previous: JournalFile | None = None
        self._previous_scan: journal.Scan | None = None
        self._misnamed: list[tuple[str, journal.Scan]] = []
        self._can_replay = True
        self._skipped: set[int] = set()
        self._unknown: dict[int, JournalPosition] = {}
        self.files: list[JournalFile] = []

    @property
    def streams(self) -> dict[int, Stream]:
        return self._replay.streams

    @property
    def deleted(self) -> dict[int, Stream]:
        return self._replay.deleted

    @property
    def next_id(self) -> int:
        return self._replay.next_id

    @property
    def records(self) -> int:
        """Number of records that a start would replay."""
        return self._replay.records

    @property
    def last_lsn(self) -> int:
        return self._next_lsn - 1

    @property
    def is_whole(self) -> bool:
        """Whether everything was replayed, so that the tails of the streams are right."""
        return self._can_replay

    def run(self) -> None:
        try:
            files = self._folder.files
            self._check_mark()
            for path, data in journal.journal_files(files, self._folder.root / "journal"):
                self._file(path, data)
                self._progress.add(len(data))
            self._check_end()
            if self._is_last_lost:
                self._stop_replay()  # what the streams have of it is unknown
            self._check_misnamed()
        except OSError as error:
            self._stop_replay()
            self._report.problem("journal-unreadable", "journal", str(error), advice=NOT_STARTING)
        for stream_id, position in self._unknown.items():
            self._report.problem(
                "journal-unknown-stream",
                position.file,
                f"the batch here names stream {stream_id}, which neither the catalog nor an "
                "earlier record knows",
                position=position.byte,
            )
        self._report.last_lsn = self.last_lsn

    def _stop_replay(self) -> None:
        self._can_replay = False
        self._unknown.clear()

    # -- the journal as a whole

    def _advice(self, number: int) -> str:
        """Return what to do about a fault in file `number`."""
        is_covered = covers(self._mark, number, self._checkpoint_lsn, is_clean=self._is_clean)
        return NOTHING_LOST if is_covered else NOT_STARTING

    def _check_mark(self) -> None:
        """Report what is wrong with the file that JOURNAL names, or with JOURNAL itself."""
        files, root = self._folder.files, self._folder.root
        self._mark = read_mark(files, root)
        if self._mark is None:
            if self._has_mark:
                self._report.problem(
                    "journal-mark", MARK_FILE, "it is missing or damaged", advice=NOT_STARTING
                )
            return
        fault = mark_fault(files, root / "journal", self._mark)
        if fault is not None:
            self._is_last_lost = True
            self._report.problem(
                "journal-damaged" if fault.endswith(BAD_HEAD) else "journal-lost",
                f"journal/{self._mark.file_name}",
                fault,
                advice=self._advice(self._mark.number),
            )

    def _check_end(self) -> None:
        """Report records that must have been there, and are not."""
        if self._previous is not None and self._previous_scan is not None:
            self._check_last(self._previous, self._previous_scan)
        mark = self._mark
        if mark is not None and self._next_lsn < mark.first_lsn and self._can_replay:
            what = f"records {self._next_lsn} to {mark.first_lsn - 1} are missing"
            self._report.problem("journal-gap", "journal", what, advice=NOT_STARTING)

    def _check_misnamed(self) -> None:
        for name, scan in self._misnamed:
            what = f"it is {scan.head.number:016d}.journal under another name"
            if scan.last_lsn < self._next_lsn:
                self._report.note(f"{name}: {what}, and not needed; the next start sets it aside")
            else:
                self._problem("journal-name", JournalPosition(name, 0), what + "; rename it back")

    # -- files

    def _file(self, path: Path, data: bytes) -> None:
        name = self._folder.name(path)
        self._report.journal_files += 1
        scan = journal.find_batches(data, path.name)
        number = int(path.stem) if path.stem.isdecimal() else None
        if scan is None:
            self._headless(JournalPosition(name, 0), data)
            return
        if scan.head.number != number:
            self._wrong_name(name, scan, number)
            return
        if self._is_unborn(scan, data):
            self._report.note(f"{name} was never finished and is empty; the next start removes it")
            return
        batches, last_lsn = scan.batches, scan.last_lsn
        durability = "fsync" if scan.head.durability == journal.FSYNC else "buffered"
        file = JournalFile(name, len(data), durability, scan.head.first_lsn, last_lsn, len(batches))
        self._check_order(file)
        if len(data) < scan.head.bytes and not self._names(scan):
            # What is missing in an earlier file shows by the LSN of the next one.
            self._report.problem(
                "journal-lost",
                name,
                f"it has {len(data)} bytes, not {scan.head.bytes}",
                position=len(data),
                advice=NOT_STARTING if self._mark is None else NOTHING_LOST,
            )
        self.files.append(file)
        position = journal.HEAD_BYTES
        for batch in batches:
            self._batch(batch, JournalPosition(name, position))
            position += journal.batch_bytes(batch)
        self._next_lsn = max(self._next_lsn, last_lsn + 1)
        self._previous, self._previous_scan = file, scan._replace(batches=[])

    def _wrong_name(self, name: str, scan: journal.Scan, number: int | None) -> None:
        if scan.batches and scan.last_lsn > self._checkpoint_lsn:
            self._misnamed.append((name, scan))
        elif number is None:
            self._report.note(f"{name} is not the name of a journal file")
        else:
            self._report.note(
                f"{name} is a recycled file whose renaming was undone by a power loss; "
                "the next start removes it"
            )

    def _names(self, scan: journal.Scan) -> bool:
        """Whether JOURNAL names this file, so that it must be there as it was."""
        mark = self._mark
        return mark is not None and mark.is_open and mark.number == scan.head.number

    def _is_unborn(self, scan: journal.Scan, data: bytes) -> bool:
        """Whether a crash left a file that was still being made."""
        is_marked = self._mark is not None and self._mark.number >= scan.head.number
        return not scan.batches and len(data) < scan.head.bytes and not is_marked

    def _headless(self, position: JournalPosition, data: bytes) -> None:
        if (
            self._is_last_lost
            and self._mark is not None
            and (position.file.endswith(self._mark.file_name))
        ):
            return  # reported already
        if not is_blank(data):
            self._problem("journal-damaged", position, "its head is unreadable but batches follow")
            self._stop_replay()
        else:
            self._report.note(f"{position.file} was never finished and is empty")

    def _check_order(self, file: JournalFile) -> None:
        position = JournalPosition(file.name, 0)
        previous, scan = self._previous, self._previous_scan
        if previous is not None and file.first_lsn <= previous.last_lsn:
            self._problem(
                "journal-overlap",
                position,
                f"it starts with record {file.first_lsn}, but {previous.name} has records up to "
                f"{previous.last_lsn}",
            )
        is_applied = file.last_lsn <= self._checkpoint_lsn and (
            file.first_lsn <= self._checkpoint_lsn
        )
        if is_applied or file.first_lsn <= self._next_lsn:
            if scan is not None and previous is not None and scan.torn:
                self._report.note(
                    f"{previous.name}, byte {scan.end}: an earlier start cut off an incomplete or "
                    "damaged batch here"
                )
            return
        if previous is not None and scan is not None and scan.later is not None:
            self._check_last(previous, scan)  # the reason of the gap
        missing = f"records {self._next_lsn} to {file.first_lsn - 1} are missing before it"
        if file.durability == "fsync":
            self._problem("journal-gap", position, missing)
        elif self._can_replay:
            self._report.note(
                f"{file.name}: {missing}; the journal is buffered, so the next start cuts it here "
                "and sets the file aside"
            )
        self._stop_replay()

    def _check_last(self, file: JournalFile, scan: journal.Scan) -> None:
        """Report how a file ends that no other continues."""
        if self._names(scan) and file.first_lsn <= self._checkpoint_lsn > file.last_lsn:
            self._report.problem(
                "journal-lost",
                file.name,
                f"it ends with record {file.last_lsn}, but the catalog has records up to "
                f"{self._checkpoint_lsn}",
                position=scan.end,
                advice=self._advice(scan.head.number),
            )
        if scan.later is not None and file.durability == "fsync":
            self._report.problem(
                "journal-damaged",
                file.name,
                f"the batch here is unreadable but a whole one follows at byte {scan.later}",
                position=scan.end,
                advice=self._advice(scan.head.number),
            )
            if self._advice(scan.head.number) == NOT_STARTING:
                self._stop_replay()
        elif scan.torn and not self._is_last_lost:
            self._torn(file, scan)

    def _torn(self, file: JournalFile, scan: journal.Scan) -> None:
        what = f"{scan.torn_bytes} bytes here are an incomplete or damaged batch"
        if self._is_clean:
            self._report.problem(
                "journal-incomplete",
                file.name,
                f"{what}, which a clean stop does not leave",
                position=scan.end,
                advice=self._advice(scan.head.number),
            )
            return
        reason = "the last stop was not clean, which explains one"
        if file.durability == "buffered":
            reason = "the journal is buffered, so that a power loss explains it"
        self._report.note(
            f"{file.name}, byte {scan.end}: {what}; {reason}, and the next start cuts it off"
        )

    # -- batches and records

    def _batch(self, batch: journal.Batch, position: JournalPosition) -> None:
        self._report.journal_batches += 1
        lsn = batch.first_lsn
        try:
            for record in decode_records(batch.body):
                self._record(record, lsn, position)
                lsn += 1
        except ValueError as error:
            self._problem("journal-record", position, f"record {lsn} cannot be read: {error}")
            self._stop_replay()
        else:
            if lsn != batch.first_lsn + batch.records:
                count = lsn - batch.first_lsn
                what = f"the batch here has {count} records, its head says {batch.records}"
                self._problem("journal-record", position, what)
                self._stop_replay()
        self._report.journal_records += lsn - batch.first_lsn

    def _record(self, record: Record, lsn: int, position: JournalPosition) -> None:
        is_due = self._can_replay and lsn > self._checkpoint_lsn
        if not is_due or record.stream_id in self._skipped:
            return
        try:
            fault = self._apply(record, lsn, position)
        except (Damaged, *CATALOG_ERRORS):
            # The check of the catalog reports what is wrong with the row.
            self._skipped.add(record.stream_id)
            return
        if fault is not None:
            self._skipped.add(record.stream_id)
            self._problem("journal-append", position, f"record {lsn}: {fault}", record.stream_id)

    def _apply(self, record: Record, lsn: int, position: JournalPosition) -> str | None:
        """Apply a record; return why it cannot follow those before it, if it cannot."""
        replay = self._replay
        for stream_id in record.ended_ids:
            self._unknown.pop(stream_id, None)
        for stream_id in record.required_ids:
            self._note_required(stream_id, position)
        if record.stream_id in record.required_ids:
            stream = replay.stream(record.stream_id)
            if (
                stream is not None
                and lsn > stream.applied_lsn
                and (fault := _fault(stream, record))
            ):
                return fault
        try:
            replay.apply(record, lsn)
        except ValueError as error:
            return str(error)
        stream = replay.streams.get(record.stream_id)
        if stream is not None and stream.path not in self._keep:
            stream.memory.drop(stream.tail)
        return _payload_fault(record, stream)

    def _note_required(self, stream_id: int, position: JournalPosition) -> None:
        """Note a stream that a record needs and that is unknown. A stream that is deleted later may
        have lost its row and its first records already."""
        replay = self._replay
        if stream_id not in replay.deleted and replay.stream(stream_id) is None:
            self._unknown.setdefault(stream_id, position)

    def _problem(
        self, code: str, position: JournalPosition, what: str, stream_id: int | None = None
    ) -> None:
        stream = None if stream_id is None else self._replay.streams.get(stream_id)
        self._report.problem(
            code,
            position.file,
            what,
            position=position.byte,
            stream=None if stream is None else stream.path,
            advice=NOT_STARTING,
        )


def _fault(stream: Stream, record: Record) -> str | None:
    if isinstance(record, AppendRecord | SnapshotRecord) and stream.closed:
        return "the stream is closed already"
    if stream.soft_deleted:
        return "the stream is deleted already"
    if isinstance(record, TrimRecord) and not stream.earliest <= record.position <= stream.tail:
        return f"it trims to {record.position} what reaches from {stream.earliest} to {stream.tail}"
    return None


def _payload_fault(record: Record, stream: Stream | None) -> str | None:
    """Return what is wrong with a payload: in a JSON stream messages alone end with a line feed."""
    if isinstance(record, CreateRecord):
        in_messages, count = is_json(record.meta.content_type), record.meta.count
    elif isinstance(record, AppendRecord | SnapshotRecord) and stream is not None:
        in_messages, count = stream.is_json, record.count
    else:
        return None
    if not in_messages:
        return None
    lines = record.payload.count(b"\n")
    if lines != count or (record.payload and not record.payload.endswith(b",\n")):
        return f"it claims {count} messages but holds {lines}"
    return None
