"""The status of a pipeline, from its warehouse and, if it answers, its server. No Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.errors import InvalidPipeline, PenstockError
from penstock.spark.config import Pipeline
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.options import SourceOptions
from penstock.spark.pipeline.declarations import declared, drifts
from penstock.spark.pipeline.outbox import Outbox, OutboxRecord
from penstock.spark.server import Server
from penstock.spark.source.driver import Driver, lag, lag_bytes
from penstock.spark.stream_progress import Extent, Lags, read_between
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import EventsCommit
from penstock.spark.warehouse.sandbox import Column, SandboxedDuck
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse

_COMMITS_MAX: Final = 500
_LAST_COMMITS: Final = 50
_BATCHES_MAX: Final = 200
_LISTED_MAX: Final = 50
_LATELY_S: Final = 60.0
_NOTHING: Final = Extent(0, 0)
_REASONS: Final = """SELECT error, count(*) AS n FROM dead_letters GROUP BY error
ORDER BY n DESC, error LIMIT 50"""
_STARTS: Final = """SELECT batch, min(ingested) AS started FROM events
WHERE batch > (SELECT max(batch) FROM events) - 500 GROUP BY batch"""


class TypeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one type."""

    name: str
    changes: int
    rows: int  # of its state table, including deleted keys
    folded: int  # the last batch that is folded
    behind: bool
    declared: bool


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A committed batch. `seconds` is from its start to its commit: reading and writing its events,
    not the fold and the publishing that follow. None: it is not in the log any more."""

    batch: int
    run: int
    committed_at: datetime
    seconds: float | None
    events: int
    dead_letters: int


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of one run, as far as the log of the events has them."""

    run: int
    first_batch: int
    last_batch: int
    started_at: datetime
    committed_at: datetime
    events: int


class ExpectationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An expectation: `violated` counts rows of all events for a type, and of the current result
    for a published one; `last_batch` those of the last batch of events."""

    name: str  # types.TYPE.NAME or publish.NAME.NAME
    sql: str
    action: str
    violated: int
    last_batch: int | None


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: how far the warehouse is behind it, and how fast it was read lately, by the commits
    of up to a minute. None: not known."""

    lag_messages: int | None
    lag_bytes: int | None
    messages_per_s: float | None
    bytes_per_s: float | None


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What takes longer to find out."""

    is_running: bool
    runs: list[RunStatus]
    batches: list[BatchStatus]
    streams: dict[str, StreamStatus]  # those that are furthest behind, then the busiest
    reasons: dict[str, int]  # dead letters by their error, the most frequent ones
    relations: dict[str, list[Column]]  # what queries may name, with its columns


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a pipeline."""

    warehouse: str
    batch: int
    events: int
    dead_letters: int
    files: int
    streams: int
    lag: int | None  # None: the server does not answer
    trouble: str | None
    types: list[TypeStatus]
    published: dict[str, int]
    unkeyed: dict[str, int]  # rows of each result that have no key and are not published
    expectations: list[ExpectationStatus]
    failing: dict[str, str]  # results that are not up to date, with the reason
    drift: dict[str, str]  # types that the server declares differently since the last run
    details: Details | None = None


