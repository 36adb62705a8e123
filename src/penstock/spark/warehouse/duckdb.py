"""The relations of a warehouse in DuckDB, over the files that delta-rs lists: no Spark is needed.

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
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.relations import Relations
from penstock.spark.warehouse.state import KeyRange, StateTable, key_ranges
from penstock.spark.warehouse.storage import filesystem, is_remote
from penstock.spark.warehouse.warehouse import Warehouse

_MEMORY: Final = "1GB"
_ROWS_AT_ONCE: Final = 64 * 1024
_SAMPLE_KEYS: Final = 256  # for each part: their sizes then differ by about ten per cent


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
                "temp_directory": f"{gettempdir()}/penstock-duckdb",  # for what exceeds the memory
            }
        )
        self._connection.execute("SET TimeZone = 'UTC'")

    def close(self) -> None:
        self._connection.close()
        # Py4J holds on to objects that Spark has called, and DuckDB warns of open connections.
        del self._connection

    def sql(self, query: str) -> pa.Table:
        """The result of a user's query."""
        try:
            self.prepare(query)
            result: Any = self._connection.sql(query)
            return pa.table({}) if result is None else result.to_arrow_table()
        except duckdb.IOException as error:
            raise self._broken(error) from None
        except duckdb.Error as error:
            raise QueryFailed(self._message(error)) from None

    def table(self, query: str) -> pa.Table:
        """The result of a query of ours."""
        try:
            return self._connection.sql(query).to_arrow_table()
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise self._broken(error) from None

    def reader(self, query: str, *, rows: int | None = None) -> pa.RecordBatchReader:
        """The same in batches of so many rows."""
        try:
            return self._connection.sql(query).to_arrow_reader(rows or _ROWS_AT_ONCE)
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise self._broken(error) from None

    def _broken(self, error: duckdb.Error) -> WarehouseBroken:
        """The error for a file that is missing or damaged."""
        return WarehouseBroken(
            f"{self._warehouse.path}: {self._message(error).rstrip('.')}. If the tables were "
            "vacuumed while they were read, try again; else restore the file from a copy."
        )

    def files(self, files: Sequence[TableFile], schema: pa.Schema) -> str:
        if not files:
            return self.register(schema.empty_table())
        if not is_remote(files[0].path):
            paths = ", ".join(sql.literal(each.path) for each in files)
            return f"read_parquet([{paths}])"
        return self.register(self._dataset([each.path for each in files], schema))

    def typed(self, query: str, schema: TypeSchema | None) -> str:
        """Values are parsed in the query: rows that it filters out cost nothing."""
        if schema is None:
            return f"({query})"
        parsed = [
            f"p.parsed.column_{number} AS {_quoted(field.name)}"
            for number, field in enumerate(schema.nullable)
        ]
        own = [f"p.{_quoted(name)}" for name in self._connection.sql(query).columns]
        columns = ", ".join([*own[: len(sql.KEY)], *parsed, *own[len(sql.KEY) :]])
        rows = f"SELECT q.*, {self._parser(schema)}(q._value) AS parsed FROM ({query}) q"
        return f"(SELECT {columns} FROM ({rows}) p)"

    def _parser(self, schema: TypeSchema) -> str:
        """The name of a function in DuckDB that parses a value into its columns."""
        if schema.version in self._parsers:
            return self._parsers[schema.version]
        name = f"penstock_columns_{len(self._parsers)}"
        # Numbered, as DuckDB does not distinguish names that differ only in capitals.
        kinds = enumerate(field.type for field in schema.nullable)
        fields = [pa.field(f"column_{number}", kind) for number, kind in kinds]

        def parse(values: pa.ChunkedArray) -> pa.StructArray:
            return pa.StructArray.from_arrays(schema.columns(values.to_pylist()), fields=fields)

        empty = self.register(pa.table({"parsed": pa.array([], pa.struct(fields))}))
        kind = self._connection.sql(f"SELECT e.parsed FROM {empty} e").types[0]
        connection: Any = self._connection
        connection.create_function(
            name, parse, ["VARCHAR"], kind, type="arrow", null_handling="special"
        )
        self._parsers[schema.version] = name
        return name

    def merged_in_order(self, entity: str) -> Iterator[str]:
        """The state of a type up to now, including deleted keys, in parts ordered by key. Each is
        small enough to be sorted in memory, however large the state is."""
        state = self.stored(entity)
        ranges = self._ranges(state)
        cut = self.materialized(self.cuts()) if len(ranges) > 1 else f"({self.cuts()})"
        fresh = self._fresh(state, sql.everything(cut))
        rows = self.materialized(sql.everything(self.typed(fresh, self._types.get(entity))))
        for part in ranges:
            fresh = sql.between(rows, part.low, part.high)
            yield sql.merged(self._part(state, part), fresh, sql.everything(cut))

    def _ranges(self, state: StateTable) -> list[KeyRange]:
        """Key ranges by the statistics of the files; where these do not separate them, as with long
        keys that begin alike, by a sample of the keys."""
        rows = limits.PIPELINE_BUCKET_ROWS
        ranges: list[KeyRange] = []
        for keys in key_ranges(state.files(), rows):
            parts = keys.rows // rows
            ranges += [keys] if parts < 2 else keys.split(self._quantiles(state, keys.files, parts))
        return ranges

    def _quantiles(self, state: StateTable, files: Sequence[TableFile], parts: int) -> list[str]:
        """Keys that divide the rows into so many parts of about the same size."""
        keys = sql.sample(self.files(files, state.stored), parts * _SAMPLE_KEYS)
        sample = sorted(self.table(keys)["_key"].to_pylist())
        return [sample[len(sample) * number // parts] for number in range(1, parts)]

    def _part(self, state: StateTable, part: KeyRange) -> str:
        if not part.is_part:
            return self._rows(state, part.files)
        return self._rows(state, part.files, low=part.low, high=part.high)

    def materialized(self, query: str) -> str:
        """The rows of a query, held in memory, as something to select from."""
        return self.register(self.table(query))

    def define(self, name: str, query: str) -> None:
        self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {query}')

    def drop(self, name: str) -> None:
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
        """Files of an object store, read by Arrow: DuckDB's package lacks the extension for
        them."""
        from pyarrow import dataset

        opened = [filesystem(path, self._warehouse.options) for path in paths]
        return dataset.dataset(
            [path for _, path in opened], schema=schema, filesystem=opened[0][0], format="parquet"
        )

    def _message(self, error: duckdb.Error) -> str:
        """The message of an error in one line, with the names of the tables if one is not known."""
        first = str(error).strip().split("\n\n")[0].split("\nLINE")[0]
        message = " ".join(first.split())
        if isinstance(error, duckdb.CatalogException):
            message += f" There are: {', '.join(self.names())}."
        return message


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
