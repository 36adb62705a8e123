"""A warehouse read on this machine, without Spark: DuckDB over the files that delta-rs lists.

Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from tempfile import gettempdir
from typing import Any, Final

import duckdb
import pyarrow as pa

from penstock import limits
from penstock.errors import QueryFailed, WarehouseBroken
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import File
from penstock.spark.warehouse.relations import Relations
from penstock.spark.warehouse.state import KeyRange, StateTable, key_ranges
from penstock.spark.warehouse.storage import filesystem, is_remote
from penstock.spark.warehouse.warehouse import Warehouse

_MEMORY: Final = "1GB"
_ROWS_AT_ONCE: Final = 64 * 1024
_KEYS_FOR_A_PART: Final = 256  # that are looked at: parts then differ by some ten per cent


class Duck(Relations):
    """The relations of a warehouse in DuckDB."""

    def __init__(
        self, warehouse: Warehouse, types: Mapping[str, TypeSchema], *, replaces: bool = False
    ) -> None:
        super().__init__(warehouse, types, replaces=replaces)
        self._registered = 0
        self._parsers: dict[str, str] = {}
        self._connection = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "threads": "2",
                "preserve_insertion_order": "false",
                "temp_directory": f"{gettempdir()}/penstock-duckdb",  # what does not fit in memory
            }
        )
        self._connection.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        self._connection.close()
        # Py4J keeps what Spark has called, and DuckDB complains of what is left at the end.
        del self._connection

    def sql(self, query: str) -> pa.Table:
        """The answer to a user's query."""
        try:
            self.prepare(query)
            found: Any = self._connection.sql(query)
            return pa.table({}) if found is None else found.to_arrow_table()
        except duckdb.IOException as error:
            raise self._broken(error) from None
        except duckdb.Error as error:
            raise QueryFailed(self._words(error)) from None

    def table(self, query: str) -> pa.Table:
        """The answer to a query of our own."""
        try:
            return self._connection.sql(query).to_arrow_table()
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise self._broken(error) from None

    def reader(self, query: str, *, rows: int | None = None) -> pa.RecordBatchReader:
        try:
            return self._connection.sql(query).to_arrow_reader(rows or _ROWS_AT_ONCE)
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise self._broken(error) from None

    def _broken(self, error: duckdb.Error) -> WarehouseBroken:
        """A file that is gone, or is none: removed while it was read, or damaged."""
        return WarehouseBroken(
            f"{self._warehouse.path}: {self._words(error).rstrip('.')}. If the tables were tidied "
            "up while this looked at them, ask again; else restore the file from a copy."
        )

    def files(self, files: Sequence[File], schema: pa.Schema) -> str:
        if not files:
            return self.register(schema.empty_table())
        if not is_remote(files[0].path):
            paths = ", ".join(sql.literal(each.path) for each in files)
            return f"read_parquet([{paths}])"
        return self.register(self._dataset([each.path for each in files], schema))

    def typed(self, query: str, schema: TypeSchema | None) -> str:
        """Values are read when a row is asked for: what a query filters out costs nothing."""
        if schema is None:
            return f"({query})"
        made = [
            f"p.made.column_{number} AS {_quoted(field.name)}"
            for number, field in enumerate(schema.nullable)
        ]
        own = [f"p.{_quoted(name)}" for name in self._connection.sql(query).columns]
        columns = ", ".join([*own[: len(sql.KEY)], *made, *own[len(sql.KEY) :]])
        parsed = f"SELECT q.*, {self._parser(schema)}(q._value) AS made FROM ({query}) q"
        return f"(SELECT {columns} FROM ({parsed}) p)"

    def _parser(self, schema: TypeSchema) -> str:
        """A function of DuckDB's that makes the columns of a value."""
        if schema.version in self._parsers:
            return self._parsers[schema.version]
        name = f"penstock_columns_{len(self._parsers)}"
        # Numbered: two names may differ in their capitals alone, which DuckDB takes for the same.
        kinds = enumerate(field.type for field in schema.nullable)
        fields = [pa.field(f"column_{number}", kind) for number, kind in kinds]

        def parse(values: pa.ChunkedArray) -> pa.StructArray:
            return pa.StructArray.from_arrays(schema.columns(values.to_pylist()), fields=fields)

        empty = self.register(pa.table({"made": pa.array([], pa.struct(fields))}))
        kind = self._connection.sql(f"SELECT e.made FROM {empty} e").types[0]
        connection: Any = self._connection
        connection.create_function(
            name, parse, ["VARCHAR"], kind, type="arrow", null_handling="special"
        )
        self._parsers[schema.version] = name
        return name

    def merged_in_order(self, entity: str) -> Iterator[str]:
        """The state of a type up to now, deleted keys included, in pieces: later ones have later
        keys, and each is small enough to be sorted in memory, however large the whole is."""
        state = self.stored(entity)
        ranges = self._ranges(state)
        cut = self.held(self.cuts()) if len(ranges) > 1 else f"({self.cuts()})"
        fresh = self._fresh(state, sql.everything(cut))
        rows = self.held(sql.everything(self.typed(fresh, self._types.get(entity))))
        for each in ranges:
            fresh = sql.between(rows, each.low, each.high)
            yield sql.merged(self._piece(state, each), fresh, sql.everything(cut))

    def _ranges(self, state: StateTable) -> list[KeyRange]:
        """Ranges of keys by what is told of the files; where that does not tell them apart, as if
        long keys begin alike, by the keys themselves."""
        rows = limits.PIPELINE_BUCKET_ROWS
        found: list[KeyRange] = []
        for each in key_ranges(state.files(), rows):
            parts = each.rows // rows
            found += [each] if parts < 2 else each.split(self._quantiles(state, each.files, parts))
        return found

    def _quantiles(self, state: StateTable, files: Sequence[File], parts: int) -> list[str]:
        """Keys that are about as far from each other as so many parts make it."""
        keys = sql.sample(self.files(files, state.stored), parts * _KEYS_FOR_A_PART)
        taken = sorted(self.table(keys)["_key"].to_pylist())
        return [taken[len(taken) * number // parts] for number in range(1, parts)]

    def _piece(self, state: StateTable, part: KeyRange) -> str:
        if not part.is_part:
            return self._rows(state, part.files)
        return self._rows(state, part.files, low=part.low, high=part.high)

    def held(self, query: str) -> str:
        """The rows of a query, computed once, as something to select from."""
        return self.register(self.table(query))

    def define(self, name: str, query: str) -> None:
        self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {query}')

    def forget(self, name: str) -> None:
        self._connection.execute(f'DROP VIEW IF EXISTS "{name}"')

    def refresh(self) -> None:
        super().refresh()
        while self._registered:
            self._connection.unregister(f"rows_{self._registered}")
            self._registered -= 1

    def register(self, rows: Any) -> str:
        self._registered += 1
        name = f"rows_{self._registered}"
        self._connection.register(name, rows)
        return name

    def _dataset(self, paths: list[str], schema: pa.Schema) -> Any:
        """Files that DuckDB itself cannot reach: its extension for that is not in its package."""
        from pyarrow import dataset

        found = [filesystem(path, self._warehouse.options) for path in paths]
        return dataset.dataset(
            [path for _, path in found], schema=schema, filesystem=found[0][0], format="parquet"
        )

    def _words(self, error: duckdb.Error) -> str:
        """What DuckDB says, in a line, and which tables there are if that is the question."""
        first = str(error).strip().split("\n\n")[0].split("\nLINE")[0]
        words = " ".join(first.split())
        if isinstance(error, duckdb.CatalogException):
            words += f" There are: {', '.join(self.names())}."
        return words


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
