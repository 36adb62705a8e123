"""Delta tables through delta-rs: files of rows with their statistics, and commits that happen once.

A commit is based on the version that was read before it and is never retried here: if somebody else
has committed in between, it fails. Knows no events and no Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction

from penstock import limits
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import WarehouseInUse
from penstock.spark.error_text import translates_storage_errors, warehouse_errors
from penstock.spark.warehouse.storage import delta_options, filesystem

TEXT_MAX: Final = 32  # characters of a text in the statistics, as Delta's own writers keep them
_ABOVE_ASCII: Final = "\x7f"  # greater than any printable character of ASCII
_ABOVE_ALL: Final = "\U0010ffff"
RECORD: Final = "penstock"  # the key of our record in the metadata of a commit
_ROW_GROUP_ROWS: Final = 128 * 1024
_LOOK_BACK: Final = (1, 64, 1024, None)  # commits to read until one has a record; None: all
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
# Reader 1, writer 2: every engine reads it. On a local disk each commit lists the whole log, so the
# log is kept short: by `vacuum`, since to do it in each commit would be slow.
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 1 hours",
    _RETENTION: f"interval {limits.PIPELINE_KEEP_HOURS} hours",
}
_compute: Any = pc


class ParquetFile(NamedTuple):
    """A file of rows that is in the folder of a table, and not yet part of the table."""

    name: str
    size: int
    rows: int
    statistics: str


class TableFile(NamedTuple):
    """A file of a table, with its statistics."""

    path: str
    rows: int
    least: dict[str, Any]
    most: dict[str, Any]
    nulls: dict[str, int | None]

    def may_have(self, column: str) -> bool:
        """Whether any row may have a value in this column."""
        return self.nulls.get(column) != self.rows


# Operations of delta-rs and of Delta's Spark jar that rewrite or remove files and change no row.
_MAINTENANCE: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


class Table:
    """One Delta table, at its newest version."""

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        options: dict[str, str] | None = None,
        *,
        statistics: Sequence[str] = (),
    ) -> None:
        self.uri = uri
        self.schema = schema
        self._statistics = statistics
        self._options = delta_options(uri, options)
        self._handle: DeltaTable | None = None
        self._files: dict[str, TableFile] = {}
        self.foreign: str | None = None

    @property
    def _statistics_property(self) -> dict[str, str]:
        """The property that names the columns with statistics. Without it readers of delta-rs take
        a column without statistics for one without values, and find no rows by it."""
        return {_STATISTICS: ",".join(self._statistics)} if self._statistics else {}

    @property
    def exists(self) -> bool:
        return self._opened() is not None

    @property
    def handle(self) -> DeltaTable:
        handle = self._opened()
        assert handle is not None, f"{self.uri} is no table yet"
        return handle

    @translates_storage_errors
    def _opened(self) -> DeltaTable | None:
        if self._handle is None:
            try:
                self._handle = DeltaTable(self.uri, storage_options=self._options)
            except TableNotFoundError:
                return None
        return self._handle

    @translates_storage_errors
    def create(self, record: dict[str, Any]) -> None:
        """Create the table unless it exists."""
        if not self.exists:
            self._handle = DeltaTable.create(
                self.uri,
                self.schema,
                mode="ignore",
                configuration={**_CONFIGURATION, **self._statistics_property},
                storage_options=self._options,
                commit_properties=_properties(record, {}),
            )

    @translates_storage_errors
    def refresh(self) -> None:
        if self._opened() is not None:
            self.handle.update_incremental()

    @property
    def version(self) -> int | None:
        """The newest version that was read, or None if there is no table."""
        return int(self.handle.version()) if self.exists else None

    @property
    def columns(self) -> pa.Schema:
        """The schema as it is stored."""
        return pa.schema(self.handle.schema().to_arrow())

    @translates_storage_errors
    def transaction(self, name: str) -> int | None:
        """The last number that was committed under an application's name."""
        return self.handle.transaction_version(name)

    @translates_storage_errors
    def record(self) -> dict[str, Any]:
        """The record of the last commit that has one. All of ours do; maintenance by others may
        come after it."""
        self.foreign = None
        for limit in _LOOK_BACK:
            newer: list[dict[str, Any]] = []
            for entry in self.handle.history(limit):
                if RECORD in entry:
                    self.foreign = _foreign(newer, entry)
                    return msgspec.json.decode(entry[RECORD], type=dict[str, Any])
                newer.append(entry)
            if limit is None or len(newer) < limit:
                break
        self.foreign = "all versions in its log"
        return {}

    @translates_storage_errors
    def records(self, limit: int) -> list[tuple[datetime, dict[str, Any]]]:
        """The records of the last commits that the log has, oldest first, with their times."""
        return [
            (
                datetime.fromtimestamp(entry["timestamp"] / 1000, UTC),
                msgspec.json.decode(entry[RECORD], type=dict[str, Any]),
            )
            for entry in reversed(list(self.handle.history(limit)))
            if RECORD in entry
        ]

    def refuse_foreign(self) -> None:
        """Raise an error if another engine is known to have written since our last commit."""
        if self.foreign is not None:
            raise WarehouseInUse(
                f"{self.uri} was changed by another engine ({self.foreign}): a pipeline's tables "
                "are written by the pipeline alone. RESTORE it to the version before that."
            )

    @translates_storage_errors
    def files(self) -> list[TableFile]:
        if not self.exists:
            return []
        actions = pa.table(self.handle.get_add_actions(flatten=True))
        paths = actions["path"].to_pylist()
        # The statistics of a file never change: only those of new files are read.
        cached = self._files
        new = [number for number, path in enumerate(paths) if path not in cached]
        rows = actions.take(pa.array(new, pa.int64())).to_pylist()
        added = {row["path"]: _table_file(self.uri, row) for row in rows}
        self._files = {path: cached.get(path) or added[path] for path in paths}
        return list(self._files.values())

    @translates_storage_errors
    def commit(
        self,
        files: Iterable[ParquetFile],
        record: dict[str, Any],
        transactions: dict[str, int],
        *,
        overwrite: bool = False,
    ) -> None:
        """Add files, or replace all files by them, in one commit."""
        actions: list[Any] = [
            AddAction(
                file.name, file.size, {}, SYSTEM_CLOCK.now_us() // 1000, True, file.statistics
            )
            for file in files
        ]
        self.handle.create_write_transaction(
            actions,
            "overwrite" if overwrite else "append",
            self.schema,
            commit_properties=_properties(record, transactions),
        )
        self.handle.update_incremental()

    @translates_storage_errors
    def compact(self, columns: Sequence[str] = ()) -> None:
        """Compact many small files into few, ordered by columns if there are some (Z-order); no row
        changes."""
        # Without a record: delta-rs rebases maintenance on what others have committed since, so a
        # run that was taken over would hide the record of its successor.
        if columns:
            self.handle.optimize.z_order(list(columns), commit_properties=_WITHOUT_RETRIES)
        else:
            self.handle.optimize.compact(commit_properties=_WITHOUT_RETRIES)
        self.handle.update_incremental()

    @translates_storage_errors
    def vacuum(self, hours: int, *, keep: int, dry_run: bool = False) -> list[str]:
        """Vacuum files unreferenced for `hours` and expired entries of the log; return the paths of
        the files.

        Files that were never committed are removed, too. `keep` becomes a property of the table:
        the hours for which readers may use an old version.
        """
        record = self.record()
        self.refuse_foreign()
        if dry_run:
            return self._vacuum(hours)
        properties = {
            **_CONFIGURATION,
            **self._statistics_property,
            _RETENTION: f"interval {keep} hours",
        }
        current = self.handle.metadata().configuration
        if any(current.get(name) != value for name, value in properties.items()):
            # Checkpoints drop the entries of removed files by these.
            self.handle.alter.set_table_properties(
                properties, commit_properties=_properties(record, {})
            )
            self.handle.update_incremental()
        removed = self._vacuum(hours, dry_run=False, commit_properties=_WITHOUT_RETRIES)
        self.handle.update_incremental()
        self._repeat_record()
        self.handle.cleanup_metadata()
        return removed

    def _repeat_record(self) -> None:
        """Commit our last record again if maintenance came after it: the log is cut off before the
        newest checkpoint, and the record with it."""
        record = self.record()
        self.refuse_foreign()
        if RECORD not in self.handle.history(1)[0]:
            properties = _properties(record, {})
            self.handle.create_write_transaction(
                [], "append", self.columns, commit_properties=properties
            )
            self.handle.update_incremental()

    def _vacuum(self, hours: int, **options: Any) -> list[str]:
        return self.handle.vacuum(hours, enforce_retention_duration=False, full=True, **options)