def status_of(pipeline: Pipeline, *, details: bool = False) -> Status:
    """Return the status; with `details` also runs, batches, reasons and relations."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    record = warehouse.events.record
    positions = warehouse.events.positions()
    lags, trouble = _lags(pipeline, positions)
    entities = sorted({*pipeline.types, *record.types})
    outbox = Outbox(warehouse)
    if pipeline.publish:
        outbox.refresh()
    sent = outbox.record
    return Status(
        warehouse=warehouse.path,
        batch=record.batch,
        events=record.events,
        dead_letters=record.invalid,
        files=len(warehouse.events.files()),
        streams=0 if positions is None else len(positions["streams"]),
        lag=None if lags is None else sum(lags.messages.values()),
        trouble=trouble,
        types=[_type(warehouse, pipeline, entity) for entity in entities],
        published={name: outbox.keys(name) for name in pipeline.publish},
        unkeyed={name: sent.unkeyed.get(name, 0) for name in pipeline.publish},
        expectations=[*_of_types(pipeline, warehouse), *_of_results(pipeline, sent)],
        failing={name: sent.troubles[name] for name in pipeline.publish if name in sent.troubles},
        drift={} if trouble is not None else _drift(pipeline),
        details=_details(pipeline, warehouse, lags) if details else None,
    )


def _details(pipeline: Pipeline, warehouse: Warehouse, lags: Lags | None) -> Details:
    duck = SandboxedDuck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
    try:
        reasons: dict[str, int] = {}
        if warehouse.events.record.invalid:
            reasons = {row["error"]: row["n"] for row in duck.sql(_REASONS).to_pylist()}
        batches = _batches(warehouse, duck)
        relations = {name: _columns(duck, name) for name in duck.names()[:_LISTED_MAX]}
    finally:
        duck.close()
    return Details(
        is_running=warehouse.is_written,
        runs=_runs(batches),
        batches=batches[-_BATCHES_MAX:],
        streams=_streams(warehouse, lags),
        reasons=reasons,
        relations=relations,
    )


def _streams(warehouse: Warehouse, lags: Lags | None) -> dict[str, StreamStatus]:
    """The streams that are furthest behind, then those that were read fastest."""
    read, seconds = _read_lately(warehouse)
    positions = warehouse.events.positions() or {"streams": {}}
    streams = {
        name: StreamStatus(
            lag_messages=None if lags is None else lags.messages.get(name, 0),
            lag_bytes=None if lags is None else lags.bytes.get(name, 0),
            messages_per_s=None if seconds is None else read.get(name, _NOTHING).messages / seconds,
            bytes_per_s=None if seconds is None else read.get(name, _NOTHING).bytes / seconds,
        )
        for name in {*positions["streams"], *(() if lags is None else lags.messages)}
    }

    def order(name: str) -> tuple[int, float, str]:
        return -(streams[name].lag_messages or 0), -(streams[name].messages_per_s or 0.0), name

    return {name: streams[name] for name in sorted(streams, key=order)[:_LISTED_MAX]}


def _read_lately(warehouse: Warehouse) -> tuple[dict[str, Extent], float | None]:
    """What the batches of the last minute of commits have read, and in how many seconds; None:
    there are no two commits whose positions are known."""
    commits = warehouse.events.commits(_COMMITS_MAX)
    if not commits:
        return {}, None
    last_at, last = commits[-1]
    earlier = [each for each in commits if 0 < each[1].batch < last.batch]
    lately = [each for each in earlier if (last_at - each[0]).total_seconds() <= _LATELY_S]
    for first_at, first in (lately or earlier[-1:])[:1]:
        start, end = warehouse.events.positions(first), warehouse.events.positions(last)
        seconds = (last_at - first_at).total_seconds()
        if start is not None and end is not None and seconds > 0:
            return read_between(from_spark(start), from_spark(end)), seconds
    return {}, None


def _columns(duck: Duck, relation: str) -> list[Column]:
    rows = duck.sql(f"DESCRIBE {relation}").to_pylist()
    return [Column(row["column_name"], row["column_type"]) for row in rows]


def _batches(warehouse: Warehouse, duck: Duck) -> list[BatchStatus]:
    """The batches that the log of the events still has, oldest first."""
    started = {row["batch"]: row["started"] for row in duck.sql(_STARTS).to_pylist()}
    batches: list[BatchStatus] = []
    before: EventsCommit | None = None
    for committed_at, record in warehouse.events.commits(_COMMITS_MAX):
        if before is not None and record.batch > before.batch:
            start = started.get(record.batch)
            batches.append(
                BatchStatus(
                    batch=record.batch,
                    run=record.writer,
                    committed_at=committed_at,
                    seconds=start and max(0.0, (committed_at - start).total_seconds()),
                    events=record.events - before.events,
                    dead_letters=max(0, record.invalid - before.invalid),
                )
            )
        before = record
    return batches


def _runs(batches: list[BatchStatus]) -> list[RunStatus]:
    """The runs of batches, the latest first."""
    runs = []
    for run, members in groupby(batches, key=lambda each: each.run):
        own = list(members)
        first, last = own[0], own[-1]
        runs.append(
            RunStatus(
                run=run,
                first_batch=first.batch,
                last_batch=last.batch,
                started_at=first.committed_at - timedelta(seconds=first.seconds or 0.0),
                committed_at=last.committed_at,
                events=sum(each.events for each in own),
            )
        )
    return runs[::-1][:_LISTED_MAX]


def _type(warehouse: Warehouse, pipeline: Pipeline, entity: str) -> TypeStatus:
    record = warehouse.events.record
    state = StateTable(warehouse, entity, pipeline.types.get(entity))
    count = record.types.get(entity)
    return TypeStatus(
        name=entity,
        changes=0 if count is None else count.changes,
        rows=state.folded.rows,
        folded=state.batch,
        behind=state.is_behind(record),
        declared=entity in pipeline.types,
    )


def _lags(pipeline: Pipeline, positions: dict[str, Any] | None) -> tuple[Lags | None, str | None]:
    """What the warehouse lacks of each stream, or the reason why that is not known."""
    source = pipeline.source
    options = SourceOptions(url=source.url, token=source.token, streams=tuple(source.streams))
    server = Server(source.url, source.token, limits.PIPELINE_STATUS_ATTEMPTS_MAX)
    try:
        driver = Driver(server, options)
        tails = driver.tails()
        place = SourceOffsets(driver.kind, {}) if positions is None else from_spark(positions)
        return Lags(lag(place, tails), lag_bytes(place, tails)), None
    except PenstockError as error:
        return None, error.detail


def _of_types(pipeline: Pipeline, warehouse: Warehouse) -> list[ExpectationStatus]:
    if not pipeline.expect:
        return []
    total = warehouse.events.record.violations
    commits = [record for _, record in warehouse.events.commits(_LAST_COMMITS)]
    last = next((one for one in reversed(commits) if one.batch < commits[-1].batch), None)
    before = None if last is None else last.violations
    return [
        ExpectationStatus(
            name=f"types.{entity}.{each.name}",
            sql=each.sql,
            action=each.action,
            violated=(count := total.get(f"{entity}.{each.name}", 0)),
            last_batch=None if before is None else count - before.get(f"{entity}.{each.name}", 0),
        )
        for entity, group in pipeline.expect.items()
        for each in group
    ]


def _of_results(pipeline: Pipeline, sent: OutboxRecord) -> list[ExpectationStatus]:
    return [
        ExpectationStatus(
            name=f"publish.{name}.{each.name}",
            sql=each.sql,
            action=each.action,
            violated=sent.violations.get(f"{name}.{each.name}", 0),
            last_batch=None,
        )
        for name, publish in pipeline.publish.items()
        for each in publish.expectations
    ]


def _drift(pipeline: Pipeline) -> dict[str, str]:
    """What the server declares otherwise than the last run found it."""
    names = tuple(name for name in pipeline.server_types if name in pipeline.types)
    if not names:
        return {}
    before = {name: pipeline.types[name] for name in names}
    try:
        return drifts(before, declared(pipeline.source, names, limits.PIPELINE_STATUS_ATTEMPTS_MAX))
    except InvalidPipeline as error:
        return dict.fromkeys(names, error.detail)
    except PenstockError:
        return {}
