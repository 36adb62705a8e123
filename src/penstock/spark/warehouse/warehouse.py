"""The tables of a pipeline, their locations, and which run may write them.

A run opens the warehouse with a writer number that it commits to **events**, and every later commit
repeats that number: a run that was thought dead but is alive cannot commit any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import fs

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import NoWarehouse, WarehouseInUse
from penstock.spark.error_text import warehouse_errors
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.events import STATISTICS, WRITER, EventsTable, PipelineOwner
from penstock.spark.warehouse.folders import entities_of, folder_of, former_folder_of
from penstock.spark.warehouse.lock import WriterNote
from penstock.spark.warehouse.notes import Note
from penstock.spark.warehouse.storage import canonical, filesystem, options_for_tasks

# The columns whose bounds the log has for each file, by kind of table.
STATE_STATISTICS: Final = ("_key", "_stream", "_batch")
OUTBOX_STATISTICS: Final = ("publish", "chunk", "batch")


class Warehouse:
    """The tables below one folder or URL."""

    def __init__(self, path: str, options: dict[str, str] | None = None) -> None:
        self.path = canonical(path.rstrip("/"))
        self.options = options_for_tasks(self.path, options or {})
        self.events = EventsTable(f"{self.path}/events", self.options)
        self.writer: int | None = None
        self._folders: dict[str, str] = {}

    def state_uri(self, entity: str) -> str:
        folder = self._folders.get(entity)
        if folder is None:
            former = former_folder_of(entity)
            is_former = former is not None and former in self._state_folders()
            folder = former if former is not None and is_former else folder_of(entity)
            self._folders[entity] = folder
        return f"{self.path}/state/{folder}"

    def note(self, name: str) -> Note:
        """A document of the pipeline beside its tables."""
        return Note(self.path, name, self.options)

    def files(self, path: str = "") -> tuple[fs.FileSystem, str]:
        """The file system of the warehouse, and a path below it as that file system spells it."""
        return filesystem(f"{self.path}/{path}".rstrip("/"), self.options)

    @property
    def outbox_uri(self) -> str:
        return f"{self.path}/outbox"

    @property
    def exists(self) -> bool:
        return self.events.table.exists

    @property
    def is_written(self) -> bool:
        """Whether a process of this machine writes the warehouse now."""
        owner = self._note().read()
        return owner is not None and owner.is_here

    def need(self) -> None:
        """Raise an error unless the warehouse has tables."""
        if not self.exists:
            raise NoWarehouse(
                f"There are no tables in {self.path} yet. `penstock pipeline run` creates them."
            )

    def types(self) -> list[str]:
        """The types that have a state table."""
        return sorted(entities_of(self._state_folders(), self.events.record.names))

    def _state_folders(self) -> list[str]:
        with warehouse_errors(f"{self.path}/state"):
            files, root = self.files("state")
            entries = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]

    def tables(self) -> list[Table]:
        """Every existing table, each with a handle of its own."""
        uris: dict[str, Sequence[str]] = dict.fromkeys(
            map(self.state_uri, self.types()), STATE_STATISTICS
        )
        uris = {self.events.uri: STATISTICS, self.outbox_uri: OUTBOX_STATISTICS, **uris}
        tables = (
            Table(uri, pa.schema([]), self.options, statistics=statistics)
            for uri, statistics in uris.items()
        )
        return [table for table in tables if table.exists]

    def open(self, types: Iterable[str] = (), *, owner: PipelineOwner | None = None) -> int:
        """Become the writer; an error if another process of this machine is the writer.

        Declared types get their SQL names here, before other types can claim them. A run notes its
        `owner`.
        """
        note = self._note()
        process = note.read()
        if process is not None and process.is_here:
            raise WarehouseInUse(
                f"The warehouse {self.path} is written by process {process.process} of this "
                "machine: one pipeline writes a warehouse at a time. Stop that process first; if "
                f"it is not a pipeline, delete {note.location}."
            )
        self.events.table.create({})
        self.events.refresh()
        last = self.events.own_record().writer
        self.writer = max(last, self.events.table.transaction(WRITER) or 0) + 1
        note.write()
        names = self.events.record.named(types)
        before = self.events.record
        record = msgspec.structs.replace(
            before, writer=self.writer, names=names, owner=owner or before.owner
        )
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
