"""The outbox: what a pipeline publishes, committed once as rows that never change, and sent from
there. A row sent twice has the same number twice, and the server keeps it once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from penstock.spark.storage import filesystem
from penstock.spark.tables import File, Table, write_file
from penstock.spark.warehouse import Warehouse

OUTBOX: Final = pa.schema(
    [
        ("publish", pa.string()),
        ("batch", pa.int64()),
        ("target", pa.string()),
        ("chunk", pa.int64()),
        ("ordinal", pa.int64()),
        ("operation", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("message", pa.string()),
    ]
)
_STATISTICS: Final = ("publish", "chunk", "batch")


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """What each commit of the outbox says of all up to it."""

    warehouse: str = ""  # a name of its own, which the server knows the producer by
    sent: dict[str, int] = {}  # chunks that the server is known to have, by publish
    computed: dict[str, int] = {}  # the batch that a result is as of


class Change(msgspec.Struct, frozen=True):
    """A key of a published result that has come, gone or changed."""

    operation: str
    key: str
    value: str | None
    message: str


class Chunk(msgspec.Struct, frozen=True):
    """Messages that are sent in one request, under one number."""

    number: int
    target: str
    messages: list[str]


class Outbox:
    """The table, and how far it was sent."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(warehouse.outbox_uri, OUTBOX, warehouse.options)
        self._options = warehouse.options
        self.mail = Mail()
        self._next: dict[str, int] = {}

    @property
    def exists(self) -> bool:
        return self._table.exists

    def open(self) -> None:
        self._table.refresh()
        self._table.create(msgspec.to_builtins(Mail(warehouse=uuid.uuid4().hex)))
        self.mail = msgspec.convert(self._table.record(), Mail)
        for file in self._table.files():
            name, last = file.most["publish"], file.most["chunk"]
            self._next[name] = max(self._next.get(name, 0), last + 1)

    def published(self, publish: str) -> dict[str, str]:
        """The result as it was published last: the newest value of each key."""
        found: dict[str, str] = {}
        for row in self._rows(self._files(publish)):
            if row["operation"] == "delete":
                found.pop(row["key"], None)
            else:
                found[row["key"]] = row["value"]
        return found

    def add(
        self, publish: str, target: str, batch: int, changes: Sequence[Change], *, chunk: int
    ) -> None:
        """Commit changes of a result: from here on they are what is sent."""
        first = self._next.get(publish, 0)
        rows = [
            {
                "publish": publish,
                "batch": batch,
                "target": target,
                "chunk": first + number // chunk,
                "ordinal": number % chunk,
                **{name: getattr(each, name) for name in ("operation", "key", "value", "message")},
            }
            for number, each in enumerate(changes)
        ]
        made = pa.RecordBatch.from_pylist(rows, schema=OUTBOX)
        written = write_file(
            self._table.uri,
            OUTBOX,
            [made],
            prefix=f"{publish}-{batch:08d}",
            statistics=_STATISTICS,
            options=self._options,
        )
        assert written is not None
        self._table.commit([written], msgspec.to_builtins(self.mail), {f"publish/{publish}": batch})
        self._next[publish] = first + (len(rows) - 1) // chunk + 1

    def waiting(self, publish: str) -> Iterator[Chunk]:
        """Chunks that are not known to be sent, in order."""
        sent = self.mail.sent.get(publish, -1)
        files = [file for file in self._files(publish) if file.most["chunk"] > sent]
        held: list[dict[str, Any]] = []
        for row in self._rows(files):
            if row["chunk"] <= sent:
                continue
            if held and held[0]["chunk"] != row["chunk"]:
                yield _chunk(held)
                held = []
            held.append(row)
        if held:
            yield _chunk(held)

    def mark(self, publish: str, chunk: int) -> None:
        """A chunk has arrived; that is written down with the next commit, which is soon enough."""
        self.mail = msgspec.structs.replace(self.mail, sent={**self.mail.sent, publish: chunk})

    def computed(self, publish: str, batch: int) -> None:
        """A result is as of a batch; written down likewise."""
        done = {**self.mail.computed, publish: batch}
        self.mail = msgspec.structs.replace(self.mail, computed=done)

    def close(self) -> None:
        """Write down how far it was sent, if that is not known yet."""
        if self._table.exists and self._table.record() != msgspec.to_builtins(self.mail):
            self._table.commit([], msgspec.to_builtins(self.mail), {})

    def _files(self, publish: str) -> list[File]:
        return [file for file in self._table.files() if file.most["publish"] == publish]

    def _rows(self, files: list[File]) -> Iterator[dict[str, Any]]:
        """The rows of files, in the order that they are sent."""
        for file in sorted(files, key=lambda file: file.least["chunk"]):
            store, path = filesystem(file.path, self._options)
            rows = ds.dataset(path, schema=OUTBOX, filesystem=store, format="parquet").to_table()
            yield from rows.sort_by([("chunk", "ascending"), ("ordinal", "ascending")]).to_pylist()


def _chunk(rows: list[dict[str, Any]]) -> Chunk:
    return Chunk(rows[0]["chunk"], rows[0]["target"], [row["message"] for row in rows])
