"""The rebuild of a state table for a schema that cannot be had in place: its files are written anew
beside the running table, and one commit replaces all rows and columns by them.

A file of the old table becomes a file of the new one, and each is noted when it is written: a
rebuild that was killed continues after the last. Later events are merged by readers, as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import fs

from penstock.errors import InvalidPipeline
from penstock.spark.config import Pipeline
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import declared
from penstock.spark.warehouse.delta import ParquetFile, TableFile, write_file
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.relations import with_columns
from penstock.spark.warehouse.sql import KEY, REST
from penstock.spark.warehouse.state import Folded, StateTable
from penstock.spark.warehouse.storage import filesystem
from penstock.spark.warehouse.warehouse import STATE_STATISTICS, Warehouse

_ROWS_AT_ONCE: Final = 8192
Notify = Callable[[str], None]


class Part(msgspec.Struct, frozen=True):
    """A file of the old table, the file made of it (None: it had no rows), and the number of rows
    whose values do not fit the new schema."""

    source: str
    name: str | None
    size: int
    rows: int
    statistics: str
    misfits: int

    @property
    def file(self) -> ParquetFile | None:
        if self.name is None:
            return None
        return ParquetFile(self.name, self.size, self.rows, self.statistics)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild that has begun."""

    schema: str | None  # the version of the new schema
    version: int  # of the old table
    folded: Folded  # the record of that version
    sources: list[str]  # its files
    parts: list[Part] = []

    @property
    def is_complete(self) -> bool:
        return len(self.parts) == len(self.sources)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def misfits(self) -> int:
        return sum(part.misfits for part in self.parts)


class Rebuilt(NamedTuple):
    """The outcome of a rebuild. `misfits` rows have values that do not fit the schema: the columns
    that do not fit are null there."""

    entity: str
    batch: int
    rows: int
    misfits: int
    is_switched: bool


class Rebuild:
    """The rebuild of the table of one type."""

    def __init__(self, warehouse: Warehouse, entity: str, schema: TypeSchema | None) -> None:
        self._warehouse = warehouse
        self._schema = schema
        self.state = StateTable(warehouse, entity, schema)
        folder = self.state.table.uri.rpartition("/")[2]
        self._note = warehouse.note(f"rebuild/{folder}.json")

    def plan(self) -> Plan | None:
        """The plan for this schema, if one has begun and everything that it names is there."""
        plan = self._note.read(Plan)
        if plan is None or plan.schema != self.state.schema_version:
            return None
        names = [part.name for part in plan.parts if part.name is not None]
        pending = set(plan.sources) - {part.source for part in plan.parts}
        return plan if all(map(self._exists, (*names, *pending))) else None

    def _exists(self, name: str) -> bool:
        files, path = filesystem(f"{self.state.table.uri}/{name}", self._warehouse.options)
        return bool(files.get_file_info(path).type == fs.FileType.File)

    def stage(self, notify: Notify) -> Plan:
        """Write the files of the new table that are not there yet; a run may be writing the old
        table meanwhile."""
        plan = self.plan() or self._begin()
        done = {part.source for part in plan.parts}
        for source in plan.sources:
            if source in done:
                continue
            part = self._convert(source, plan.folded.batch)
            plan = msgspec.structs.replace(plan, parts=[*plan.parts, part])
            self._note.write(plan)
            notify(f"{len(plan.parts):,} of {len(plan.sources):,} files, {plan.rows:,} rows")
        return plan

    def _begin(self) -> Plan:
        table = self.state.table
        plan = Plan(
            schema=self.state.schema_version,
            version=table.version or 0,
            folded=self.state.folded,
            sources=[_name(file) for file in self.state.files()],
        )
        self._note.write(plan)
        return plan

    def _convert(self, source: str, batch: int) -> Part:
        table, options = self.state.table, self._warehouse.options
        files, path = filesystem(f"{table.uri}/{source}", options)
        columns = [*KEY, *REST]
        from pyarrow import dataset  # it loads pandas, which most runs need later or not at all

        rows: Any = dataset.dataset(path, filesystem=files, format="parquet")
        misfits = 0

        def converted() -> Iterator[pa.RecordBatch]:
            nonlocal misfits
            for part in rows.to_batches(columns=columns, batch_size=_ROWS_AT_ONCE):
                misfits += _misfits(part, self._schema)
                table = pa.Table.from_batches([part])
                typed = table if self._schema is None else with_columns(table, self._schema)
                yield from typed.cast(self.state.schema).to_batches()

        file = write_file(
            table.uri,
            self.state.schema,
            converted(),
            prefix=f"state-{batch:08d}",
            statistics=STATE_STATISTICS,
            options=options,
        )
        if file is None:
            return Part(source, None, 0, 0, "", 0)
        return Part(source, file.name, file.size, file.rows, file.statistics, misfits)

    def switch(self, plan: Plan) -> None:
        """Replace rows and columns of the table, in one commit. For the writer of the warehouse."""
        files = [part.file for part in plan.parts]
        folded = msgspec.structs.replace(
            plan.folded, rows=plan.rows, schema=self.state.schema_version
        )
        self.state.refresh()
        self.state.table.refuse_foreign()
        self.state.replace([file for file in files if file is not None], folded)
        self._note.remove()

    def clear(self) -> None:
        self._note.remove()


