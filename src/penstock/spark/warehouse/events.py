"""**events**: every event of a pipeline's streams, valid or not, once. All other tables follow from
it.

A batch is appended in one commit under its query and number, with the positions that the source has
reached. Converts rows of the source to rows of the table; needs no Spark session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.spark.expectations import Expectation, Violations, violations
from penstock.spark.type_schema import TypeSchema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.delta import ParquetFile, Table, TableFile, write_file
from penstock.spark.warehouse.offsets_file import PositionFiles

_TIME: Final = pa.timestamp("us", tz="UTC")
_FIRST_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
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
        ("violations", pa.string()),
    ]
)
WRITTEN_DDL: Final = (
    "name STRING, size BIGINT, rows BIGINT, statistics STRING, invalid BIGINT, controls BIGINT, "
    "types STRING, dead STRING, violations STRING"
)
_compute: Any = pc
_CUTS: Final = ("reset", "snapshot-end")  # controls that may make earlier events void
_LAST_MARK: Final = "snapshot-start"  # controls after it, by name, do not affect the state
_STRING: Final = pa.string()


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The number of changes of a type so far, and the batch of the last one."""

    changes: int
    batch: int


class PipelineOwner(msgspec.Struct, frozen=True):
    """The pipeline that writes a warehouse: its id, if it has one, and the file of the last run."""

    id: str | None = None
    file: str | None = None
    host: str = ""


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
    violations: dict[str, int] = {}  # of expectations, by TYPE.NAME
    names: dict[str, str] = {}  # of types in SQL
    cut: int = 0  # the last batch with a reset, or the end of a snapshot
    tidied_s: int = 0  # time of the last vacuum
    engine: str = "delta-rs"
    owner: PipelineOwner = PipelineOwner()

    @property
    def dead_streams(self) -> list[str] | None:
        """Streams with events that one schema refused and another may accept; None: any stream."""
        return self.dead if self.invalid else []

    def named(self, types: Iterable[str] = ()) -> dict[str, str]:
        """The SQL name of each type that was encountered, and of these."""
        return sql.view_names(sorted({*self.types, *types}), self.names)


def rows_of(
    batch: pa.RecordBatch, validated: Validated, number: int, ingested: datetime
) -> pa.RecordBatch:
    """Rows of the source as rows of the table, with timestamps as points in time."""
    count = batch.num_rows
    replaced = {
        "generation": _compute.fill_null(batch["generation"], 0),
        "ordinal": batch["seq"],
        "kind": validated.kind,
        "time": times(batch["timestamp"]),
        "error": validated.error,
        "schema_version": validated.version,
        "batch": pa.repeat(pa.scalar(number, pa.int64()), count),
        "replayed": pa.repeat(pa.scalar(False), count),
        "ingested": pa.repeat(pa.scalar(ingested, _TIME), count),
    }
    columns = [replaced[name] if name in replaced else batch[name] for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


Expectations = Mapping[str, Sequence[Expectation]]


class Validated(NamedTuple):
    """Kind, error and schema version of each row, and how many violate each expectation."""

    kind: pa.Array
    error: pa.Array
    version: pa.Array
    violations: dict[str, int]


def validate(
    batch: pa.RecordBatch,
    types: Mapping[str, TypeSchema],
    expect: Expectations | None = None,
    *,
    is_replay: bool = False,
) -> Validated:
    """Check each value against the schema and the expectations of its type. In a replay rows stay
    invalid that would stop a run."""
    count = batch.num_rows
    version: pa.Array = pa.nulls(count, _STRING)
    kind, error = batch["kind"], batch["error"]
    changes = _compute.equal(kind, "change")
    refused: dict[int, str] = {}
    violated: dict[str, int] = {}
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
        numbers = indices.to_pylist()
        problems = dict(zip(numbers, schema.problems(values), strict=True))
        refused.update((index, each) for index, each in problems.items() if each is not None)
        if expect and expect.get(name):
            valid = [index for index in numbers if problems[index] is None]
            found = _violations(batch, valid, name, schema, expect[name])
            if not is_replay:
                found.check(f"types.{name}", _Names(batch, valid))
            violated |= {f"{name}.{each}": number for each, number in found.counts().items()}
            for row, each in found.dropped(include_failing=is_replay).items():
                refused[valid[row]] = each.reason
    if refused:
        mask = pa.array([index in refused for index in range(count)])
        kind = _compute.if_else(mask, "invalid", kind)
        error = pa.array(
            [refused.get(index, before) for index, before in enumerate(error.to_pylist())], _STRING
        )
    return Validated(kind, error, version, violated)


def _violations(
    batch: pa.RecordBatch,
    indices: list[int],
    entity: str,
    schema: TypeSchema,
    expectations: Sequence[Expectation],
) -> Violations:
    """Evaluate the expectations of a type over some rows of the source."""
    rows = batch.take(pa.array(indices, pa.int64()))
    columns = dict(
        zip(
            (f.name for f in schema.nullable),
            schema.columns(rows["value"].to_pylist()),
            strict=True,
        )
    )
    own = {f"_{name}": rows[name] for name in ("stream", "key", "value", "operation")}
    own["_time"] = times(rows["timestamp"])
    return violations(pa.table({**columns, **own}), expectations, f"types.{entity}")


class _Names(Sequence[str]):
    """Names of rows for a message, made when one is needed."""

    def __init__(self, batch: pa.RecordBatch, indices: list[int]) -> None:
        self._batch, self._indices = batch, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, row: Any) -> Any:
        index = self._indices[row]
        stream, key = (self._batch[name][index].as_py() for name in ("stream", "key"))
        return f"{key[:100]!r} of {stream}"


