"""Opening a data folder: its format, its lock, and the journal replayed onto the catalog.

The cost is that of reading the journal since the last checkpoint. Replay applies records and
decides nothing again; each stream skips what its catalog row already has.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import StoreDamaged, StoreTooNew, WorkersDiffer
from penstock.log.disk import journal
from penstock.log.disk.catalog import Catalog
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.journal_mark import MARK_FILE, Mark, read_mark
from penstock.log.disk.journal_recovery import REFUSED, JournalRecovery
from penstock.log.disk.segment import BLOCK_BYTES, ENTRY, SegmentFolder
from penstock.log.held_stream import HeldStream
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
from penstock.protocol.producer import ProducerState
from penstock.protocol.shards import WHOLE, Shard

FORMAT = 2
FORMAT_COLD = 3
"""The format of a folder with cold segments: the one that others have is enough without."""
FORMAT_FILE = "PENSTOCK"
RESTORING_FILE = "RESTORING"
"""A file that is there as long as a restore is not finished."""
RESHARDING_FILE = "RESHARDING"
"""A file that is there as long as the number of workers is being changed."""
RESTORED = "restored"
"""The key of the catalog's meta values with the generation of the last restore."""
HAS_MARK = "journal_mark"
"""The key of the catalog's meta values that says that the file JOURNAL is there."""


def check_format(files: Files, root: Path) -> None:
    """Write the format file of a new or older folder; refuse that of a newer Penstock."""
    check_restored(files, root)
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
    if read_version(files, root) < FORMAT:
        # Before anything else changes: an earlier Penstock cannot write to what this one leaves.
        set_format(files, root, FORMAT)


def set_format(files: Files, root: Path, version: int) -> None:
    content = read_format(files, root)
    if content["format"] != version:
        text = json.dumps({**content, "format": version}) + "\n"
        files.write_text(root / FORMAT_FILE, text)


def check_restored(files: Files, root: Path) -> None:
    """Refuse a folder that a restore or a reshard is being written to, or was when it was
    killed."""
    if files.exists(root / RESHARDING_FILE):
        raise WorkersDiffer(
            f"The number of workers of {root} is being changed, or was when that was ended. Run "
            "`penstock reshard` again with the same folder."
        )
    if files.exists(root / RESTORING_FILE):
        raise StoreDamaged(
            f"The restore into {root} was not finished. Run `penstock restore` again with the same "
            "folder."
        )


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
    if "workers" in content and "worker" not in content:
        raise WorkersDiffer(
            f"{root} is laid out for {content['workers']} workers. Start the server with --workers "
            f"{content['workers']}, or run `penstock reshard` to change their number."
        )
    if version > FORMAT_COLD:
        raise StoreTooNew(
            f"{root} has data format {version}; this Penstock reads formats up to {FORMAT_COLD}. "
            "Run the newer Penstock that wrote it."
        )
    assert isinstance(content, dict)
    return content


def read_version(files: Files, root: Path) -> int:
    return int(str(read_format(files, root)["format"]))


def read_shard(files: Files, root: Path) -> Shard:
    """Return which share of the paths a folder is for: all of them, unless it is a worker's."""
    content = read_format(files, root)
    if "worker" not in content:
        return WHOLE
    return Shard(int(str(content["worker"])), int(str(content["workers"])))


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
    files: list[journal.OldFile]
    mark: Mark
    records: int
    warnings: list[str]
    cut_bytes: int
    set_aside: int


class StoredRows(Protocol):
    """The rows that a replay begins with."""

    def by_id(self, stream_id: int) -> Row | None: ...

    def producer(self, stream_id: int, producer_id: str) -> ProducerState | None: ...


class Replay:
    """Applies records to streams that it loads from the catalog when the journal names them."""

    def __init__(self, catalog: StoredRows, checkpoint_lsn: int, next_id: int) -> None:
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
            stream = HeldStream(
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


def recover(
    files: Files, root: Path, catalog: Catalog, folder: SegmentFolder, *, cuts_damage: bool = False
) -> Recovered:
    """Replay the journal; StoreDamaged, and nothing changed, if more is wrong with it than a crash
    explains. With `cuts_damage` it is cut there instead."""
    meta = catalog.meta()
    checkpoint_lsn = int(meta.get("checkpoint_lsn", 0))
    replay = Replay(catalog, checkpoint_lsn, int(meta.get("next_id", 1)))
    mark = read_mark(files, root)
    if mark is None and meta.get(HAS_MARK) and not cuts_damage:
        raise StoreDamaged(f"{MARK_FILE} is missing or damaged. {REFUSED}")
    journals = JournalRecovery(
        files,
        root,
        mark,
        checkpoint_lsn=checkpoint_lsn,
        is_clean=bool(meta.get("clean")),
        cuts_damage=cuts_damage,
    )
    journals.run(replay.batch)
    mark = journals.finish()
    for stream in replay.streams.values():
        stream.reset_pending()
        _cut_segments(files, folder, stream)
    return Recovered(
        replay.streams,
        replay.deleted,
        journals.next_lsn,
        replay.next_id,
        journals.next_number,
        journals.kept,
        mark,
        replay.records,
        journals.warnings,
        journals.cut_bytes,
        journals.set_aside_count,
    )


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
