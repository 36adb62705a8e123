"""The outbox: what a pipeline publishes, committed once as rows that never change, and sent from
there. A row that is sent twice has the same number both times, and the server stores it once.

Only the rows and the record of the last commit count; files and their statistics only spare
reading. A row that the server has, and that is not the newest of its key, is dropped in the commit
that records that the server has it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.errors import WarehouseInUse
from penstock.spark.pipeline.outbox_rows import (
    ORDER,
    OUTBOX,
    ROWS,
    SORT_KEYS,
    Change,
    Chunk,
    chunk_of,
    newest,
    rows_of,
)
from penstock.spark.warehouse.delta import ParquetFile, Table, TableFile, write_file
from penstock.spark.warehouse.storage import filesystem
from penstock.spark.warehouse.warehouse import OUTBOX_STATISTICS, Warehouse

_STATE: Final = [name for name in OUTBOX.names if name != "message"]
_COMMIT_ATTEMPTS: Final = 5  # while others compact the files
_READ_ROWS: Final = 4096


class OutboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a commit of the outbox."""

    warehouse: str = ""  # a unique name of the warehouse, part of the producer id
    sent: dict[str, int] = {}  # the last chunk that the server is known to have, by publish
    computed: dict[str, int] = {}  # the batch up to which a result is computed
    basis: dict[str, str] = {}  # a digest of the query and the schemas that it was computed with
    unkeyed: dict[str, int] = {}  # rows of a result that have no key and are not published
    violations: dict[str, int] = {}  # rows of a result that violate an expectation, by NAME.EXPECT
    troubles: dict[str, str] = {}  # why a result is not up to date, with on_error = "continue"
    tails: dict[str, str] = {}  # the offset of the target after the last chunk that was sent
    writer: int = 0  # the writer number of the run that committed it
    number: int = 0  # of the commit
    size: int = 0  # bytes of the files after the last compaction


