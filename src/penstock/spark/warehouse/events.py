"""**events**: every event of a pipeline's streams, valid or not, once. All other tables follow from
it.

A batch is appended in one commit under its query and number, with the positions that the source has
reached. Converts rows of the source to rows of the table; needs no Spark session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import ParquetFile, Table, TableFile, write_file
from penstock.spark.warehouse.offsets_file import PositionFiles

_TIME: Final = pa.timestamp("us", tz="UTC")
EVENTS: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("generation", pa.int64()),
        ("ordinal", pa.int64()),
        ("position", pa.int64()),
        ("offset", pa.string()),
        ("kind", pa.string()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("operation", pa.string()),
        ("value", pa.string()),
        ("old_value", pa.string()),
        ("txid", pa.string()),
        ("timestamp", pa.string()),
        ("time", _TIME),
        ("control", pa.string()),
        ("control_offset", pa.string()),
        ("error", pa.string()),
        ("schema_version", pa.string()),
        ("batch", pa.int64()),
        ("replayed", pa.bool_()),
        ("ingested", _TIME),
    ]
)
STATISTICS: Final = ("batch", "stream", "type", "ordinal", "control", "error")
WRITTEN: Final = pa.schema(
    [
        ("name", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("statistics", pa.string()),
        ("invalid", pa.int64()),
        ("controls", pa.int64()),
        ("types", pa.string()),
        ("dead", pa.string()),
    ]
)
WRITTEN_DDL: Final = (
    "name STRING, size BIGINT, rows BIGINT, statistics STRING, invalid BIGINT, controls BIGINT, "
    "types STRING, dead STRING"
)
_compute: Any = pc
_CUTS: Final = pa.array(["reset", "snapshot-end"])  # controls that may make earlier events void
_LAST_MARK: Final = "snapshot-start"  # controls after it, by name, do not affect the state
_STRING: Final = pa.string()


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The number of changes of a type so far, and the batch of the last one."""

    changes: int
    batch: int


class EventsCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a commit of events: totals of all batches up to it."""

    batch: int = 0  # number of commits with events, over all queries
    query: str | None = None
    query_batch: int | None = None
    positions: dict[str, Any] | None = None  # of the source, after this batch
    positions_file: str | None = None  # the file that has them, if they are too long for a commit
    writer: int = 0
    events: int = 0
    invalid: int = 0  # dead letters: invalid events that were not replayed since
    dead: list[str] | None = None  # streams with dead letters; None: too many, or not known
    types: dict[str, Count] = {}
    names: dict[str, str] = {}  # of types in SQL
    cut: int = 0  # the last batch with a reset, or the end of a snapshot
    tidied_s: int = 0  # time of the last vacuum
    engine: str = "delta-rs"

    @property
    def dead_streams(self) -> list[str] | None:
        """Streams with events that one schema refused and another may accept; None: any stream."""
        return self.dead if self.invalid else []

    def named(self, types: Iterable[str] = ()) -> dict[str, str]:
        """The SQL name of each type that was encountered, and of these."""
        return sql.view_names(sorted({*self.types, *types}), self.names)


def rows_of(
    batch: pa.RecordBatch, types: Mapping[str, TypeSchema], number: int, ingested: datetime
) -> pa.RecordBatch:
    """Rows of the source as rows of the table: validated, with timestamps as points in time."""
    count = batch.num_rows
    kind, error, version = validate(batch, types)
    replaced = {
        "generation": _compute.fill_null(batch["generation"], 0),
        "ordinal": batch["seq"],
        "kind": kind,
        "time": times(batch["timestamp"]),
        "error": error,
        "schema_version": version,
        "batch": pa.repeat(pa.scalar(number, pa.int64()), count),
        "replayed": pa.repeat(pa.scalar(False), count),
        "ingested": pa.repeat(pa.scalar(ingested, _TIME), count),
    }
    columns = [replaced[name] if name in replaced else batch[name] for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def validate(
    batch: pa.RecordBatch, types: Mapping[str, TypeSchema]
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Kind, error and schema version of each row, after its value was checked against its
    schema."""
    count = batch.num_rows
    version: pa.Array = pa.nulls(count, _STRING)
    kind, error = batch["kind"], batch["error"]
    changes = _compute.equal(kind, "change")
    refused: dict[int, str] = {}
    for name, schema in types.items():
        of_type = _compute.and_(
            changes, _compute.fill_null(_compute.equal(batch["type"], name), False)
        )
        version = _compute.if_else(of_type, schema.version, version)
        valued = _compute.and_(of_type, _compute.not_equal(batch["operation"], "delete"))
        indices = _compute.indices_nonzero(valued)
        if len(indices) == 0:
            continue
        values = batch["value"].take(indices).to_pylist()
        problems = zip(indices.to_pylist(), schema.problems(values), strict=True)
        refused.update((index, problem) for index, problem in problems if problem is not None)
    if refused:
        mask = pa.array([index in refused for index in range(count)])
        kind = _compute.if_else(mask, "invalid", kind)
        error = pa.array(
            [refused.get(index, before) for index, before in enumerate(error.to_pylist())], _STRING
        )
    return kind, error, version


