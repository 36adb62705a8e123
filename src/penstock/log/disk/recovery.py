"""Opening a data folder: its format, its lock, and the journal replayed onto the catalog.

The cost is that of reading the journal since the last checkpoint. Replay applies records and
decides nothing again; each stream skips what its catalog row already has.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreDamaged, StoreTooNew
from penstock.log.disk import journal
from penstock.log.disk.catalog import Catalog
from penstock.log.disk.catalog_rows import stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.segment import BLOCK_BYTES, ENTRY, SegmentFolder
from penstock.log.mutations import (
    apply_create,
    apply_forked,
    apply_record,
    apply_released,
    apply_soft_delete,
)
from penstock.log.records import (
    AppendRecord,
    CreateRecord,
    DeleteRecord,
    Record,
    SnapshotRecord,
    decode_records,
)
from penstock.log.stream import Stream

FORMAT = 2
FORMAT_FILE = "PENSTOCK"


def check_format(files: Files, root: Path) -> None:
    """Write the format file of a new or older folder; refuse that of a newer Penstock."""
    path = root / FORMAT_FILE
    if not files.exists(path):
        if files.list_folder(root / "journal") or files.exists(root / "catalog.sqlite"):
            raise StoreDamaged(
                f"{root} has Penstock data but no {FORMAT_FILE} file. Restore it from a backup."
            )
        files.sync_above(root)
        files.write_text(
            path, json.dumps({"format": FORMAT, "store_id": secrets.token_hex(8)}) + "\n"
        )
        return
    content = read_format(files, root)
    if content["format"] != FORMAT:
        # Before anything else changes: an earlier Penstock cannot write to what this one leaves.
        files.write_text(path, json.dumps({**content, "format": FORMAT}) + "\n")


def read_format(files: Files, root: Path) -> dict[str, object]:
    """Return the content of the format file; StoreTooNew if this Penstock is too old for it."""
    path = root / FORMAT_FILE
    try:
        content = json.loads(files.read_text(path))
        version = int(content["format"])
    except (ValueError, KeyError, TypeError):
        raise StoreDamaged(
            f"{path} is not a Penstock format file. Restore it from a backup."
        ) from None
    if version > FORMAT:
        raise StoreTooNew(
            f"{root} has data format {version}; this Penstock reads formats up to {FORMAT}. "
            "Run the newer Penstock that wrote it."
        )
    assert isinstance(content, dict)
    return content


def _check_start(stream: Stream, record: AppendRecord | SnapshotRecord) -> None:
    if record.start != stream.tail:
        raise ValueError(f"stream {stream.id} ends at {stream.tail}, not {record.start}")
    if isinstance(record, SnapshotRecord) and record.ordinal != stream.count:
        raise ValueError(f"stream {stream.id} has {stream.count} messages, not {record.ordinal}")


class Recovered(NamedTuple):
    streams: dict[int, Stream]
    deleted: dict[int, Stream]
    next_lsn: int
    next_id: int
    next_number: int
    files: list[tuple[Path, int]]
    records: int
    warnings: list[str]


class Replay:
    """Applies records to streams that it loads from the catalog when the journal names them."""

    def __init__(self, catalog: Catalog, checkpoint_lsn: int, next_id: int) -> None:
        self._catalog = catalog
        self._checkpoint_lsn = checkpoint_lsn
        self.next_id = next_id
        self.streams: dict[int, Stream] = {}
        self.deleted: dict[int, Stream] = {}
        self.records = 0

    def batch(self, batch: journal.Batch, name: str) -> None:
        lsn = batch.first_lsn
        try:
            for record in decode_records(batch.body):
                self.apply(record, lsn)
                lsn += 1
        except (ValueError, IndexError) as error:
            raise StoreDamaged(
                f"Journal {name}, LSN {lsn}: {error}. Restore from a backup."
            ) from None
        if lsn != batch.first_lsn + batch.records:
            raise StoreDamaged(
                f"Journal {name}: batch {batch.first_lsn} lacks records. Restore from a backup."
            )

    def apply(self, record: Record, lsn: int) -> None:
        """ValueError if the record cannot follow what its stream has."""
        if lsn <= self._checkpoint_lsn:
            return
        self.records += 1
        self.next_id = max(self.next_id, record.stream_id + 1)
        if isinstance(record, CreateRecord):
            self._create(record, lsn)
        elif isinstance(record, DeleteRecord):
            self._delete(record, lsn)
        else:
            stream = self.stream(record.stream_id)
            if stream is not None and lsn > stream.applied_lsn:
                if isinstance(record, AppendRecord | SnapshotRecord):
                    _check_start(stream, record)
                if isinstance(record, AppendRecord):
                    self._load_producer(stream, record)
                apply_record(stream, record, lsn)

    def _create(self, record: CreateRecord, lsn: int) -> None:
        meta = record.meta
        for stream_id in record.ended_ids:
            self._remove(stream_id)
        if self.stream(record.stream_id) is None:
            stream = Stream(
                record.stream_id, meta.path, meta.config, meta.created_us, fork=meta.fork
            )
            apply_create(stream, meta, record.payload, lsn)
            self.streams[stream.id] = stream
        if meta.source_id is not None:
            source = self.stream(meta.source_id)
            if source is not None and lsn > source.applied_lsn:
                apply_forked(source, meta, lsn)

    def _load_producer(self, stream: Stream, record: AppendRecord) -> None:
        """Bring the producer of an append into memory, so that it is not counted twice."""
        producer = record.producer
        if producer is not None and producer.id not in stream.producers:
            state = self._catalog.producer(stream.id, producer.id)
            if state is not None:
                stream.producers[producer.id] = state

    def _delete(self, record: DeleteRecord, lsn: int) -> None:
        if record.soft:
            stream = self.stream(record.stream_id)
            if stream is not None and lsn > stream.applied_lsn:
                apply_soft_delete(stream, lsn)
            return
        for stream_id in record.ended_ids:
            self._remove(stream_id)
        source = self.stream(record.released) if record.released else None
        if source is not None and lsn > source.applied_lsn:
            apply_released(source, lsn)

    def _remove(self, stream_id: int) -> None:
        stream = self.stream(stream_id)
        if stream is not None:
            stream.deleted = True
            self.streams.pop(stream.id, None)
            self.deleted[stream.id] = stream

    def stream(self, stream_id: int) -> Stream | None:
        """Return the stream as replayed so far; None if it is deleted or unknown."""
        if stream_id in self.deleted:
            return None
        stream = self.streams.get(stream_id)
        if stream is None:
            row = self._catalog.by_id(stream_id)
            if row is None:
                return None
            stream = self.streams[stream_id] = stream_from_row(row)
        return stream


def recover(files: Files, root: Path, catalog: Catalog, folder: SegmentFolder) -> Recovered:
    meta = catalog.meta()
    checkpoint_lsn = int(meta.get("checkpoint_lsn", 0))
    replay = Replay(catalog, checkpoint_lsn, int(meta.get("next_id", 1)))
    journals = root / "journal"
    journal_paths: list[tuple[Path, int]] = []
    last_batches: list[tuple[Path, int, bytes]] = []
    warnings: list[str] = []
    next_lsn, next_number = checkpoint_lsn + 1, 1
    is_cut = False
    for path, data in journal.journal_files(files, journals):
        scan = None if is_cut else journal.scan_file(data, path.name)
        if is_cut:
            files.remove(path)
            continue
        if scan is None:
            _drop_unborn(files, path, data)
            continue
        number = int(path.stem)
        next_number = max(next_number, number + 1, scan.head.number + 1)
        if scan.head.number != number:
            # A recycled file whose renames were undone by a power loss: nothing in it was
            # acknowledged.
            files.remove(path)
            continue
        last = scan.head.first_lsn - 1 + sum(batch.records for batch in scan.batches)
        if last <= checkpoint_lsn and scan.head.first_lsn <= checkpoint_lsn:
            journal_paths.append((path, last))
            continue
        if scan.head.first_lsn > next_lsn:
            lost = f"records {next_lsn} to {scan.head.first_lsn - 1} are missing before {path.name}"
            if scan.head.durability == journal.FSYNC:
                raise StoreDamaged(f"The journal is damaged: {lost}. Restore from a backup.")
            warnings.append(f"Buffered journal: {lost}; it is cut there.")
            files.remove(path)
            is_cut = True
            continue
        journal_paths.append((path, last))
        for batch in scan.batches:
            replay.batch(batch, path.name)
        if scan.batches:
            begin = scan.end - journal.batch_bytes(scan.batches[-1])
            last_batches.append((path, begin, data[begin : scan.end]))
        next_lsn = max(next_lsn, last + 1)
        if scan.torn and scan.head.durability == journal.BUFFERED:
            warnings.append(f"Buffered journal {path.name} is cut at byte {scan.end}.")
    _make_durable(files, journals, last_batches)
    for stream in replay.streams.values():
        stream.reset_pending()
        _cut_segments(files, folder, stream)
    return Recovered(
        replay.streams,
        replay.deleted,
        next_lsn,
        replay.next_id,
        next_number,
        journal_paths,
        replay.records,
        warnings,
    )


def _make_durable(files: Files, folder: Path, last_batches: list[tuple[Path, int, bytes]]) -> None:
    """Sync what was read: it is about to be served, but may be in the page cache only, after a
    server was killed or its sync failed. The last batch of a file is written once more, because a
    sync after a failed one can succeed without the pages that the failed one lost."""
    for path, begin, batch in last_batches:
        file = files.open_write(path)
        try:
            file.write_at(begin, [batch])
            file.sync_data()
        finally:
            file.close()
    files.sync_folder(folder)


def _drop_unborn(files: Files, path: Path, data: bytes) -> None:
    """Remove a file whose head was never written; StoreDamaged if batches follow the lost head."""
    if any(data[journal.HEAD_BYTES : journal.HEAD_BYTES * 2]):
        raise StoreDamaged(
            f"Journal {path.name} is damaged at byte 0: its head is unreadable but batches follow. "
            "Nothing was changed. Restore the data folder from a backup."
        )
    files.remove(path)


def _cut_segments(files: Files, folder: SegmentFolder, stream: Stream) -> None:
    """Cut off what an unfinished checkpoint wrote: the journal still has it."""
    if not stream.segments:
        return
    info = stream.segments[-1]
    for path, length in (
        (folder.data_path(stream.id, info.base), info.length),
        (folder.index_path(stream.id, info.base), info.length // BLOCK_BYTES * ENTRY.size),
    ):
        if files.exists(path):
            file = files.open_write(path)
            try:
                if file.size() > length:
                    file.truncate(length)
            finally:
                file.close()
