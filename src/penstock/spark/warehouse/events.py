"""**events**: every event of a pipeline's streams, valid or not, once: what all else follows from.

A batch is appended in one commit under its query and number, with the positions that the source
had reached. Rows are made here from those of the source; nothing here needs a Spark session.
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
from penstock.spark.warehouse.delta import File, Table, Written, write_file
from penstock.spark.warehouse.offsets_file import KeptPositions

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
_CUTS: Final = pa.array(["reset", "snapshot-end"])  # may end what was there before
_LAST_MARK: Final = "snapshot-start"  # of the controls by name; later ones say nothing of the state
_STRING: Final = pa.string()


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The changes of a type so far, and the batch that brought the last one."""

    changes: int
    batch: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What each commit of events says of itself, and of all before it."""

    batch: int = 0  # counts the commits that brought events, over all queries
    query: str | None = None
    query_batch: int | None = None
    positions: dict[str, Any] | None = None  # of the source, after this batch
    positions_file: str | None = None  # where they are, if they are too long to be here
    writer: int = 0
    events: int = 0
    invalid: int = 0  # dead letters: events that were refused, and not replayed since
    dead: list[str] | None = None  # streams that have refused ones; None: too many, or not known
    types: dict[str, Count] = {}
    names: dict[str, str] = {}  # of types, in SQL
    cut: int = 0  # the last batch with a reset, or the end of a snapshot
    tidied_s: int = 0  # when files that are not needed any more were last removed
    engine: str = "delta-rs"

    @property
    def dead_streams(self) -> list[str] | None:
        """Streams with events that a schema has refused and another may take; None: any may."""
        return self.dead if self.invalid else []

    def named(self, types: Iterable[str] = ()) -> dict[str, str]:
        """What SQL calls each type that was met, and these."""
        return sql.view_names(sorted({*self.types, *types}), self.names)


def rows_of(
    batch: pa.RecordBatch, types: Mapping[str, TypeSchema], number: int, ingested: datetime
) -> pa.RecordBatch:
    """Rows of the source as rows of the table: checked against the schemas, with time as such."""
    count = batch.num_rows
    kind, error, version = checked(batch, types)
    made = {
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
    columns = [made[name] if name in made else batch[name] for name in EVENTS.names]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def checked(
    batch: pa.RecordBatch, types: Mapping[str, TypeSchema]
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Kind, error and schema version of each row."""
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
        places = _compute.indices_nonzero(valued)
        if len(places) == 0:
            continue
        values = batch["value"].take(places).to_pylist()
        found = zip(places.to_pylist(), schema.problems(values), strict=True)
        refused.update((place, problem) for place, problem in found if problem is not None)
    if refused:
        mask = pa.array([place in refused for place in range(count)])
        kind = _compute.if_else(mask, "invalid", kind)
        error = pa.array(
            [refused.get(place, told) for place, told in enumerate(error.to_pylist())], _STRING
        )
    return kind, error, version