def times(texts: pa.Array) -> pa.Array:
    """Timestamps as points in time; null for a text that is no timestamp or has no time zone."""
    try:
        return texts.cast(_TIME)
    except pa.ArrowException:
        return pa.array([_time(text) for text in texts.to_pylist()], _TIME)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text.upper())
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def writer_of(
    uri: str,
    types: Mapping[str, TypeSchema],
    number: int,
    ingested: datetime,
    options: Mapping[str, str] | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that writes the rows of a task to a file and returns its
    summary."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        summary = TaskSummary()
        rows = (summary.add(rows_of(batch, types, number, ingested)) for batch in batches)
        written = write_file(
            uri, EVENTS, rows, prefix=f"{number:08d}", statistics=STATISTICS, options=options
        )
        if written is not None:
            yield pa.RecordBatch.from_pylist([summary.row(written)], schema=WRITTEN)

    return write


class TaskSummary:
    """Totals of the rows that a task has written."""

    def __init__(self) -> None:
        self.invalid = self.controls = 0
        self.types: Counter[str] = Counter()
        self.dead: set[str] | None = set()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the rows of a batch, and return it."""
        self.invalid += batch.num_rows - batch["error"].null_count
        self.controls += _compute.sum(_compute.is_in(batch["control"], _CUTS)).as_py() or 0
        changes = batch["type"].filter(_compute.equal(batch["kind"], "change"))
        for count in _compute.value_counts(changes).to_pylist():
            self.types[count["values"]] += count["counts"]
        refused = _compute.and_(_compute.equal(batch["kind"], "invalid"), batch["type"].is_valid())
        self.dead = merge_capped(self.dead, batch["stream"].filter(refused).unique().to_pylist())
        return batch

    def row(self, written: ParquetFile) -> dict[str, Any]:
        """A row of the schema WRITTEN, for the file with these rows."""
        types = msgspec.json.encode(self.types).decode()
        dead = None if self.dead is None else msgspec.json.encode(sorted(self.dead)).decode()
        counts = {"invalid": self.invalid, "controls": self.controls, "types": types, "dead": dead}
        return {**written._asdict(), **counts}


def merge_capped(streams: Iterable[str] | None, more: Iterable[str] | None) -> set[str] | None:
    """The union of two sets of streams; None if either is None, or it has too many to be listed."""
    if streams is None or more is None:
        return None
    union = {*streams, *more}
    return union if len(union) <= limits.PIPELINE_DEAD_STREAMS_MAX else None


class BatchResult(NamedTuple):
    """The files that the tasks of a batch have written, and totals of their rows."""

    files: list[ParquetFile]
    invalid: int
    controls: int
    types: Mapping[str, int]
    dead: Set[str] | None = frozenset()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> BatchResult:
        types: Counter[str] = Counter()
        dead: set[str] | None = set()
        files, invalid, controls = [], 0, 0
        for row in rows:
            files.append(ParquetFile(*(row[name] for name in ParquetFile._fields)))
            invalid += row["invalid"]
            controls += row["controls"]
            types.update(msgspec.json.decode(row["types"], type=dict[str, int]))
            streams = row["dead"]
            dead = merge_capped(
                dead, None if streams is None else msgspec.json.decode(streams, type=list[str])
            )
        return cls(files, invalid, controls, types, dead)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class EventsTable:
    """The table **events** and the record of its last commit."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.table = Table(uri, EVENTS, options)
        self._position_files = PositionFiles(uri, options)
        self._record: EventsCommit | None = None

    @property
    def uri(self) -> str:
        return self.table.uri

    @property
    def record(self) -> EventsCommit:
        """The record of the last commit that was read."""
        if self._record is None:
            record = self.table.record() if self.table.exists else {}
            self._record = msgspec.convert(record, EventsCommit)
        return self._record

    def positions(self) -> dict[str, Any] | None:
        """The positions of the source after the last batch, as Spark stores them; None: not
        known."""
        name = self.record.positions_file
        return self.record.positions if name is None else self._position_files.get(name)

    def own_record(self) -> EventsCommit:
        """The record, for a writer; an error if another engine has written since."""
        record = self.record
        self.table.refuse_foreign()
        return record

    def refresh(self) -> None:
        self.table.refresh()
        self._record = None

    def has(self, query: str, batch: int) -> bool:
        """Whether the table has a batch of a query."""
        last = self.table.transaction(query)
        return last is not None and last >= batch

    def append(
        self, result: BatchResult, *, query: str, batch: int, positions: dict[str, Any] | None
    ) -> EventsCommit:
        """Commit a batch: from here on it counts."""
        totals = self.after(result)
        file = self._position_files.put(totals.batch, positions)
        record = msgspec.structs.replace(
            totals,
            query=query,
            query_batch=batch,
            positions=positions if file is None else None,
            positions_file=file,
        )
        self._commit(result.files, record, {query: batch})
        self._position_files.remove_old(totals.batch)
        return record

    def after(self, result: BatchResult) -> EventsCommit:
        """The record of the next commit, if it appends these rows."""
        before = self.record
        number = before.batch + 1
        types = dict(before.types)
        for name, count in result.types.items():
            types[name] = Count(count + (types[name].changes if name in types else 0), number)
        dead = merge_capped(before.dead_streams, result.dead)
        return msgspec.structs.replace(
            before,
            batch=number,
            events=before.events + result.rows,
            invalid=before.invalid + result.invalid,
            dead=None if dead is None else sorted(dead),
            types=types,
            names=before.named(types),
            cut=number if result.controls else before.cut,
        )

    def note(self, record: EventsCommit) -> None:
        """Commit a record without events."""
        self._commit([], record, {})

    def add(self, result: BatchResult) -> None:
        """Commit rows that are not of a query."""
        self._commit(result.files, self.after(result), {})

    def add_replayed(
        self, result: BatchResult, *, remaining: int, dead: Iterable[str] | None
    ) -> None:
        """Commit dead letters that were replayed; `remaining` ones of the streams `dead` were
        not."""
        streams = None if dead is None else sorted(dead)
        record = msgspec.structs.replace(self.after(result), invalid=remaining, dead=streams)
        self._commit(result.files, record, {})

    def compact(self) -> None:
        self.table.compact()

    def _commit(
        self, written: list[ParquetFile], record: EventsCommit, names: dict[str, int]
    ) -> None:
        self.table.commit(written, msgspec.to_builtins(record), {**names, WRITER: record.writer})
        self._record = record

    def files(self, *, after: int = 0, column: str | None = None) -> list[TableFile]:
        """Files that may have rows of batches after `after`; with `column` also a value in it."""
        return [
            file
            for file in self.table.files()
            if file.most.get("batch", after + 1) > after
            and (column is None or file.may_have(column))
            and (column != "control" or file.least.get("control", "") <= _LAST_MARK)
        ]


WRITER: Final = "penstock/writer"
