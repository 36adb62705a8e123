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
from penstock.log.disk.recovery import Replay
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
        self._previous: JournalFile | None = None
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
            for path, data in journal.journal_files(files, self._folder.root / "journal"):
                self._file(path, data)
                self._progress.add(len(data))
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

    # -- files

    def _file(self, path: Path, data: bytes) -> None:
        name = self._folder.name(path)
        self._report.journal_files += 1
        if not path.stem.isdecimal():
            self._problem(
                "journal-name", JournalPosition(name, 0), "this is not the name of a journal file"
            )
            return
        scan = journal.find_batches(data, path.name)
        if scan is None:
            self._headless(JournalPosition(name, 0), data)
            return
        if scan.head.number != int(path.stem):
            self._report.note(
                f"{name} is a recycled file whose renaming was undone by a power loss; "
                "the next start removes it"
            )
            return
        batches = scan.batches
        last_lsn = scan.head.first_lsn - 1 + sum(batch.records for batch in batches)
        durability = "fsync" if scan.head.durability == journal.FSYNC else "buffered"
        file = JournalFile(name, len(data), durability, scan.head.first_lsn, last_lsn, len(batches))
        self._check_order(file)
        self.files.append(file)
        position = journal.HEAD_BYTES
        for batch in batches:
            self._batch(batch, JournalPosition(name, position))
            position += journal.batch_bytes(batch)
        self._next_lsn = max(self._next_lsn, last_lsn + 1)
        self._previous = file
        self._check_end(file, scan)

    def _headless(self, position: JournalPosition, data: bytes) -> None:
        if any(data[journal.HEAD_BYTES : journal.HEAD_BYTES * 2]):
            self._problem("journal-damaged", position, "its head is unreadable but batches follow")
            self._stop_replay()
        else:
            self._report.note(f"{position.file} was never finished and is empty")

    def _check_order(self, file: JournalFile) -> None:
        position = JournalPosition(file.name, 0)
        previous = self._previous
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
            return
        missing = f"records {self._next_lsn} to {file.first_lsn - 1} are missing before it"
        if file.durability == "fsync":
            self._problem("journal-gap", position, missing)
        elif self._can_replay:
            self._report.note(
                f"{file.name}: {missing}; the journal is buffered, so the next start cuts it here"
            )
        self._stop_replay()

    def _check_end(self, file: JournalFile, scan: journal.Scan) -> None:
        if scan.later is not None and file.durability == "fsync":
            self._problem(
                "journal-damaged",
                JournalPosition(file.name, scan.end),
                f"the batch here is unreadable but a whole one follows at byte {scan.later}",
            )
            self._stop_replay()
        elif scan.torn and file.durability == "buffered":
            self._report.note(
                f"{file.name}, byte {scan.end}: the batch here is unreadable; the journal is "
                "buffered, so the next start cuts it here"
            )
        elif scan.torn:
            fate = "was never acknowledged"
            if file.last_lsn < self._checkpoint_lsn:
                fate = "is not needed: what it held was never acknowledged or is in the catalog"
            self._report.note(f"{file.name}, byte {scan.end}: the torn batch here {fate}")

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