def times(texts: pa.Array) -> pa.Array:
    """Timestamps as points in time; null for a text that is no timestamp, has no time zone, or is
    outside the years 1 to 9999 in UTC, which engines and Python cannot show."""
    try:
        points = texts.cast(_TIME)
    except pa.ArrowException:
        return pa.array([_time(text) for text in texts.to_pylist()], _TIME)
    first, last = pa.scalar(_FIRST_TIME, _TIME), pa.scalar(_LAST_TIME, _TIME)
    is_shown = _compute.and_(
        _compute.greater_equal(points, first), _compute.less_equal(points, last)
    )
    return _compute.if_else(is_shown, points, pa.scalar(None, _TIME))


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
    expect: Expectations | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that writes the rows of a task to a file and returns its
    summary."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        summary = TaskSummary()

        def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
            checked = validate(batch, types, expect)
            return summary.add(rows_of(batch, checked, number, ingested), checked.violations)

        rows = map(validated, batches)
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
        self.violations: Counter[str] = Counter()

    def add(
        self, batch: pa.RecordBatch, violations: Mapping[str, int] | None = None
    ) -> pa.RecordBatch:
        """Count the rows of a batch, and return it."""
        self.violations.update(violations or {})
        self.invalid += batch.num_rows - batch["error"].null_count
        self.controls += (
            _compute.sum(_compute.is_in(batch["control"], pa.array(_CUTS))).as_py() or 0
        )
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
        violations = msgspec.json.encode(self.violations).decode()
        counts = {"invalid": self.invalid, "controls": self.controls, "types": types, "dead": dead}
        return {**written._asdict(), **counts, "violations": violations}


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
    violations: Mapping[str, int] = {}

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> BatchResult:
        types: Counter[str] = Counter()
        violations: Counter[str] = Counter()
        dead: set[str] | None = set()
        files, invalid, controls = [], 0, 0
        for row in rows:
            files.append(ParquetFile(*(row[name] for name in ParquetFile._fields)))
            invalid += row["invalid"]
            controls += row["controls"]
            types.update(msgspec.json.decode(row["types"], type=dict[str, int]))
            violations.update(msgspec.json.decode(row["violations"], type=dict[str, int]))
            streams = row["dead"]
            dead = merge_capped(
                dead, None if streams is None else msgspec.json.decode(streams, type=list[str])
            )
        return cls(files, invalid, controls, types, dead, violations)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class EventsTable:
    """The table **events** and the record of its last commit."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.table = Table(uri, EVENTS, options, statistics=STATISTICS)
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

    def commits(self, limit: int) -> list[tuple[datetime, EventsCommit]]:
        """The last commits of ours that the log still has, oldest first, with their times."""
        return [
            (committed_at, msgspec.convert(record, EventsCommit))
            for committed_at, record in self.table.records(limit)
        ]

    def positions(self, commit: EventsCommit | None = None) -> dict[str, Any] | None:
        """The positions of the source after a batch, else after the last one, as Spark stores them;
        None: not known."""
        record = commit or self.record
        name = record.positions_file
        return record.positions if name is None else self._position_files.get(name)

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
            violations={
                name: before.violations.get(name, 0) + result.violations.get(name, 0)
                for name in {**before.violations, **result.violations}
            },
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

    def compact(self, columns: Sequence[str] = ()) -> None:
        self.table.compact(columns)

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
