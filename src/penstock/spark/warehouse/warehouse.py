"""The tables of a pipeline, their locations, and which run may write them.

A run opens the warehouse with a writer number that it commits to **events**, and every later commit
repeats that number: a run that was thought dead but is alive cannot commit any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from pyarrow import fs

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import NoWarehouse, WarehouseInUse
from penstock.spark.error_text import warehouse_errors
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.events import WRITER, EventsTable
from penstock.spark.warehouse.lock import WriterNote
from penstock.spark.warehouse.storage import canonical, filesystem, options_for_tasks

_SAFE: Final = "-_"


class Warehouse:
    """The tables below one folder or URL."""

    def __init__(self, path: str, options: dict[str, str] | None = None) -> None:
        self.path = canonical(path.rstrip("/"))
        self.options = options_for_tasks(self.path, options or {})
        self.events = EventsTable(f"{self.path}/events", self.options)
        self.writer: int | None = None

    def state_uri(self, entity: str) -> str:
        return f"{self.path}/state/{quote(entity, safe=_SAFE)}"

    def files(self, path: str = "") -> tuple[fs.FileSystem, str]:
        """The file system of the warehouse, and a path below it as that file system spells it."""
        return filesystem(f"{self.path}/{path}".rstrip("/"), self.options)

    @property
    def outbox_uri(self) -> str:
        return f"{self.path}/outbox"

    @property
    def exists(self) -> bool:
        return self.events.table.exists

    def need(self) -> None:
        """Raise an error unless the warehouse has tables."""
        if not self.exists:
            raise NoWarehouse(
                f"There are no tables in {self.path} yet. `penstock pipeline run` creates them."
            )

    def types(self) -> list[str]:
        """The types that have a state table."""
        with warehouse_errors(f"{self.path}/state"):
            files, root = self.files("state")
            entries = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        folders = (entry for entry in entries if entry.type == fs.FileType.Directory)
        return sorted(unquote(folder.base_name) for folder in folders)

    def tables(self) -> list[Table]:
        """Every existing table, each with a handle of its own."""
        uris = [self.events.uri, self.outbox_uri, *map(self.state_uri, self.types())]
        tables = (Table(uri, pa.schema([]), self.options) for uri in uris)
        return [table for table in tables if table.exists]

    def open(self, types: Iterable[str] = ()) -> int:
        """Become the writer; an error if another process of this machine is the writer.

        Declared types get their SQL names here, before other types can claim them.
        """
        note = self._note()
        owner = note.read()
        if owner is not None and owner.is_here:
            raise WarehouseInUse(
                f"The warehouse {self.path} is written by process {owner.process} of this machine: "
                "one pipeline writes a warehouse at a time. Stop that process first; if it is not "
                f"a pipeline, delete {note.location}."
            )
        self.events.table.create({})
        self.events.refresh()
        last = self.events.own_record().writer
        self.writer = max(last, self.events.table.transaction(WRITER) or 0) + 1
        note.write()
        names = self.events.record.named(types)
        record = msgspec.structs.replace(self.events.record, writer=self.writer, names=names)
        if not record.batch:  # there is nothing to vacuum yet
            record = msgspec.structs.replace(record, tidied_s=SYSTEM_CLOCK.now_us() // 1_000_000)
        self.events.note(record)
        return self.writer

    def check(self) -> None:
        """Read the newest version; an error unless this run is still the writer. The next commit is
        based on the version that was read here."""
        self.events.refresh()
        if self.events.own_record().writer != self.writer:
            raise WarehouseInUse(
                f"Another run has taken over the warehouse {self.path}, so this one has ended: one "
                "pipeline writes a warehouse at a time."
            )

    def close(self) -> None:
        if self.writer is not None:
            self._note().remove()
        self.writer = None

    def _note(self) -> WriterNote:
        return WriterNote(self.path, *self.files())
