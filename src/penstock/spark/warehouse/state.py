"""**state/<type>**: the newest value of each key up to a batch, in files by key, rewritten when
enough has changed since. Readers add what came later (views.merged), so nobody waits for a fold.
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
from penstock.spark.warehouse.delta import File, Table, Written
from penstock.spark.warehouse.events import Record
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
    """What a commit of a state table says of itself."""

    batch: int = 0  # of events, up to which they are in it
    changes: int = 0  # of the type by then
    rows: int = 0
    schema: str | None = None


def state_schema(schema: TypeSchema | None) -> pa.Schema:
    return pa.schema([*_KEY, *([] if schema is None else schema.nullable), *_REST])


class StateTable:
    """The state of one type, and how far it goes."""

    def __init__(self, warehouse: Warehouse, entity: str, schema: TypeSchema | None) -> None:
        self.entity = entity
        self.schema = state_schema(schema)
        self._version = None if schema is None else schema.version
        self._warehouse = warehouse
        self.options = warehouse.options
        self.table = Table(warehouse.state_uri(entity), self.schema, self.options)
        self._look()

    def _look(self) -> None:
        found = self.table.record() if self.table.exists else {}
        self.folded = msgspec.convert(found, Folded)
        self.stored = self.table.columns if self.table.exists else self.schema

    def refresh(self) -> None:
        """See what others have committed since."""
        before = self.table.version
        self.table.refresh()
        if self.table.version != before:
            self._look()

    @property
    def batch(self) -> int:
        return self.folded.batch

    @property
    def is_outgrown(self) -> bool:
        """Whether the schema has columns that the stored rows lack."""
        return list(self.stored.names) != list(self.schema.names)

    def is_behind(self, record: Record) -> bool:
        """Whether there is anything after what is stored that could change it."""
        count = record.types.get(self.entity)
        news = 0 if count is None else count.batch
        return max(news, record.cut) > self.batch or self.is_outgrown

    def is_due(self, record: Record, *, rows: int, percent: float) -> bool:
        """Whether it is time to fold: always while small, else when enough is new."""
        if not self.is_behind(record):
            return False
        if self.folded.rows <= rows or self.is_outgrown:
            return True
        count = record.types.get(self.entity)
        new = 0 if count is None else count.changes - self.folded.changes
        return new >= self.folded.rows * percent / 100

    def check(self) -> None:
        """A schema may get more columns, and nothing else; and nobody else writes the rows."""
        self.table.refuse_foreign()
        declared = {field.name: field.type for field in self.schema}
        gone = [field.name for field in self.stored if field.name not in declared]
        if gone and self._version is None:
            raise InvalidPipeline(
                f"types.{self.entity} is no longer there, and the table has the columns "
                f"{', '.join(gone)} from it. {self._way_out('Put the section back')}"
            )
        if gone:
            raise InvalidPipeline(
                f"types.{self.entity}: the column {gone[0]} is in the table and no longer in the "
                "schema. Columns can be added, not removed. "
                f"{self._way_out('Put it back')}"
            )
        for field in self.stored:
            if _plain(declared[field.name]) != _plain(field.type):
                raise InvalidPipeline(
                    f"types.{self.entity}: the column {field.name} is {field.type} in the table "
                    f"and {declared[field.name]} in the schema. Columns can be added, not changed. "
                    f"{self._way_out('Change it back')}"
                )

    def _way_out(self, words: str) -> str:
        return f"{words}; or delete {self.table.uri}, and the next run makes it anew from events."

    def files(self) -> list[File]:
        return self.table.files()

    def commit(self, files: Iterable[Written], record: Record) -> None:
        """Put these rows in the place of all that was stored, as of a batch."""
        self.table.refuse_foreign()
        written = list(files)
        count = record.types.get(self.entity)
        folded = Folded(
            batch=record.batch,
            changes=0 if count is None else count.changes,
            rows=sum(each.rows for each in written),
            schema=self._version,
        )
        told = msgspec.to_builtins(folded)
        self.table.create({})
        self.table.commit(written, told, {_FOLD: record.batch}, overwrite=True)
        self.folded = folded
        self.stored = self.schema


def check_tables(warehouse: Warehouse, types: Mapping[str, TypeSchema]) -> None:
    """Whether every state table can be written with these schemas, also those of types that have
    none any more."""
    for entity in sorted({*types, *warehouse.types()}):
        StateTable(warehouse, entity, types.get(entity)).check()


class KeyRange(NamedTuple):
    """Files that have all the rows with keys from `low` up to `high`; None is no bound."""

    files: list[File]
    low: str | None
    high: str | None
    is_part: bool = False  # the files have rows with other keys, too

    @property
    def rows(self) -> int:
        """Of the files."""
        return sum(each.rows for each in self.files)

    def split(self, keys: Iterable[str]) -> list[KeyRange]:
        """The range in pieces, each from one of these keys up to the next."""
        chosen = {key for key in keys if "\0" not in key and key > (self.low or "")}
        bounds = [self.low, *sorted(chosen), self.high]
        return [KeyRange(self.files, low, high, is_part=True) for low, high in pairwise(bounds)]


def key_ranges(files: Iterable[File], rows: int) -> list[KeyRange]:
    """Files in the order of their keys, of about so many rows together; one range of all if their
    keys are not known, or lie all over the place."""
    given = list(files)
    if not all("_key" in each.least and "_key" in each.most for each in given):
        return [KeyRange(given, None, None)]
    groups: list[list[File]] = []
    most = ""
    for file in sorted(given, key=lambda each: str(each.least["_key"])):
        low = file.least["_key"]
        is_apart = bool(groups) and low > most and "\0" not in low  # SQL has no text for a NUL
        if not groups or (is_apart and sum(each.rows for each in groups[-1]) >= rows):
            groups.append([])
        groups[-1].append(file)
        most = max(most, file.most["_key"])
    bounds = [None, *(group[0].least["_key"] for group in groups[1:]), None]
    return [
        KeyRange(files, low, high)
        for files, low, high in zip(groups or [[]], bounds[:-1], bounds[1:], strict=True)
    ]


def _plain(kind: pa.DataType) -> str:
    """A type as it is compared: Delta calls the item of a list by another name."""
    text = re.sub(r"(list|large_list)<\w+: ", "list<", str(kind)).replace("large_", "")
    return text.replace(" not null", "").replace("string_view", "string")
