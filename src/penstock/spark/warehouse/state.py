"""**state/<type>**: the newest value of each key up to a batch, in files ordered by key, rewritten
when enough has changed since. Readers add later changes (`sql.merged`), so that nobody waits for a
fold.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.errors import InvalidPipeline, WarehouseMismatch
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse.delta import ParquetFile, Table, TableFile
from penstock.spark.warehouse.events import EventsCommit
from penstock.spark.warehouse.evolution import Evolution, evolution
from penstock.spark.warehouse.warehouse import STATE_STATISTICS, Warehouse

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
_FOLD: Final = "penstock/fold"
_UNCHANGED: Final = Evolution()


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
        self.schema_version = None if schema is None else schema.version
        self._warehouse = warehouse
        self.options = warehouse.options
        uri = warehouse.state_uri(entity)
        self.table = Table(uri, self.schema, self.options, statistics=STATE_STATISTICS)
        self._is_forgotten = False
        self._read_record()

    def _read_record(self) -> None:
        record = self.table.record() if self.table.exists else {}
        self.folded = msgspec.convert(record, Folded)
        self.stored = self.table.columns if self.table.exists else self.schema
        self.evolution = evolution(self.stored, self.schema)

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
        """Whether the stored rows were made by another schema than the declared one."""
        return (
            self.evolution != _UNCHANGED
            or self.stored.names != self.schema.names
            or (self.table.exists and self.folded.schema != self.schema_version)
        )

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

    def check(self, batch: int | None = None) -> None:
        """Raise an error if only a rebuild can give the table its declared columns, if it is ahead
        of `batch`, the last one of the events, or if another engine has written."""
        self.table.refuse_foreign()
        if batch is not None and self.batch > batch:
            raise WarehouseMismatch(
                f"{self.table.uri} ends with batch {self.batch} and the events with {batch}: one "
                "of them was restored from an older copy. Restore both from one copy, or run "
                f"`penstock pipeline rebuild FILE {self.entity} --from-events`."
            )
        if not self.evolution.breaking:
            return
        what = f"types.{self.entity}: {'; '.join(self.evolution.breaking)}"
        advice = "Change it back"
        if self.schema_version is None:
            what = f"types.{self.entity} is no longer there: {'; '.join(self.evolution.breaking)}"
            advice = "Put the section back"
        raise InvalidPipeline(
            f"{what}. Columns are added and widened in place; for anything else run `penstock "
            f"pipeline rebuild FILE {self.entity}`. {advice} to leave the table as it is."
        )

    def forget(self) -> None:
        """Read no stored row: the next fold starts with the first event."""
        self.folded = Folded()
        self._is_forgotten = True

    def files(self) -> list[TableFile]:
        return [] if self._is_forgotten else self.table.files()

    def commit(self, files: Iterable[ParquetFile], record: EventsCommit) -> None:
        """Replace all stored rows by those of these files, as of a batch."""
        self.table.refuse_foreign()
        written = list(files)
        count = record.types.get(self.entity)
        folded = Folded(
            batch=record.batch,
            changes=0 if count is None else count.changes,
            rows=sum(each.rows for each in written),
            schema=self.schema_version,
        )
        self.replace(written, folded)

    def replace(self, files: Iterable[ParquetFile], folded: Folded) -> None:
        """Replace all stored rows and the columns by those of these files, in one commit."""
        self.table.create({})
        self.table.commit(files, msgspec.to_builtins(folded), {_FOLD: folded.batch}, overwrite=True)
        self.folded = folded
        self.stored = self.schema
        self.evolution = _UNCHANGED
        self._is_forgotten = False


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
