"""The status of a pipeline, from its warehouse and, if it answers, its server. No Spark."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import limits
from penstock.errors import PenstockError
from penstock.spark.config import Pipeline
from penstock.spark.offsets import SourceOffsets, from_spark
from penstock.spark.options import SourceOptions
from penstock.spark.pipeline.outbox import Outbox
from penstock.spark.server import Server
from penstock.spark.source.driver import Driver, lag
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse


class TypeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one type."""

    name: str
    changes: int
    rows: int  # of its state table, including deleted keys
    folded: int  # the last batch that is folded
    behind: bool
    declared: bool


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


def status_of(pipeline: Pipeline) -> Status:
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    record = warehouse.events.record
    positions = warehouse.events.positions()
    behind, trouble = _lag(pipeline, positions)
    entities = sorted({*pipeline.types, *record.types})
    published, unkeyed = _published(warehouse, pipeline)
    return Status(
        warehouse=warehouse.path,
        batch=record.batch,
        events=record.events,
        dead_letters=record.invalid,
        files=len(warehouse.events.files()),
        streams=0 if positions is None else len(positions["streams"]),
        lag=behind,
        trouble=trouble,
        types=[_type(warehouse, pipeline, entity) for entity in entities],
        published=published,
        unkeyed=unkeyed,
    )


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


def _lag(pipeline: Pipeline, positions: dict[str, Any] | None) -> tuple[int | None, str | None]:
    """The number of messages that the warehouse lacks, or the reason why it is not known."""
    source = pipeline.source
    options = SourceOptions(url=source.url, token=source.token, streams=tuple(source.streams))
    server = Server(source.url, source.token, limits.PIPELINE_STATUS_ATTEMPTS_MAX)
    try:
        driver = Driver(server, options)
        tails = driver.tails()
        place = SourceOffsets(driver.kind, {}) if positions is None else from_spark(positions)
        return sum(lag(place, tails).values()), None
    except PenstockError as error:
        return None, error.detail


def _published(warehouse: Warehouse, pipeline: Pipeline) -> tuple[dict[str, int], dict[str, int]]:
    """The number of keys of each published result, and of its rows without a key."""
    outbox = Outbox(warehouse)
    if pipeline.publish:
        outbox.refresh()
    keys = {name: outbox.keys(name) for name in pipeline.publish}
    return keys, {name: outbox.record.unkeyed.get(name, 0) for name in pipeline.publish}