class Outbox:
    """The table **outbox**, and how much of it was sent."""

    def __init__(
        self, warehouse: Warehouse, *, files_max: int = limits.PIPELINE_OUTBOX_FILES
    ) -> None:
        self._warehouse = warehouse
        self._table = Table(
            warehouse.outbox_uri, OUTBOX, warehouse.options, statistics=OUTBOX_STATISTICS
        )
        self._files_max = files_max
        self._next: dict[str, int] = {}
        self._fresh: dict[str, deque[Chunk]] = {}  # committed by this run and not sent yet
        self._files = self._size = 0
        self._checked: int | None = None  # the newest version that is known to be ours
        self._committed = self.record = OutboxRecord()

    @property
    def exists(self) -> bool:
        return self._table.exists

    def refresh(self) -> None:
        """Read the record of the last commit; for readers."""
        self._table.refresh()
        if self._table.exists:
            self._committed = self.record = msgspec.convert(self._table.record(), OutboxRecord)

    def open(self) -> None:
        """Become the writer."""
        writer = self._warehouse.writer or 0
        self._table.refresh()
        self._table.create(
            msgspec.to_builtins(OutboxRecord(warehouse=uuid.uuid4().hex, writer=writer))
        )
        self._committed = self.record = self._own_record()
        self._checked = self._table.version
        if self.record.writer != writer:
            # From here on a run that was thought dead but is alive fails at its next commit.
            self.record = msgspec.structs.replace(self.record, writer=writer)
            self._commit([], {})
        self._measure()
        rows = self._read(self._table.files(), ["publish", "chunk"])
        last = rows.group_by("publish").aggregate([("chunk", "max")]).to_pylist()
        # Rows are dropped only when they are known to be sent: the larger number is the last.
        chunks = [*((row["publish"], row["chunk_max"]) for row in last), *self.record.sent.items()]
        for name, chunk in chunks:
            self._next[name] = max(self._next.get(name, 0), chunk + 1)

    def published(self, publish: str) -> dict[str, str]:
        """The result that was published last: the newest value of each key."""
        rows = newest(self._rows(publish, [*ORDER, "operation", "key", "value"]))
        return dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))

    def keys(self, publish: str) -> int:
        """The number of keys of that result."""
        return len(newest(self._rows(publish, [*ORDER, "operation", "key"])))

    def add(
        self, publish: str, target: str, batch: int, chunks: Sequence[Sequence[Change]]
    ) -> None:
        """Commit the changes of a result, which are sent from here on."""
        first = self._next.get(publish, 0)
        rows = (
            rows_of(publish, target, batch, first + number, changes)
            for number, changes in enumerate(chunks)
        )
        self._commit(self._write(publish, f"{batch:08d}", rows), {f"publish/{publish}": batch})
        self._next[publish] = first + len(chunks)
        self._fresh.setdefault(publish, deque()).extend(
            Chunk(first + number, target, [each.message for each in changes])
            for number, changes in enumerate(chunks)
        )

    def waiting(self, publish: str) -> Iterator[Chunk]:
        """The chunks that are not known to be sent, in order."""
        sent = self.record.sent.get(publish, -1)
        if self._next.get(publish) == sent + 1:
            return
        fresh = self._fresh.get(publish)
        if fresh and fresh[0].number == sent + 1:  # nothing older waits, so that no file is read
            yield from list(fresh)
            return
        rows = self._rows(publish, [*ORDER, "target", "message"], after=sent)
        pending: list[dict[str, Any]] = []
        for part in rows.sort_by(SORT_KEYS).to_batches(max_chunksize=_READ_ROWS):
            for row in part.to_pylist():
                if pending and pending[0]["chunk"] != row["chunk"]:
                    yield chunk_of(pending)
                    pending = []
                pending.append(row)
        if pending:
            yield chunk_of(pending)

    def last(self, publish: str) -> int:
        """The number of the last chunk, sent or not; -1 if there is none."""
        return self._next.get(publish, 0) - 1

    def mark_sent(self, publish: str, chunk: int, tail: str | None = None) -> None:
        """Note that the server has a chunk, and where its stream ends then, if that is known. The
        next commit records it."""
        tails = {**self.record.tails, publish: tail}
        self.record = msgspec.structs.replace(
            self.record,
            sent={**self.record.sent, publish: chunk},
            tails={name: offset for name, offset in tails.items() if offset is not None},
        )
        fresh = self._fresh.get(publish)
        while fresh and fresh[0].number <= chunk:
            fresh.popleft()

    def is_computed(self, publish: str, batch: int, basis: str) -> bool:
        """Whether a result was computed up to this very batch, with this basis."""
        record = self.record
        return record.computed.get(publish) == batch and record.basis.get(publish) == basis

    def mark_computed(
        self,
        publish: str,
        batch: int,
        basis: str,
        *,
        unkeyed: int = 0,
        violations: Mapping[str, int] | None = None,
    ) -> bool:
        """Note that a result is computed up to a batch, with so many rows without a key and so many
        that violate expectations; return whether these numbers are others than before. The next
        commit records it."""
        before = self.record
        counts = {f"{publish}.{name}": number for name, number in (violations or {}).items()}
        self.record = msgspec.structs.replace(
            before,
            computed={**before.computed, publish: batch},
            basis={**before.basis, publish: basis},
            unkeyed={**before.unkeyed, publish: unkeyed},
            violations={**_others(before.violations, publish), **counts},
            troubles={name: text for name, text in before.troubles.items() if name != publish},
        )
        names = ("violations", "troubles")
        return before.unkeyed.get(publish, 0) != unkeyed or any(
            getattr(before, name) != getattr(self.record, name) for name in names
        )

    def mark_trouble(self, publish: str, reason: str) -> None:
        """Commit why a result is not up to date, unless that is recorded already."""
        if self.record.troubles.get(publish) != reason:
            troubles = {**self.record.troubles, publish: reason}
            self.record = msgspec.structs.replace(self.record, troubles=troubles)
            self.commit_record()

    def compact_if_due(self) -> None:
        """Compact the files if there are many, or if much in them is not needed any more."""
        too_many = self._files >= self._files_max * max(1, len(self._next))
        if not too_many and self._size <= 2 * self.record.size + limits.PIPELINE_OUTBOX_BYTES:
            return
        self._check_writer()
        written: list[ParquetFile] = []
        for name in sorted(self._next):
            written += self._write(name, "tidy", self._needed(name))
        size = sum(file.size for file in written)
        self.record = msgspec.structs.replace(self.record, size=size)
        self._commit(written, {}, overwrite=True)
        self._files, self._size = len(written), size

    def commit_record(self) -> None:
        """Commit what was noted since the last commit."""
        if self._table.exists and self.record != self._committed:
            self._commit([], {})

    def _needed(self, publish: str) -> Iterator[pa.RecordBatch]:
        """The rows that are still needed: the newest of each key that was sent, and all unsent
        ones."""
        sent = self.record.sent.get(publish, -1)
        state = newest(self._rows(publish, _STATE, until=sent))
        state = state.append_column("message", pa.nulls(len(state), pa.large_string()))
        yield from state.to_batches(max_chunksize=_READ_ROWS)
        yield from self._rows(publish, OUTBOX.names, after=sent).to_batches()

    def _write(self, publish: str, name: str, rows: Iterator[pa.RecordBatch]) -> list[ParquetFile]:
        prefix = f"{publish}-{name}"
        file = write_file(
            self._table.uri,
            ROWS,
            rows,
            prefix=prefix,
            statistics=OUTBOX_STATISTICS,
            options=self._warehouse.options,
        )
        return [] if file is None else [file]

    def _commit(
        self, files: list[ParquetFile], transactions: dict[str, int], *, overwrite: bool = False
    ) -> None:
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            self._check_writer()
            record = msgspec.structs.replace(self.record, number=self._committed.number + 1)
            try:
                self._table.commit(
                    files, msgspec.to_builtins(record), transactions, overwrite=overwrite
                )
            except WarehouseInUse:
                if attempt == _COMMIT_ATTEMPTS:
                    raise
                continue  # the next check distinguishes maintenance from another writer
            assert self._checked is not None
            self._checked += 1
            self._committed = self.record = record
            self._files += len(files)
            self._size += sum(file.size for file in files)
            return

    def _check_writer(self) -> None:
        """Read the newest version; an error if others have committed more than maintenance."""
        self._table.refresh()
        if self._table.version == self._checked:
            return
        if self._own_record() != self._committed:
            raise WarehouseInUse(
                f"Another run has written to {self._table.uri}, so this one has ended: one "
                "pipeline writes a warehouse at a time."
            )
        self._checked = self._table.version
        self._measure()

    def _own_record(self) -> OutboxRecord:
        """The record of the last commit; an error if another engine has written since."""
        record = self._table.record()
        self._table.refuse_foreign()
        return msgspec.convert(record, OutboxRecord)

    def _measure(self) -> None:
        files: Any = pa.table(self._table.handle.get_add_actions(flatten=True))
        self._files, self._size = files.num_rows, sum(files["size_bytes"].to_pylist())

    def _rows(
        self, publish: str, columns: list[str], *, after: int = -1, until: int | None = None
    ) -> pa.Table:
        """The rows of a publish from chunks after `after` and up to `until`, in any order."""
        condition = (_field("publish") == publish) & (_field("chunk") > after)
        if until is not None:
            condition &= _field("chunk") <= until
        files = [
            file
            for file in self._table.files()
            if _may_have(file, "publish", publish, publish)
            and _may_have(file, "chunk", after + 1, until)
        ]
        return self._read(files, columns, condition)

    def _read(self, files: list[TableFile], columns: list[str], condition: Any = None) -> pa.Table:
        if not files:
            return ROWS.empty_table().select(columns)
        options = self._warehouse.options
        store, _ = filesystem(self._table.uri, options)
        paths = [filesystem(file.path, options)[1] for file in files]
        from pyarrow import dataset  # it loads pandas, which takes a while

        rows: Any = dataset.dataset(paths, schema=ROWS, filesystem=store, format="parquet")
        return rows.to_table(columns=columns, filter=condition)


def _field(name: str) -> Any:
    return pc.field(name)


def _others(counts: Mapping[str, int], publish: str) -> dict[str, int]:
    """The counts of other results; names of results have no dots."""
    return {name: n for name, n in counts.items() if name.partition(".")[0] != publish}


def _may_have(file: TableFile, column: str, low: Any, high: Any) -> bool:
    """Whether a file may have rows from `low` to `high`; without statistics it may."""
    least, most = file.least.get(column), file.most.get(column)
    return (most is None or most >= low) and (least is None or high is None or least <= high)
