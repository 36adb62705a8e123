"""The tables of a pipeline, where they are, and who may write them.

A writer takes the warehouse by a number that it commits to **events**, and every commit says that
number again: a run that was taken for dead, and is not, cannot commit anything any more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from pyarrow import fs

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import NoWarehouse, WarehouseInUse
from penstock.spark.error_text import translates_storage_errors, warehouse_errors
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.events import WRITER, EventsTable
from penstock.spark.warehouse.processes import lives, started
from penstock.spark.warehouse.storage import canonical, filesystem, options_for_tasks

_NOTE: Final = "_penstock/writer.json"
_SAFE: Final = "-_"


class Owner(msgspec.Struct, frozen=True):
    """Who writes a warehouse, as the note in it says."""

    host: str
    process: int
    started: str = ""  # notes of earlier versions do not say

    @property
    def is_here(self) -> bool:
        """Whether it is another process of this machine that is still there. What runs elsewhere
        cannot be seen: it is taken over, and finds out with its next batch."""
        if self.host != socket.gethostname() or self.process == os.getpid():
            return False  # an earlier run of this very process
        return lives(self.process, self.started)


class Warehouse:
    """The folder of the tables, or its URL."""

    def __init__(self, path: str, options: dict[str, str] | None = None) -> None:
        self.path = canonical(path.rstrip("/"))
        self.options = options_for_tasks(self.path, options or {})
        self.events = EventsTable(f"{self.path}/events", self.options)
        self.writer: int | None = None

    def state_uri(self, entity: str) -> str:
        return f"{self.path}/state/{quote(entity, safe=_SAFE)}"

    def files(self, place: str = "") -> tuple[fs.FileSystem, str]:
        """The file system of the warehouse, and the path of a place in it there."""
        return filesystem(f"{self.path}/{place}".rstrip("/"), self.options)

    @property
    def uri(self) -> str:
        return self.path

    @property
    def outbox_uri(self) -> str:
        return f"{self.path}/outbox"

    @property
    def exists(self) -> bool:
        return self.events.table.exists

    def need(self) -> None:
        if not self.exists:
            raise NoWarehouse(
                f"There are no tables in {self.path} yet: `penstock pipeline run` makes them."
            )

    def types(self) -> list[str]:
        """The types that have a state table."""
        with warehouse_errors(f"{self.path}/state"):
            files, root = self.files("state")
            found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        folders = (each for each in found if each.type == fs.FileType.Directory)
        return sorted(unquote(each.base_name) for each in folders)

    def tables(self) -> list[Table]:
        """Every table there is, by a handle of its own."""
        uris = [self.events.uri, self.outbox_uri, *map(self.state_uri, self.types())]
        tables = (Table(uri, pa.schema([]), self.options) for uri in uris)
        return [each for each in tables if each.exists]

    def open(self, types: Iterable[str] = ()) -> int:
        """Become the one that writes; an error if another one visibly does. Types that are declared
        get their names, before others come that would be called the same."""
        owner = self._owner()
        if owner is not None and owner.is_here:
            raise WarehouseInUse(
                f"The warehouse {self.path} is written by process {owner.process} of this machine: "
                "one pipeline writes a warehouse at a time. Stop that one first; or, if it is no "
                f"pipeline, delete {self.path}/{_NOTE}."
            )
        self.events.table.create({})
        self.events.refresh()
        last = self.events.own_record().writer
        self.writer = max(last, self.events.table.transaction(WRITER) or 0) + 1
        self._note(Owner(socket.gethostname(), os.getpid(), started(os.getpid())))
        names = self.events.record.named(types)
        record = msgspec.structs.replace(self.events.record, writer=self.writer, names=names)
        if not record.batch:  # nothing to tidy yet
            record = msgspec.structs.replace(record, tidied_s=SYSTEM_CLOCK.now_us() // 1_000_000)
        self.events.note(record)
        return self.writer

    def check(self) -> None:
        """Look again, and be the writer still; what is committed next is on what was seen here."""
        self.events.refresh()
        if self.events.own_record().writer != self.writer:
            raise WarehouseInUse(
                f"Another run has taken the warehouse {self.path} over, and this one has ended: "
                "one pipeline writes a warehouse at a time."
            )

    def close(self) -> None:
        owner = self._owner()
        if self.writer is not None and owner is not None and owner.process == os.getpid():
            files, root = self.files()
            files.delete_file(f"{root}/{_NOTE}")
        self.writer = None

    @translates_storage_errors
    def _owner(self) -> Owner | None:
        files, root = self.files()
        if files.get_file_info(f"{root}/{_NOTE}").type == fs.FileType.NotFound:
            return None
        with files.open_input_stream(f"{root}/{_NOTE}") as file:
            try:
                return msgspec.json.decode(file.read(), type=Owner)
            except msgspec.DecodeError:
                return None  # cut short when its writer was killed

    @translates_storage_errors
    def _note(self, owner: Any) -> None:
        files, root = self.files()
        files.create_dir(f"{root}/_penstock", recursive=True)
        with files.open_output_stream(f"{root}/{_NOTE}") as file:
            file.write(msgspec.json.encode(owner))