def times(texts: pa.Array) -> pa.Array:
    """Timestamps as points in time; null where the text is none, or has no zone."""
    try:
        return texts.cast(_TIME)
    except pa.ArrowException:
        return pa.array([_time(text) for text in texts.to_pylist()], _TIME)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.upper())
        return None if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def writer_of(
    uri: str,
    types: Mapping[str, TypeSchema],
    number: int,
    ingested: datetime,
    options: Mapping[str, str] | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its rows: write them to a file, and tell which."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = Told()
        made = (told.see(rows_of(batch, types, number, ingested)) for batch in batches)
        written = write_file(
            uri, EVENTS, made, prefix=f"{number:08d}", statistics=STATISTICS, options=options
        )
        if written is not None:
            yield pa.RecordBatch.from_pylist([told.row(written)], schema=WRITTEN)

    return write


class Told:
    """What a task tells of its rows beside the file that they are in."""

    def __init__(self) -> None:
        self.invalid = self.controls = 0
        self.types: Counter[str] = Counter()
        self.dead: set[str] | None = set()

    def see(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.invalid += batch.num_rows - batch["error"].null_count
        self.controls += _compute.sum(_compute.is_in(batch["control"], _CUTS)).as_py() or 0
        changes = batch["type"].filter(_compute.equal(batch["kind"], "change"))
        for each in _compute.value_counts(changes).to_pylist():
            self.types[each["values"]] += each["counts"]
        refused = _compute.and_(_compute.equal(batch["kind"], "invalid"), batch["type"].is_valid())
        self.dead = few(self.dead, batch["stream"].filter(refused).unique().to_pylist())
        return batch

    def row(self, written: Written) -> dict[str, Any]:
        types = msgspec.json.encode(self.types).decode()
        dead = None if self.dead is None else msgspec.json.encode(sorted(self.dead)).decode()
        counts = {"invalid": self.invalid, "controls": self.controls, "types": types, "dead": dead}
        return {**written._asdict(), **counts}


def few(streams: Iterable[str] | None, more: Iterable[str] | None) -> set[str] | None:
    """Streams and some more; None if they are too many to be named."""
    if streams is None or more is None:
        return None
    found = {*streams, *more}
    return found if len(found) <= limits.PIPELINE_DEAD_STREAMS_MAX else None


class Appended(NamedTuple):
    """What the tasks of a batch have written."""

    files: list[Written]
    invalid: int
    controls: int
    types: Mapping[str, int]
    dead: Set[str] | None = frozenset()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Appended:
        types: Counter[str] = Counter()
        dead: set[str] | None = set()
        files, invalid, controls = [], 0, 0
        for row in rows:
            files.append(Written(*(row[name] for name in Written._fields)))
            invalid += row["invalid"]
            controls += row["controls"]
            types.update(msgspec.json.decode(row["types"], type=dict[str, int]))
            told = row["dead"]
            dead = few(dead, None if told is None else msgspec.json.decode(told, type=list[str]))
        return cls(files, invalid, controls, types, dead)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class EventsTable:
    """The table, and where it stands."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.table = Table(uri, EVENTS, options)
        self._kept = KeptPositions(uri, options)
        self._record: Record | None = None

    @property
    def uri(self) -> str:
        return self.table.uri

    @property
    def record(self) -> Record:
        if self._record is None:
            found = self.table.record() if self.table.exists else {}
            self._record = msgspec.convert(found, Record)
        return self._record

    def positions(self) -> dict[str, Any] | None:
        """Where the source stands after the last batch, as Spark keeps it; None: not known."""
        name = self.record.positions_file
        return self.record.positions if name is None else self._kept.get(name)

    def own_record(self) -> Record:
        """The record, for who is going to write; an error if another engine has written since."""
        found = self.record
        self.table.refuse_foreign()
        return found

    def refresh(self) -> None:
        self.table.refresh()
        self._record = None

    def has(self, query: str, batch: int) -> bool:
        """Whether a batch of a query is in the table."""
        last = self.table.transaction(query)
        return last is not None and last >= batch

    def append(
        self, appended: Appended, *, query: str, batch: int, positions: dict[str, Any] | None
    ) -> Record:
        """The commit that makes a batch true."""
        made = self.after(appended)
        file = self._kept.put(made.batch, positions)
        record = msgspec.structs.replace(
            made,
            query=query,
            query_batch=batch,
            positions=positions if file is None else None,
            positions_file=file,
        )
        self._commit(appended.files, record, {query: batch})
        self._kept.forget(made.batch)
        return record

    def after(self, appended: Appended) -> Record:
        """What the next commit says of the batches up to it."""
        before = self.record
        number = before.batch + 1
        types = dict(before.types)
        for name, count in appended.types.items():
            types[name] = Count(count + (types[name].changes if name in types else 0), number)
        dead = few(before.dead_streams, appended.dead)
        return msgspec.structs.replace(
            before,
            batch=number,
            events=before.events + appended.rows,
            invalid=before.invalid + appended.invalid,
            dead=None if dead is None else sorted(dead),
            types=types,
            names=before.named(types),
            cut=number if appended.controls else before.cut,
        )

    def note(self, record: Record) -> None:
        """A commit without events, for what it says."""
        self._commit([], record, {})

    def add(self, appended: Appended) -> None:
        """Rows that no query brought."""
        self._commit(appended.files, self.after(appended), {})

    def mend(self, appended: Appended, *, left: int, dead: Iterable[str] | None) -> None:
        """Dead letters that were replayed; so many are left, of these streams."""
        streams = None if dead is None else sorted(dead)
        record = msgspec.structs.replace(self.after(appended), invalid=left, dead=streams)
        self._commit(appended.files, record, {})

    def compact(self) -> None:
        self.table.compact()

    def _commit(self, written: list[Written], record: Record, names: dict[str, int]) -> None:
        self.table.commit(written, msgspec.to_builtins(record), {**names, WRITER: record.writer})
        self._record = record

    def files(self, *, after: int = 0, column: str | None = None) -> list[File]:
        """Files that may have rows of later batches; with a column: rows that have it."""
        return [
            file
            for file in self.table.files()
            if file.most.get("batch", after + 1) > after
            and (column is None or file.may_have(column))
            and (column != "control" or file.least.get("control", "") <= _LAST_MARK)
        ]


WRITER: Final = "penstock/writer"
