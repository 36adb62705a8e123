"""**state/<type>**: the newest value of each key up to a batch, in files ordered by key, rewritten
when enough has changed since. Readers add later changes (`sql.merged`), so that nobody waits for a
fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import InvalidPipeline
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse.delta import ParquetFile, Table, TableFile
from penstock.spark.warehouse.events import EventsCommit
from penstock.spark.warehouse.warehouse import Warehouse

_TIME: Final = pa.timestamp("us", tz="UTC")
_KEY: Final = [pa.field("_stream", pa.string()), pa.field("_key", pa.string())]
_REST: Final = [
    pa.field("_value", pa.string()),
    pa.field("_operation", pa.string()),
    pa.field("_generation", pa.int64()),
    pa.field("_ordinal", pa.int64()),
    pa.field("_position", pa.int64()),
    pa.field("_offset", pa.string()),
    pa.field("_time", _TIME),
    pa.field("_txid", pa.string()),
    pa.field("_batch", pa.int64()),
]
STATISTICS: Final = ("_key", "_stream", "_batch")
_FOLD: Final = "penstock/fold"


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a commit of a state table."""

    batch: int = 0  # the last batch of events that is folded
    changes: int = 0  # of the type, up to that batch
    rows: int = 0
    schema: str | None = None


def state_schema(schema: TypeSchema | None) -> pa.Schema:
    return pa.schema([*_KEY, *([] if schema is None else schema.nullable), *_REST])


class StateTable:
    """The state table of one type."""

    def __init__(self, warehouse: Warehouse, entity: str, schema: TypeSchema | None) -> None:
        self.entity = entity
        self.schema = state_schema(schema)
        self._version = None if schema is None else schema.version
        self._warehouse = warehouse
        self.options = warehouse.options
        self.table = Table(warehouse.state_uri(entity), self.schema, self.options)
        self._read_record()

    def _read_record(self) -> None:
        record = self.table.record() if self.table.exists else {}
        self.folded = msgspec.convert(record, Folded)
        self.stored = self.table.columns if self.table.exists else self.schema

    def refresh(self) -> None:
        """Read the newest version."""
        before = self.table.version
        self.table.refresh()
        if self.table.version != before:
            self._read_record()

    @property
    def batch(self) -> int:
        return self.folded.batch

    @property
    def is_outgrown(self) -> bool:
        """Whether the declared columns are not the stored ones."""
        return list(self.stored.names) != list(self.schema.names)

    def is_behind(self, record: EventsCommit) -> bool:
        """Whether later events could change the stored state."""
        count = record.types.get(self.entity)
        last = 0 if count is None else count.batch
        return max(last, record.cut) > self.batch or self.is_outgrown

    def is_due(self, record: EventsCommit, *, rows: int, percent: float) -> bool:
        """Whether a fold is due: always while the table is small, else when enough is new."""
        if not self.is_behind(record):
            return False
        if self.folded.rows <= rows or self.is_outgrown:
            return True
        count = record.types.get(self.entity)
        new = 0 if count is None else count.changes - self.folded.changes
        return new >= self.folded.rows * percent / 100

    def check(self) -> None:
        """Raise an error if the schema has lost or changed a column, or another engine has
        written."""
        self.table.refuse_foreign()
        declared = {field.name: field.type for field in self.schema}
        gone = [field.name for field in self.stored if field.name not in declared]
        if gone and self._version is None:
            raise InvalidPipeline(
                f"types.{self.entity} is no longer there, and the table has the columns "
                f"{', '.join(gone)} from it. {self._remedy('Put the section back')}"
            )
        if gone:
            raise InvalidPipeline(
                f"types.{self.entity}: the column {gone[0]} is in the table and no longer in the "
                "schema. Columns can be added, not removed. "
                f"{self._remedy('Put it back')}"
            )
        for field in self.stored:
            if _comparable(declared[field.name]) != _comparable(field.type):
                raise InvalidPipeline(
                    f"types.{self.entity}: the column {field.name} is {field.type} in the table "
                    f"and {declared[field.name]} in the schema. Columns can be added, not changed. "
                    f"{self._remedy('Change it back')}"
                )

    def _remedy(self, advice: str) -> str:
        return f"{advice}; or delete {self.table.uri}: the next run rebuilds it from events."

    def files(self) -> list[TableFile]:
        return self.table.files()

    def commit(self, files: Iterable[ParquetFile], record: EventsCommit) -> None:
        """Replace all stored rows by those of these files, as of a batch."""
        self.table.refuse_foreign()
        written = list(files)
        count = record.types.get(self.entity)
        folded = Folded(
            batch=record.batch,
            changes=0 if count is None else count.changes,
            rows=sum(each.rows for each in written),
            schema=self._version,
        )
        self.table.create({})
        self.table.commit(
            written, msgspec.to_builtins(folded), {_FOLD: record.batch}, overwrite=True
        )
        self.folded = folded
        self.stored = self.schema


def check_tables(warehouse: Warehouse, types: Mapping[str, TypeSchema]) -> None:
    """Raise an error unless every state table can be written with these schemas, including tables
    of types that no longer have one."""
    for entity in sorted({*types, *warehouse.types()}):
        StateTable(warehouse, entity, types.get(entity)).check()


class KeyRange(NamedTuple):
    """Files with all rows of the keys from `low` up to, not including, `high`; None: no bound."""

    files: list[TableFile]
    low: str | None
    high: str | None
    is_part: bool = False  # whether the files also have rows with other keys

    @property
    def rows(self) -> int:
        """The number of rows in the files."""
        return sum(each.rows for each in self.files)

    def split(self, keys: Iterable[str]) -> list[KeyRange]:
        """The range in parts, each from one of these keys up to the next."""
        inner = {key for key in keys if "\0" not in key and key > (self.low or "")}
        bounds = [self.low, *sorted(inner), self.high]
        return [KeyRange(self.files, low, high, is_part=True) for low, high in pairwise(bounds)]


def key_ranges(files: Iterable[TableFile], rows: int) -> list[KeyRange]:
    """Key ranges of about so many rows each, ordered by key; a single one if the keys of some file
    are not known, or overlap in all files."""
    files = list(files)
    if not all("_key" in file.least and "_key" in file.most for file in files):
        return [KeyRange(files, None, None)]
    groups: list[list[TableFile]] = []
    most = ""
    for file in sorted(files, key=lambda file: str(file.least["_key"])):
        low = file.least["_key"]
        is_apart = (
            bool(groups) and low > most and "\0" not in low
        )  # a literal in SQL cannot have a NUL
        if not groups or (is_apart and sum(each.rows for each in groups[-1]) >= rows):
            groups.append([])
        groups[-1].append(file)
        most = max(most, file.most["_key"])
    bounds = [None, *(group[0].least["_key"] for group in groups[1:]), None]
    return [
        KeyRange(group, low, high)
        for group, low, high in zip(groups or [[]], bounds[:-1], bounds[1:], strict=True)
    ]


def _comparable(kind: pa.DataType) -> str:
    """A type in a spelling that can be compared: Delta names the item of a list differently."""
    text = re.sub(r"(list|large_list)<\w+: ", "list<", str(kind)).replace("large_", "")
    return text.replace(" not null", "").replace("string_view", "string")
