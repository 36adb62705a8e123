"""Queries of others over a warehouse: one SELECT that reaches the relations and nothing else.

DuckDB has no access to files or the network here; the files of the tables come through Arrow. Rows,
bytes, time and memory of a query have limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from penstock.errors import QueryFailed
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.warehouse import Warehouse

PROCESS_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
_ROWS_AT_ONCE: Final = 256
# The order matters: the last two forbid further changes.
_SETTINGS: Final = (
    "SET memory_limit = '512MB'",
    "SET max_temp_directory_size = '1GB'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def limit_memory() -> None:
    """Bound the memory of this process: DuckDB's own limit does not count single large values."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = PROCESS_BYTES_MAX if hard == resource.RLIM_INFINITY else min(PROCESS_BYTES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class Column(msgspec.Struct, frozen=True):
    """A column of a result; `type` is that of DuckDB."""

    name: str
    type: str


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a query, each an array of values; `truncated` if there are more."""

    columns: list[Column]
    rows: list[msgspec.Raw]
    truncated: bool
    seconds: float


class SandboxedDuck(Duck):
    """The relations of a warehouse, for queries of others."""

    def __init__(
        self, warehouse: Warehouse, types: Mapping[str, TypeSchema], *, replaces: bool = False
    ) -> None:
        super().__init__(warehouse, types, replaces=replaces)
        for setting in _SETTINGS:
            self._connection.execute(setting)

    def files(self, files: Sequence[TableFile], schema: pa.Schema) -> str:
        if not files:
            return self.register(schema.empty_table())
        return self.register(self._dataset([each.path for each in files], schema))

    def query(
        self, query: str, *, rows_max: int, bytes_max: int, seconds_max: float
    ) -> QueryResult:
        """Return the first rows of one SELECT."""
        start_s = time.monotonic()
        timer = threading.Timer(seconds_max, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            self._check(query)
            self.prepare(query)
            relation = self._connection.sql(query)
            types = zip(relation.columns, relation.types, strict=True)
            columns = [Column(name, str(kind)) for name, kind in types]
            rows, truncated = _first(
                relation.to_arrow_reader(_ROWS_AT_ONCE), rows_max=rows_max, bytes_max=bytes_max
            )
        except duckdb.InterruptException:
            raise QueryFailed(
                f"The query took longer than {seconds_max:g} seconds. Add a condition, or run it "
                "with `penstock pipeline sql`, which has no limit."
            ) from None
        except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError):
            raise QueryFailed(
                "The query needs more memory than it may use. Add a condition, or run it with "
                "`penstock pipeline sql`, which may use more."
            ) from None
        except duckdb.PermissionException:
            raise QueryFailed(
                "Queries reach the tables of the pipeline only: no files, no network, no settings."
            ) from None
        except duckdb.Error as error:
            raise QueryFailed(self._message(error)) from None
        finally:
            timer.cancel()
        seconds = round(time.monotonic() - start_s, 3)
        return QueryResult(columns=columns, rows=rows, truncated=truncated, seconds=seconds)

    def _check(self, query: str) -> None:
        statements = self._connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryFailed("Send one SELECT; the tables can only be read.")


def _first(
    reader: pa.RecordBatchReader, *, rows_max: int, bytes_max: int
) -> tuple[list[msgspec.Raw], bool]:
    """Return rows as JSON up to a number and a size, and whether there are more."""
    rows: list[msgspec.Raw] = []
    size = 0
    for row in _rows(reader):
        raw = msgspec.json.encode(row, enc_hook=str)
        size += len(raw)
        if len(rows) >= rows_max or (rows and size > bytes_max):
            return rows, True
        rows.append(msgspec.Raw(raw))
    return rows, False


def _rows(reader: pa.RecordBatchReader) -> Iterator[list[Any]]:
    for batch in reader:
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield list(row)