def _foreign(newer: list[dict[str, Any]], ours: dict[str, Any]) -> str | None:
    """A description of the newest commit of another engine after ours that may have changed rows;
    None if there is none, or the table was restored to our commit."""
    for entry in newer:  # the newest first
        operation = str(entry.get("operation", ""))
        parameters = entry.get("operationParameters") or {}
        if operation == "RESTORE" and str(parameters.get("version")) == str(ours["version"]):
            return None
        if operation not in _MAINTENANCE:
            engine = entry.get("engineInfo") or entry.get("clientVersion") or "unknown"
            return f"version {entry['version']}, {operation} by {engine}"
    return None


_WITHOUT_RETRIES: Final = CommitProperties(max_commit_retries=0)


def _properties(record: dict[str, Any], transactions: dict[str, int]) -> CommitProperties:
    return CommitProperties(
        custom_metadata={RECORD: msgspec.json.encode(record).decode()},
        app_transactions=[Transaction(name, number) for name, number in transactions.items()],
        max_commit_retries=0,
    )


def _table_file(uri: str, row: dict[str, Any]) -> TableFile:
    def values(prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): value
            for name, value in row.items()
            if name.startswith(prefix) and value is not None
        }

    return TableFile(
        f"{uri}/{row['path']}",
        row["num_records"] or 0,
        values("min."),
        values("max."),
        values("null_count."),
    )


