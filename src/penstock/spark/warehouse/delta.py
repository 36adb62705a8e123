"""Delta tables through delta-rs: one file of rows at a time, and commits that happen once.

A commit is made on the handle that was looked at before it, and never tried again by itself: if
somebody else has committed in between it fails. Knows no events and no Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

TEXT_MAX: Final = 32  # characters of a text that are told
_ABOVE_ASCII: Final = "\x7f"
_ABOVE_ALL: Final = "\U0010ffff"
RECORD: Final = "penstock"  # where a commit says what it is about
_ROWS_TOGETHER: Final = 128 * 1024  # in one group of a file
_LOOK_BACK: Final = (1, 64, 1024, None)  # commits, until one of ours is found; None: all
_RETENTION: Final = "delta.deletedFileRetentionDuration"
# Reader 1, writer 2: every engine reads it. Each commit lists the whole log on a local disk, so it
# is kept short, and not by each commit but now and then (`tidy`).
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 1 hours",
    _RETENTION: f"interval {limits.PIPELINE_KEEP_HOURS} hours",
}
_compute: Any = pc


class Written(NamedTuple):
    """A file of rows that is not part of its table yet."""

    name: str
    size: int
    rows: int
    statistics: str


class File(NamedTuple):
    """A file of a table."""

    path: str
    rows: int
    least: dict[str, Any]
    most: dict[str, Any]
    nulls: dict[str, int | None]

    def may_have(self, column: str) -> bool:
        """Whether any row may have a value there."""
        return self.nulls.get(column) != self.rows


# Of delta-rs and Delta's Spark jar: files are rewritten or removed, rows stay as they are.
_UPKEEP: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})


class Table:
    """One Delta table, at its newest version."""

    def __init__(self, uri: str, schema: pa.Schema, options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.schema = schema
        self._options = delta_options(uri, options)
        self._handle: DeltaTable | None = None
        self._files: dict[str, File] = {}
        self.foreign: str | None = None

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
        """Make the table if it is not there."""
        if not self.exists:
            self._handle = DeltaTable.create(
                self.uri,
                self.schema,
                mode="ignore",
                configuration=_CONFIGURATION,
                storage_options=self._options,
                commit_properties=_properties(record, {}),
            )

    @translates_storage_errors
    def refresh(self) -> None:
        if self._opened() is not None:
            self.handle.update_incremental()

    @property
    def version(self) -> int | None:
        """None while there is no table."""
        return int(self.handle.version()) if self.exists else None

    @property
    def columns(self) -> pa.Schema:
        """The schema as it is stored."""
        return pa.schema(self.handle.schema().to_arrow())

    @translates_storage_errors
    def transaction(self, name: str) -> int | None:
        """The last version that was committed under a name."""
        return self.handle.transaction_version(name)

    @translates_storage_errors
    def record(self) -> dict[str, Any]:
        """What the last commit with a record says. All commits of ours have one; others' upkeep may
        be on top of it."""
        self.foreign = None
        for most in _LOOK_BACK:
            above: list[dict[str, Any]] = []
            for entry in self.handle.history(most):
                if RECORD in entry:
                    self.foreign = _foreign(above, entry)
                    found: dict[str, Any] = msgspec.json.decode(entry[RECORD])
                    return found
                above.append(entry)
            if most is None or len(above) < most:
                break
        self.foreign = "all versions that its log has"
        return {}

    def refuse_foreign(self) -> None:
        """An error if another engine has written since our last commit, as far as it is known."""
        if self.foreign is not None:
            raise WarehouseInUse(
                f"{self.uri} was changed by another engine ({self.foreign}): a pipeline's tables "
                "are written by the pipeline alone. RESTORE it to the version before that."
            )

    @translates_storage_errors
    def files(self) -> list[File]:
        if not self.exists:
            return []
        actions = pa.table(self.handle.get_add_actions(flatten=True))
        paths = actions["path"].to_pylist()
        # What is said of a file never changes: only of new ones it is read.
        known = self._files
        new = [number for number, path in enumerate(paths) if path not in known]
        rows = actions.take(pa.array(new, pa.int64())).to_pylist()
        made = {row["path"]: _file(self.uri, row) for row in rows}
        self._files = {path: known.get(path) or made[path] for path in paths}
        return list(self._files.values())

    @translates_storage_errors
    def commit(
        self,
        files: Iterable[Written],
        record: dict[str, Any],
        transactions: dict[str, int],
        *,
        overwrite: bool = False,
    ) -> None:
        """Add files, or put them in the place of all there are: all of it or nothing."""
        actions: list[Any] = [
            AddAction(
                each.name, each.size, {}, SYSTEM_CLOCK.now_us() // 1000, True, each.statistics
            )
            for each in files
        ]
        self.handle.create_write_transaction(
            actions,
            "overwrite" if overwrite else "append",
            self.schema,
            commit_properties=_properties(record, transactions),
        )
        self.handle.update_incremental()

    @translates_storage_errors
    def compact(self) -> None:
        """Make few files of many small ones; no row changes."""
        # Without a record: delta-rs commits upkeep also on top of what others have committed since,
        # and a run that was taken over would bury what its successor says.
        self.handle.optimize.compact(commit_properties=_ONCE)
        self.handle.update_incremental()

    @translates_storage_errors
    def tidy(self, hours: int, *, keep: int, dry_run: bool = False) -> list[str]:
        """Remove files that no version of the last so many hours has, also those that were written
        and never committed, and expired entries of the log; tells the files. Readers may look at an
        old version for `keep` hours, which the table remembers."""
        record = self.record()
        self.refuse_foreign()
        if dry_run:
            return self._vacuum(hours)
        wanted = {**_CONFIGURATION, _RETENTION: f"interval {keep} hours"}
        found = self.handle.metadata().configuration
        if any(found.get(name) != value for name, value in wanted.items()):
            # Else checkpoints forget too early, or too late, which files are gone.
            properties = _properties(record, {})
            self.handle.alter.set_table_properties(wanted, commit_properties=properties)
            self.handle.update_incremental()
        removed = self._vacuum(hours, dry_run=False, commit_properties=_ONCE)
        self.handle.update_incremental()
        self._say_again()
        self.handle.cleanup_metadata()
        return removed

    def _say_again(self) -> None:
        """If upkeep is on top of our last commit, say again what that says: so far back the log may
        be cut off."""
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


def _foreign(above: list[dict[str, Any]], ours: dict[str, Any]) -> str | None:
    """What others have changed since our last commit; upkeep changes no row, and is welcome."""
    for entry in above:  # the newest first
        operation = str(entry.get("operation", ""))
        parameters = entry.get("operationParameters") or {}
        if operation == "RESTORE" and str(parameters.get("version")) == str(ours["version"]):
            return None
        if operation not in _UPKEEP:
            engine = entry.get("engineInfo") or entry.get("clientVersion") or "unknown"
            return f"version {entry['version']}, {operation} by {engine}"
    return None


_ONCE: Final = CommitProperties(max_commit_retries=0)


def _properties(record: dict[str, Any], transactions: dict[str, int]) -> CommitProperties:
    return CommitProperties(
        custom_metadata={RECORD: msgspec.json.encode(record).decode()},
        app_transactions=[Transaction(name, number) for name, number in transactions.items()],
        max_commit_retries=0,
    )


def _file(uri: str, row: dict[str, Any]) -> File:
    def values(prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): value
            for name, value in row.items()
            if name.startswith(prefix) and value is not None
        }

    return File(
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
) -> Written | None:
    """Rows as a new file in a table's folder; None if there are none. Runs in executors too."""
    tables = _together(batches, schema)
    first = next(tables, None)
    if first is None:
        return None
    files, folder = filesystem(uri, options)
    # A name of its own for each attempt: a copy of a task that was given up leaves its file alone.
    name = f"{prefix}-{uuid.uuid4().hex}.parquet"
    path = f"{folder}/{name}"
    noted = Statistics(statistics)
    with warehouse_errors(uri):
        file = pq.ParquetWriter(path, schema, filesystem=files, compression="zstd")
    with file as writer:
        for table in _chain(first, tables):
            with warehouse_errors(
                uri
            ):  # not around the rows: what goes wrong with those is no matter of files
                writer.write_table(table)
            noted.add(table)
    return Written(name, files.get_file_info(path).size, noted.rows, noted.json())


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _together(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Small batches as larger tables: a group of rows in a file has its cost."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_TOGETHER:
            yield pa.Table.from_batches(held, schema)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


class Statistics:
    """Gathered while the rows of a file are written."""

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
            found = _compute.min_max(column).as_py()
            self._least[name] = min(self._least.get(name, found["min"]), found["min"])
            self._most[name] = max(self._most.get(name, found["max"]), found["max"])

    def json(self) -> str:
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {name: below(value) for name, value in self._least.items()},
                "maxValues": {name: above(value) for name, value in self._most.items()},
                "nullCount": self._nulls,
            }
        ).decode()


def below(value: Any) -> Any:
    """A value, or if it is a long text a short one that no text which begins so is less than."""
    return value[:TEXT_MAX] if isinstance(value, str) else value


def above(value: Any) -> Any:
    """A value, or if it is a long text a shorter one that is greater, in the order of code points,
    which is that of the bytes of UTF-8. A text of the greatest character alone has none."""
    if not isinstance(value, str):
        return value
    for end in range(TEXT_MAX, len(value)):
        if value[end] < _ABOVE_ASCII:
            return value[:end] + _ABOVE_ASCII
        if value[end] < _ABOVE_ALL:
            return value[:end] + _ABOVE_ALL
    return value
