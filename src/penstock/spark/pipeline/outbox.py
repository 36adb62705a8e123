"""The outbox: what a pipeline publishes, committed once as rows that never change, and sent from
there. A row sent twice has the same number twice, and the server keeps it once.

What is true is in the rows and in what the last commit says; how they lie in files, and what is
said of those, only spares reading. A row that the server has, and that is not the newest of its
key, is let go of in the commit that says so.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from penstock import limits
from penstock.errors import WarehouseInUse
from penstock.spark.pipeline.outbox_rows import (
    IN_PLACE,
    OUTBOX,
    PLACE,
    ROWS,
    Change,
    Chunk,
    chunk_of,
    newest,
    rows_of,
)
from penstock.spark.warehouse.delta import File, Table, Written, write_file
from penstock.spark.warehouse.storage import filesystem
from penstock.spark.warehouse.warehouse import Warehouse

_STATISTICS: Final = ("publish", "chunk", "batch")
_STATE: Final = [name for name in OUTBOX.names if name != "message"]
_COMMIT_ATTEMPTS: Final = 5  # while others compact the files
_READ_ROWS: Final = 4096
_dataset: Any = ds


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """What each commit of the outbox says of all up to it."""

    warehouse: str = ""  # a name of its own, which the server knows the producer by
    sent: dict[str, int] = {}  # chunks that the server is known to have, by publish
    computed: dict[str, int] = {}  # the batch that a result is as of
    unkeyed: dict[str, int] = {}  # rows of a result that have no key, and were left out
    writer: int = 0  # the run that has made it
    number: int = 0  # counts the commits
    size: int = 0  # of the files when they were made few


class Outbox:
    """The table, and how far it was sent."""

    def __init__(
        self, warehouse: Warehouse, *, files_max: int = limits.PIPELINE_OUTBOX_FILES
    ) -> None:
        self._warehouse = warehouse
        self._table = Table(warehouse.outbox_uri, OUTBOX, warehouse.options)
        self._files_max = files_max
        self._next: dict[str, int] = {}
        self._fresh: dict[str, deque[Chunk]] = {}  # committed by this run, and not sent
        self._files = self._size = 0
        self._seen: int | None = None  # the version that is known to be ours
        self._committed = self.mail = Mail()

    @property
    def exists(self) -> bool:
        return self._table.exists

    def look(self) -> None:
        """See what the last commit says; for those who only read."""
        self._table.refresh()
        if self._table.exists:
            self._committed = self.mail = msgspec.convert(self._table.record(), Mail)

    def open(self) -> None:
        """Become the one that writes."""
        writer = self._warehouse.writer or 0
        self._table.refresh()
        self._table.create(msgspec.to_builtins(Mail(warehouse=uuid.uuid4().hex, writer=writer)))
        self._committed = self.mail = self._record()
        self._seen = self._table.version
        if self.mail.writer != writer:
            # From here on a run that was taken for dead, and is not, finds that it is not its own.
            self.mail = msgspec.structs.replace(self.mail, writer=writer)
            self._commit([], {})
        self._measure()
        rows = self._read(self._table.files(), ["publish", "chunk"])
        last = rows.group_by("publish").aggregate([("chunk", "max")]).to_pylist()
        # Rows are let go of only when they are known to be sent: the larger number is the last.
        known = [*((row["publish"], row["chunk_max"]) for row in last), *self.mail.sent.items()]
        for name, chunk in known:
            self._next[name] = max(self._next.get(name, 0), chunk + 1)

    def published(self, publish: str) -> dict[str, str]:
        """The result as it was published last: the newest value of each key."""
        found = newest(self._rows(publish, [*PLACE, "operation", "key", "value"]))
        return dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))

    def keys(self, publish: str) -> int:
        """How many keys that result has."""
        return len(newest(self._rows(publish, [*PLACE, "operation", "key"])))

    def add(
        self, publish: str, target: str, batch: int, chunks: Sequence[Sequence[Change]]
    ) -> None:
        """Commit changes of a result: from here on they are what is sent."""
        first = self._next.get(publish, 0)
        made = (
            rows_of(publish, target, batch, first + number, changes)
            for number, changes in enumerate(chunks)
        )
        self._commit(self._write(publish, f"{batch:08d}", made), {f"publish/{publish}": batch})
        self._next[publish] = first + len(chunks)
        self._fresh.setdefault(publish, deque()).extend(
            Chunk(first + number, target, [each.message for each in changes])
            for number, changes in enumerate(chunks)
        )

    def waiting(self, publish: str) -> Iterator[Chunk]:
        """Chunks that are not known to be sent, in order."""
        sent = self.mail.sent.get(publish, -1)
        if self._next.get(publish) == sent + 1:
            return
        fresh = self._fresh.get(publish)
        if fresh and fresh[0].number == sent + 1:  # nothing older waits: no need to read it back
            yield from list(fresh)
            return
        rows = self._rows(publish, [*PLACE, "target", "message"], after=sent)
        held: list[dict[str, Any]] = []
        for part in rows.sort_by(IN_PLACE).to_batches(max_chunksize=_READ_ROWS):
            for row in part.to_pylist():
                if held and held[0]["chunk"] != row["chunk"]:
                    yield chunk_of(held)
                    held = []
                held.append(row)
        if held:
            yield chunk_of(held)

    def mark(self, publish: str, chunk: int) -> None:
        """A chunk has arrived; that is written down with the next commit, which is soon enough."""
        self.mail = msgspec.structs.replace(self.mail, sent={**self.mail.sent, publish: chunk})
        fresh = self._fresh.get(publish)
        while fresh and fresh[0].number <= chunk:
            fresh.popleft()

    def computed(self, publish: str, batch: int, unkeyed: int) -> None:
        """A result is as of a batch, with so many rows left out; written down likewise."""
        self.mail = msgspec.structs.replace(
            self.mail,
            computed={**self.mail.computed, publish: batch},
            unkeyed={**self.mail.unkeyed, publish: unkeyed},
        )

    def tidy(self) -> None:
        """Once there are many files, or much in them that is not needed: make them few."""
        many = self._files >= self._files_max * max(1, len(self._next))
        if not many and self._size <= 2 * self.mail.size + limits.PIPELINE_OUTBOX_BYTES:
            return
        self._look()
        written: list[Written] = []
        for name in sorted(self._next):
            written += self._write(name, "tidy", self._kept(name))
        size = sum(file.size for file in written)
        self.mail = msgspec.structs.replace(self.mail, size=size)
        self._commit(written, {}, overwrite=True)
        self._files, self._size = len(written), size

    def note(self) -> None:
        """Write down what is known and not written down yet."""
        if self._table.exists and self.mail != self._committed:
            self._commit([], {})

    def _kept(self, publish: str) -> Iterator[pa.RecordBatch]:
        """The rows that are needed: the newest of each key that was sent, and all that was not."""
        sent = self.mail.sent.get(publish, -1)
        state = newest(self._rows(publish, _STATE, until=sent))
        state = state.append_column("message", pa.nulls(len(state), pa.large_string()))
        yield from state.to_batches(max_chunksize=_READ_ROWS)
        yield from self._rows(publish, OUTBOX.names, after=sent).to_batches()

    def _write(self, publish: str, name: str, rows: Iterator[pa.RecordBatch]) -> list[Written]:
        prefix = f"{publish}-{name}"
        made = write_file(
            self._table.uri,
            ROWS,
            rows,
            prefix=prefix,
            statistics=_STATISTICS,
            options=self._warehouse.options,
        )
        return [] if made is None else [made]

    def _commit(
        self, files: list[Written], transactions: dict[str, int], *, overwrite: bool = False
    ) -> None:
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            self._look()
            mail = msgspec.structs.replace(self.mail, number=self._committed.number + 1)
            told = msgspec.to_builtins(mail)
            try:
                self._table.commit(files, told, transactions, overwrite=overwrite)
            except WarehouseInUse:
                if attempt == _COMMIT_ATTEMPTS:
                    raise
                continue  # if it was only upkeep, the next look says so
            assert self._seen is not None
            self._seen += 1
            self._committed = self.mail = mail
            self._files += len(files)
            self._size += sum(file.size for file in files)
            return

    def _look(self) -> None:
        """See what others have committed: upkeep is welcome, anything else is an error."""
        self._table.refresh()
        if self._table.version == self._seen:
            return
        if self._record() != self._committed:
            raise WarehouseInUse(
                f"Another run has written to {self._table.uri}, and this one has ended: one "
                "pipeline writes a warehouse at a time."
            )
        self._seen = self._table.version
        self._measure()

    def _record(self) -> Mail:
        found = self._table.record()
        self._table.refuse_foreign()
        return msgspec.convert(found, Mail)

    def _measure(self) -> None:
        files: Any = pa.table(self._table.handle.get_add_actions(flatten=True))
        self._files, self._size = files.num_rows, sum(files["size_bytes"].to_pylist())

    def _rows(
        self, publish: str, columns: list[str], *, after: int = -1, until: int | None = None
    ) -> pa.Table:
        """Rows of one publish, of chunks after one and up to another, in any order."""
        wanted = (_dataset.field("publish") == publish) & (_dataset.field("chunk") > after)
        if until is not None:
            wanted &= _dataset.field("chunk") <= until
        files = [
            file
            for file in self._table.files()
            if _may_have(file, "publish", publish, publish)
            and _may_have(file, "chunk", after + 1, until)
        ]
        return self._read(files, columns, wanted)

    def _read(self, files: list[File], columns: list[str], wanted: Any = None) -> pa.Table:
        if not files:
            return ROWS.empty_table().select(columns)
        options = self._warehouse.options
        store, _ = filesystem(self._table.uri, options)
        paths = [filesystem(file.path, options)[1] for file in files]
        found = _dataset.dataset(paths, schema=ROWS, filesystem=store, format="parquet")
        return found.to_table(columns=columns, filter=wanted)


def _may_have(file: File, column: str, low: Any, high: Any) -> bool:
    """Whether a file may have rows from `low` to `high`; what nobody has noted it may have."""
    least, most = file.least.get(column), file.most.get(column)
    return (most is None or most >= low) and (least is None or high is None or least <= high)