def _name(file: TableFile) -> str:
    return file.path.rpartition("/")[2]


def _misfits(rows: pa.RecordBatch, schema: TypeSchema | None) -> int:
    """The number of rows whose value the schema refuses."""
    if schema is None:
        return 0
    values = [value for value in rows["_value"].to_pylist() if value is not None]
    return sum(problem is not None for problem in schema.problems(values))


def check_tables(warehouse: Warehouse, types: Mapping[str, TypeSchema]) -> None:
    """Raise an error unless every state table can be written with these schemas, including tables
    of types that no longer have one; a rebuild that waits for its switch is enough."""
    batch = warehouse.events.record.batch if warehouse.exists else None
    for entity in sorted({*types, *warehouse.types()}):
        state = StateTable(warehouse, entity, types.get(entity))
        if not state.evolution.is_in_place:
            plan = Rebuild(warehouse, entity, types.get(entity)).plan()
            if plan is not None and plan.is_complete:
                continue
        state.check(batch)


def switch_rebuilt(warehouse: Warehouse, types: Mapping[str, TypeSchema]) -> list[str]:
    """Switch every table that a complete rebuild waits for, and return the types. For the writer
    of the warehouse, before it reads the tables."""
    switched = []
    for entity in warehouse.types():
        if StateTable(warehouse, entity, types.get(entity)).evolution.is_in_place:
            continue
        rebuild = Rebuild(warehouse, entity, types.get(entity))
        plan = rebuild.plan()
        if plan is not None and plan.is_complete:
            rebuild.switch(plan)
            switched.append(entity)
    return switched


def rebuild_table(
    pipeline: Pipeline,
    entity: str,
    *,
    from_events: bool = False,
    stage_only: bool = False,
    on_progress: Notify = lambda _: None,
) -> Rebuilt:
    """Rebuild the table of a type for its current schema. While a run writes the warehouse, or with
    `stage_only`, the new table is only staged: the next run with this schema switches to it."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    if entity not in {*pipeline.types, *warehouse.types(), *warehouse.events.record.types}:
        known = ", ".join(sorted({*pipeline.types, *warehouse.types()})) or "none"
        raise InvalidPipeline(f"There is no type {entity!r} in the warehouse (types: {known}).")
    if from_events:
        return _from_events(pipeline, warehouse, entity)
    rebuild = Rebuild(warehouse, entity, pipeline.types.get(entity))
    rebuild.state.table.refuse_foreign()
    plan = rebuild.stage(on_progress)
    is_switched = not stage_only and not warehouse.is_written
    if is_switched:
        warehouse.open(pipeline.types)
        try:
            rebuild.switch(plan)
            if pipeline.server_types:
                declared.note(warehouse, pipeline)
        finally:
            warehouse.close()
    return Rebuilt(entity, plan.folded.batch, plan.rows, plan.misfits, is_switched)


def _from_events(pipeline: Pipeline, warehouse: Warehouse, entity: str) -> Rebuilt:
    """Fold all events of the type into a new table, whatever the old one has."""
    warehouse.open(pipeline.types)
    duck = Duck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
    try:
        state = duck.stored(entity)
        state.forget()
        fold_here(duck, entity, warehouse.events.record)
        Rebuild(warehouse, entity, pipeline.types.get(entity)).clear()
        return Rebuilt(entity, state.batch, state.folded.rows, 0, is_switched=True)
    finally:
        duck.close()
        warehouse.close()