def write_file(
    uri: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    prefix: str,
    statistics: Sequence[str],
    options: Mapping[str, str] | None = None,
) -> ParquetFile | None:
    """Write rows to a new file in the folder of a table; None if there are none. Runs in executors,
    too."""
    tables = _row_groups(batches, schema)
    first = next(tables, None)
    if first is None:
        return None
    files, folder = filesystem(uri, options)
    # Each attempt has its own name, so that an abandoned copy of a task cannot overwrite the file.
    name = f"{prefix}-{uuid.uuid4().hex}.parquet"
    path = f"{folder}/{name}"
    gathered = Statistics(statistics)
    with warehouse_errors(uri):
        file = pq.ParquetWriter(path, schema, filesystem=files, compression="zstd")
    with file as writer:
        for table in _chain(first, tables):
            with warehouse_errors(uri):  # not around `tables`: errors of rows are no storage errors
                writer.write_table(table)
            gathered.add(table)
    return ParquetFile(name, files.get_file_info(path).size, gathered.rows, gathered.json())


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches combined to tables of a row group each: small row groups make large files."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        pending.append(batch)
        rows += batch.num_rows
        if rows >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(pending, schema)
            pending, rows = [], 0
    if pending:
        yield pa.Table.from_batches(pending, schema)


class Statistics:
    """The statistics of a file, gathered while its rows are written: readers skip files by them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._nulls = dict.fromkeys(columns, 0)
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for name in self._nulls:
            column = table[name]
            self._nulls[name] += column.null_count
            if column.null_count == len(column):
                continue
            bounds = _compute.min_max(column).as_py()
            self._least[name] = min(self._least.get(name, bounds["min"]), bounds["min"])
            self._most[name] = max(self._most.get(name, bounds["max"]), bounds["max"])

    def json(self) -> str:
        """The statistics as Delta's log has them."""
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {name: below(value) for name, value in self._least.items()},
                "maxValues": {name: above(value) for name, value in self._most.items()},
                "nullCount": self._nulls,
            }
        ).decode()


def below(value: Any) -> Any:
    """A lower bound of a value: a long text is cut."""
    return value[:TEXT_MAX] if isinstance(value, str) else value


def above(value: Any) -> Any:
    """An upper bound of a value: of a long text a shorter one that is greater in the order of code
    points, which is the order of UTF-8 bytes. Where there is none, the text itself."""
    if not isinstance(value, str):
        return value
    for end in range(TEXT_MAX, len(value)):
        if value[end] < _ABOVE_ASCII:
            return value[:end] + _ABOVE_ASCII
        if value[end] < _ABOVE_ALL:
            return value[:end] + _ABOVE_ALL
    return value
